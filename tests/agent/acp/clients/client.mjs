// A client of the Agent Client Protocol by its TypeScript SDK: one fix, allowed, then the session loaded again by another agent.
// Arguments: the repository, the issue, a file for all messages, the agent's command. Standard output: what was heard, as JSON.
import { spawn } from "node:child_process";
import { appendFileSync } from "node:fs";
import { Readable, Writable } from "node:stream";
import * as acp from "@agentclientprotocol/sdk";

const [repo, issue, log, ...command] = process.argv.slice(2);

function noted(direction) {
  let rest = "";
  return new TransformStream({
    transform(chunk, controller) {
      const lines = (rest + Buffer.from(chunk).toString("utf8")).split("\n");
      rest = lines.pop();
      for (const line of lines) appendFileSync(log, JSON.stringify({ direction, message: JSON.parse(line) }) + "\n");
      controller.enqueue(chunk);
    },
  });
}

async function driven(work) {
  const process_ = spawn(command[0], command.slice(1), { stdio: ["pipe", "pipe", "inherit"] });
  const to = noted("to agent");
  to.readable.pipeTo(Writable.toWeb(process_.stdin)).catch(() => {});
  const from = Readable.toWeb(process_.stdout).pipeThrough(noted("to client"));
  const heard = { updates: {}, asked: [] };
  const found = await acp
    .client({ name: "test" })
    .onRequest(acp.methods.client.session.requestPermission, ({ params }) => {
      heard.asked.push(params.toolCall.content.map((part) => part.type));
      const allowed = params.options.find((option) => option.kind === "allow_once");
      return { outcome: { outcome: "selected", optionId: allowed.optionId } };
    })
    .onNotification(acp.methods.client.session.update, ({ params }) => {
      const kind = params.update.sessionUpdate;
      heard.updates[kind] = (heard.updates[kind] ?? 0) + 1;
    })
    .connectWith(acp.ndJsonStream(to.writable, from), async (agent) => {
      const about = await agent.request(acp.methods.agent.initialize, {
        protocolVersion: acp.PROTOCOL_VERSION,
        clientCapabilities: {},
      });
      return { about, ...(await work(agent)) };
    });
  process_.stdin.end();
  await new Promise((ended) => process_.once("exit", ended));
  return { ...heard, ...found, exit: process_.exitCode };
}

const place = { cwd: repo, mcpServers: [] };
const first = await driven(async (agent) => {
  const { sessionId } = await agent.request(acp.methods.agent.session.new, place);
  const prompt = [{ type: "text", text: issue }];
  return { sessionId, done: await agent.request(acp.methods.agent.session.prompt, { sessionId, prompt }) };
});
const again = await driven(async (agent) => {
  const { sessionId } = first;
  const loaded = await agent.request(acp.methods.agent.session.load, { ...place, sessionId });
  const listed = await agent.request(acp.methods.agent.session.list, {});
  await agent.request(acp.methods.agent.session.close, { sessionId });
  return { loaded, listed };
});
console.log(JSON.stringify({ first, again }));
