// A client of the Agent Client Protocol by its TypeScript SDK, which follows a script; client.py is the same in Python.
// Arguments: the repository, the script (JSON), a file for all messages, the agent's command. Standard output: what was heard, as JSON.
import { spawn } from "node:child_process";
import { appendFileSync } from "node:fs";
import { Readable, Writable } from "node:stream";
import * as acp from "@agentclientprotocol/sdk";

const [repo, script, log, ...command] = process.argv.slice(2);
const { agent: to, client: from } = acp.methods;
const place = { cwd: repo, mcpServers: [] };
let heard, step, agent, sessionId;

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

const typed = (text) => [{ type: "text", text }];
const prompt = (text) => agent.request(to.session.prompt, { sessionId, prompt: typed(text) });

const client = acp
  .client({ name: "test" })
  .onRequest(from.session.requestPermission, ({ params }) => {
    heard.asked.push(params.toolCall.toolCallId);
    const chosen = params.options.find((option) => option.kind === step.permission);
    return { outcome: { outcome: "selected", optionId: chosen.optionId } };
  })
  .onNotification(from.session.update, ({ params: { update } }) => {
    const kind = update.sessionUpdate;
    heard.updates[kind] = (heard.updates[kind] ?? 0) + 1;
    if (kind === "tool_call") heard.calls.push(update.toolCallId);
    if (kind === "agent_message_chunk") heard.said += update.content.text;
    if (kind !== "tool_call" || heard.calls.length > 1) return;
    if (step.cancel) agent.notify(to.session.cancel, { sessionId });
    if (step.steer) heard.steered = prompt(step.steer).then((done) => done.stopReason);
  });

const done = {
  new: async () => ({ sessionId } = await agent.request(to.session.new, place)),
  load: () => agent.request(to.session.load, { ...place, sessionId }),
  close: () => agent.request(to.session.close, { sessionId }),
  list: () => agent.request(to.session.list, {}),
  set: ({ option, value }) => agent.request(to.session.setConfigOption, { sessionId, configId: option, value }),
  prompt: ({ text }) => prompt(text),
};

async function process_(steps, results) {
  const program = spawn(command[0], command.slice(1), { stdio: ["pipe", "pipe", "inherit"] });
  const input = noted("to agent");
  input.readable.pipeTo(Writable.toWeb(program.stdin)).catch(() => {});
  const output = Readable.toWeb(program.stdout).pipeThrough(noted("to client"));
  await client.connectWith(acp.ndJsonStream(input.writable, output), async (connected) => {
    agent = connected;
    await agent.request(to.initialize, { protocolVersion: acp.PROTOCOL_VERSION, clientCapabilities: {} });
    for (step of steps) {
      heard = { updates: {}, calls: [], asked: [], said: "" };
      heard.answer = await done[step.do](step).catch((error) => ({ error: error.message }));
      heard.steered = (await heard.steered) ?? null;
      results.push(heard);
    }
  });
  program.stdin.end();
  await new Promise((ended) => program.once("exit", ended));
}

const results = [];
for (const steps of JSON.parse(script)) await process_(steps, results);
console.log(JSON.stringify(results));
