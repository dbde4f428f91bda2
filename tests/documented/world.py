"""Provide the machine of a reader of the documentation, to run its commands on.

It has a repository with a bug and an issue, instances and runs of a benchmark, finished and killed sessions, four GPUs
as `nvidia-smi` reports them, a `vllm` that takes the arguments of the real one, and model servers on loopback. What
takes time to make is made when the first command needs it.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count, pairwise
from pathlib import Path
from typing import IO, Self

from m3agent.agent.session.catalog import repository_of, session_folders
from m3agent.sandbox.backends.engine import connect
from m3agent.sandbox.backends.image import find_image
from m3agent.serving.embedded.server import MODEL
from m3agent.serving.launch.record import ServerRecord, live_servers, new_folder, write_record
from tests.agent.repositories import write_files
from tests.agent.small_tokenizer import write_tokenizer
from tests.command_line import Process
from tests.conftest import git, one_kind
from tests.documented.commands import ROOT
from tests.evals.create.history_of import FIRST, FIX, Repo
from tests.evals.report.made import result, run_folder
from tests.servers import mcp_server
from tests.servers.dockerd import OwnEngine
from tests.servers.forced import ForcedServer
from tests.servers.paced import PacedServer
from tests.serving.launch.test_checkpoint import CONFIG

BUGGY: dict[str, str | bytes] = {
    "adder.py": "def add(a, b):\n    return a - b\n",
    "test_adder.py": "from adder import add\n\n\ndef test_add():\n    assert add(2, 3) == 5\n",
    "issue.md": "add(2, 3) should be 5.\n",
    ".mcp.json": json.dumps(
        {"mcpServers": {"odd": {"command": sys.executable, "args": [mcp_server.__file__, ""]}}}
    ),
}
FIXED = "def add(a, b):\n    return a + b\n"
FIX_IT = "m3agent fix issue.md"
CHECKPOINT = "MiniMaxAI/MiniMax-M3-MXFP8"
"""The checkpoint that is planned for four H200."""
SMI = """#!/bin/sh
for number in 0 1 2 3; do
  case ",${CUDA_VISIBLE_DEVICES:-$number}," in *",$number,"*) echo "$number, GPU-$number, NVIDIA H200, 143771, 4, Disabled" ;; esac
done
"""
UV_CACHE = os.environ.get("UV_CACHE_DIR") or str(Path("~/.cache/uv").expanduser())
"""Found before the tests get a home folder of their own. The user may have no name, and so no other home folder."""
WAIT = 120.0  # seconds for a server to start or for a fix to reach the point where it is killed

# Maps each placeholder in the documentation to its value on this machine. The first rule that matches applies.
RULES: list[tuple[str, Callable[[World], str]]] = [
    (r"(?<=-o )RUN\b", lambda world: f"run-{next(world.numbers)}"),
    (r"\bRUN\b", lambda world: str(world.runs / "one")),
    (r"\bOTHER\b", lambda world: str(world.runs / "two")),
    (r"\bROWS\b", lambda world: str(world.rows)),
    (r"\bSESSION\b(\.\.\.)?", lambda _: "last"),
    (r"\bISSUE\b", lambda _: "issue.md"),
    (r"(?<=--branch )NAME\b", lambda _: "repaired"),
    (r"(?<=--each )FILE\b", lambda world: str(world.issues)),
    (r"\bFILE\b", lambda world: f"file-{next(world.numbers)}"),
    (r"'PROGRAM \.\.\.'", lambda world: f"'{world.agent} {{issue}}'"),
    (r"\bCOMMAND\b(\.\.\.)?", lambda _: "python3 -c 'print(1)'"),
    (r"\bHOST,\.\.\.", lambda _: "example.org"),
    (r"\b(IMG|BASE)\b", lambda world: world.image),
    (r"\bDATE\b", lambda _: "2026-01-31"),
    (r"(?<=--timeout )S\b", lambda _: "20"),
    (r"(?<=--keep-gb )N\b", lambda _: "1"),
    (r"docker\|bwrap\|here", lambda _: "docker"),
    (r'"\.\.\."', lambda _: '"add(2, 3) should be 5"'),
    (r"(?<=eval create )\S+", lambda world: str(world.history)),
    (r"\b(your|path/of/a|path/to)/\w+", lambda _: "."),
    (r"(?<=serve bench --endpoint )\S+", lambda world: world.paced.url),
    (r"(?<=serve check --endpoint )\S+|(?<=serve scrape --endpoint )\S+", lambda world: world.forced.url),
    (r"(?<=--endpoint )URL\b", lambda world: world.embedded_url),
    (r"(?<=--model )NAME\b", lambda _: MODEL),
    # an address without a cluster, whatever the documented name is
    (r"ray://head:10001", lambda _: "ray://127.0.0.1:9"),
    # each server gets its own port
    (r"\bm3agent serve(?= --|$)(?! --dry-run)", lambda _: "m3agent serve --port 0"),
]
_OUTPUT = re.compile(r"(?: -o| --plot| --junit| --official| --predictions|\s>) ([\w./-]+)")
_KEPT = r"(?i)(LANG|TZ|(DOCKER|SSL|PIP|UV)_\w+|(HTTPS?|NO|ALL)_PROXY)$"
_FOR_A_SHELL = re.compile(r"(?!([A-Z_]+=\S* )*m3agent )|.*[|&;<>$`~*\\]")
"""Matches commands that need a shell: more than a call of m3agent with plain words."""
_PLACEHOLDER = re.compile(r"(?<![\w./-])[A-Z]{2,}(?![\w=-])|\.\.\.")


class NotArranged(Exception):
    """A command has a placeholder that no rule replaces."""


@dataclass(frozen=True)
class Done:
    """The result of a command. said: standard output and error; missing: files that it should have written."""

    code: int
    said: str
    missing: tuple[str, ...] = ()


class World:
    """The machine; it exists while the context is entered."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.numbers: Iterator[int] = count(1)
        self.home = folder / "home"
        self.bin = folder / "bin"
        self._fixed: Path | None = None
        self._open = ExitStack()
        write_files(folder / "template", BUGGY)
        write_files(
            self.home,
            {
                ".gitconfig": "[user]\n name = Reader\n email = reader@example.invalid\n[init]\n defaultBranch = main\n"
            },
        )
        write_tokenizer(self.home / "models" / "MiniMax-M3" / "tokenizer.json")
        store = self.home / f"hub/models--{CHECKPOINT.replace('/', '--')}"
        self._checkpoint(store / "snapshots" / "1")
        write_files(store, {"refs/main": "1"})
        self._program("nvidia-smi", SMI)
        # the log of a real run, of a version that has all that the documented commands ask for
        log = (ROOT / "tests" / "serving" / "launch" / "logs" / "vllm-good-run.log").read_text()
        (self.folder / "vllm.log").write_text(log.replace("0.24.0", "0.33.0"))
        vllm = ROOT / "tests" / "servers" / "vllm_program.py"
        self._program("vllm", f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} {vllm} "$@"\n')
        (folder / "gpu").mkdir()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()

    def run(self, text: str, until: str | None = None) -> Done:
        """Run a command as a reader would who has everything that it names; once `until` is printed, press Ctrl-C.

        Raises NotArranged if the command has a placeholder that no rule replaces.
        """
        cwd = self.checkout if re.search(r"(^| )make ", text) else self._repository(text)
        state = self._state(text)
        if re.search(
            r"\bm3agent (sessions|report)\b", text
        ):  # `last` is that of the repository in which it runs
            cwd = next(
                Path(root) for each in session_folders(state) if (root := repository_of(each).get("root"))
            )
        env = self._env(state, text)
        told = self.told(text)
        try:
            done = self._run(told, cwd, env, until)
            if told == FIX_IT and done.code == 0:
                self._fixed = state
            return replace(
                done, missing=tuple(name for name in _OUTPUT.findall(told) if not (cwd / name).exists())
            )
        finally:
            if state != self.embedded_state:
                self._stop_servers(state)

    def told(self, text: str) -> str:
        """Return the command with its placeholders replaced."""
        bare = text
        for pattern, _ in RULES:
            bare = re.sub(pattern, "", bare)
        if left := _PLACEHOLDER.findall(bare):
            raise NotArranged(f"what does {left[0]} stand for? Say so in RULES of tests/documented/world.py.")
        for pattern, value in RULES:
            text = re.sub(pattern, lambda _, value=value: value(self), text)  # type: ignore[misc]
        return text

    # ---- What commands refer to ----

    @cached_property
    def rows(self) -> Path:
        """A benchmark of one program."""
        folder = self.folder / "rows"
        program = {f"programs/adder/{name}": text for name, text in BUGGY.items() if name.endswith(".py")}
        write_files(folder, {**program, "programs/adder/ISSUE.md": BUGGY["issue.md"], "gold/adder.py": FIXED})
        return folder

    @cached_property
    def issues(self) -> Path:
        """A list of one issue."""
        path = self.folder / "issues"
        path.write_text("issue.md\n")
        return path

    @cached_property
    def runs(self) -> Path:
        """Two complete runs, `one` and `two`."""
        folder = self.folder / "runs"
        run_folder(folder / "one", [result("small__calc-1"), result("small__calc-2", "unresolved")])
        run_folder(folder / "two", [result("small__calc-1", "empty"), result("small__calc-2")])
        return folder

    @cached_property
    def history(self) -> Path:
        """A repository whose history has a fix with its test."""
        made = Repo(self.folder / "history")
        made.commit(FIRST, "Begin")
        made.commit(
            FIX, "Sums are differences\n\nAdding one and two gives minus one, and I would expect three.\n"
        )
        return made.folder

    @cached_property
    def agent(self) -> Path:
        """An agent other than m3agent, which repairs the programs of `rows`."""
        return self._program("agent", "#!/bin/sh\nsed -i 's/a - b/a + b/' *.py\n")

    @cached_property
    def image(self) -> str:
        """An image that sandboxes can start from."""
        api = connect()
        try:
            return find_image(api, None, lambda _: None).name
        finally:
            api.close()

    @cached_property
    def paced(self) -> PacedServer:
        """A model server for benchmarks."""
        return self._open.enter_context(PacedServer(prefill=1e-7, decode=1e-5, window=20_000))

    @cached_property
    def forced(self) -> ForcedServer:
        """A model server for checks, with the window of the documented one."""
        return self._open.enter_context(ForcedServer(in_reasoning=True, window=524_288))

    @cached_property
    def embedded_state(self) -> Path:
        """The state folder of a machine where the embedded engine serves."""
        state = self.folder / "state-embedded"
        command = "m3agent serve --engine embedded --port 0 --detach"
        done = self._run(command, self.folder, self._env(state))
        assert done.code == 0, done.said
        self._open.callback(self._stop_servers, state)
        return state

    @property
    def embedded_url(self) -> str:
        """The URL of that engine."""
        [(_, record)] = live_servers(self.embedded_state)
        return record.url

    @property
    def finished(self) -> Path:
        """The state folder after a successful fix: that of the documentation's own fix if it has been run."""
        if self._fixed is None:
            done = self.run(FIX_IT)
            assert self._fixed is not None, done.said
        return self._fixed

    @cached_property
    def killed(self) -> Path:
        """The state folder after a fix that was killed while it ran."""
        return self._killed()

    def _killed(self) -> Path:
        state = self.folder / "state-killed"
        env = self._env(state)
        with Process(
            "fix",
            "issue.md",
            "--json",
            cwd=self._repository(),
            env=env,
            stderr=subprocess.DEVNULL,
            inherit=False,
        ) as process:
            assert any(b'"type":"turn.finished"' in line.replace(b" ", b"") for line in process.stdout)
            process.kill()
        [log] = (state / "sessions").glob("*/events.jsonl")
        # the kill came late, and a resumed session does not repeat the call that it cut off
        if b"call.started" in log.read_bytes():
            shutil.rmtree(state)
            return self._killed()
        return state

    @cached_property
    def own_engine(self) -> str:
        """The address of a Docker engine that has nobody's images."""
        return self._open.enter_context(OwnEngine()).address

    @cached_property
    def checkout(self) -> Path:
        """A copy of this checkout with one quick test in place of all tests."""
        folder = self.folder / "checkout"
        listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        files = subprocess.run(listed, cwd=ROOT, capture_output=True, check=True).stdout
        for name in map(os.fsdecode, files.split(b"\0")):
            if name and not name.startswith("tests/") and (source := ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, folder / name, follow_symlinks=False)
        for link in (ROOT / "src" / "m3agent").iterdir():
            if link.is_symlink():
                (folder / "src" / "m3agent" / link.name).symlink_to(link.readlink())
        write_files(folder, {"tests/test_one.py": "def test_one() -> None:\n    assert True\n"})
        return folder

    def _shelf(self) -> Mapping[str, Callable[[Path], object]]:
        """Return makers of the files and folders that earlier documented commands leave behind, by their names."""

        def predictions(path: Path) -> None:
            patch = "--- a/adder.py\n+++ b/adder.py\n@@ -1,2 +1,2 @@\n def add(a, b):\n-    return a - b\n+    return a + b\n"
            path.write_text(
                json.dumps({"adder": {"model_patch": f"diff --git a/adder.py b/adder.py\n{patch}"}})
            )

        return {
            "validation.json": lambda path: shutil.copy(self._validation, path),
            "bench.json": lambda path: shutil.copy(self._bench, path),
            "preds.json": predictions,
            "fix.patch": lambda path: path.write_text(git(path.parent, "diff") + "\n"),
            "certificate.json": self._certificate,
            "full-mxfp8": self._checkpoint,
        }

    @cached_property
    def _validation(self) -> Path:
        return self._made("m3agent eval validate ROWS -o validation.json")

    @cached_property
    def _bench(self) -> Path:
        return self._made(
            "m3agent serve bench --endpoint URL --lengths 8K -o bench.json".replace("URL", self.paced.url)
        )

    def _made(self, text: str) -> Path:
        """Run a command and return the file that it writes, which its last word names."""
        folder = self.folder / f"made-{next(self.numbers)}"
        folder.mkdir()
        done = self._run(self.told(text), folder, self._env(folder / "state", text))
        assert done.code == 0, done.said
        return folder / text.split()[-1]

    def _certificate(self, path: Path) -> None:
        """Write the certificate of the fix."""
        command = f"m3agent verify --commit main..topic --certificate {path.name}"
        done = self._run(
            command, path.parent, self._env(self.folder / f"state-{next(self.numbers)}", command)
        )
        assert done.code == 0, done.said

    @staticmethod
    def _checkpoint(folder: Path) -> None:
        """Write M3's checkpoint folder without its 444 GB of weights."""
        config = {**CONFIG, "quantization_config": {"quant_method": "mxfp8"}}
        write_files(folder, {"config.json": json.dumps(config).encode(), "model.safetensors": b""})

    # ---- Where they run ----

    def _repository(self, text: str = "") -> Path:
        """Return a copy of the repository, with the other files that the command reads."""
        folder = self.folder / f"at-{next(self.numbers)}"
        shutil.copytree(self.folder / "template", folder)
        git(folder, "init", "-q")
        git(folder, "add", "-A")
        commit = ("-c", "user.name=a", "-c", "user.email=a@example.invalid", "commit", "-q", "-a", "-m")
        git(folder, *commit, "first")
        if text.startswith("m3agent verify"):  # the fix is on a branch, and also in the work tree
            git(folder, "branch", "-M", "main")
            git(folder, "checkout", "-q", "-b", "topic")
            write_files(folder, {"adder.py": FIXED})
            git(folder, *commit, "fix")
            git(folder, "checkout", "-q", "main")
            write_files(folder, {"adder.py": FIXED})
        words = shlex.split(text)
        for name, make in self._shelf().items():
            if any(
                word == name and before not in ("-o", "--certificate") for before, word in pairwise(words)
            ):
                make(folder / name)
        return folder

    def _state(self, text: str) -> Path:
        """Return the state folder, with the sessions or the server that the command needs."""
        state = self.folder / f"state-{next(self.numbers)}"
        if re.search(r"\bm3agent sessions resume", text):
            shutil.copytree(self.killed, state, symlinks=True)
        elif re.search(r"\bm3agent (sessions|report|apply)\b", text):
            shutil.copytree(self.finished, state, symlinks=True)
        elif re.search(r"\bm3agent serve (status|logs)\b", text):
            return self.embedded_state
        elif (
            found := re.search(r"\bm3agent serve (bench|check|scrape)\b", text)
        ) and "--endpoint" not in text:
            server = self.paced if found[1] == "bench" else self.forced
            record = ServerRecord(url=server.url, engine="vllm", pid=os.getpid())
            write_record(new_folder(state), record)
        return state

    def _env(self, state: Path, text: str = "") -> dict[str, str]:
        """Return the environment of the reader's shell, with this machine's access to engines and package indexes."""
        kept = {name: value for name, value in os.environ.items() if re.match(_KEPT, name)}
        path = [self.bin, Path(sys.executable).parent, ROOT / ".setup" / "uv" / "bin"]
        env = {
            **kept,
            "PATH": ":".join([*map(str, path), os.environ["PATH"]]),
            "HOME": str(self.home),
            "M3AGENT_STATE": str(state),
            "M3AGENT_RERUNS": "0",
            "NO_COLOR": "1",
            # the checkpoint is in this home, so nothing is downloaded
            "HF_HOME": str(self.home),
            "HF_HUB_OFFLINE": "1",
            "GPU": str(self.folder / "gpu"),
            "PLAY": json.dumps({"log": str(self.folder / "vllm.log")}),
            # set-up installs nothing on this machine, and takes its packages from the cache of earlier downloads
            "SETUP": "no",
            "UV_CACHE_DIR": UV_CACHE,
        }
        if one_kind() == "bwrap" and "m3agent eval" not in text:
            env["M3AGENT_SANDBOX"] = "bwrap"  # the faster sandbox, where the command does not name one
        if "OPENAI_API_KEY" in text:
            env["OPENAI_API_KEY"] = "a-key"
        if "sandbox prune" in text:
            env["DOCKER_HOST"] = self.own_engine  # a prune must not remove images of this machine's user
        return env

    def _run(self, text: str, cwd: Path, env: dict[str, str], until: str | None = None) -> Done:
        log = self.folder / f"log-{next(self.numbers)}"
        with log.open("wb") as file:
            process = _start(text, cwd, env, file)
        deadline = time.monotonic() + WAIT
        while until and process.poll() is None and not re.search(until, log.read_text()):
            if time.monotonic() > deadline:
                process.kill()
            time.sleep(0.05)
        if until and process.poll() is None:
            process.send_signal(signal.SIGINT)
        return Done(process.wait(), log.read_text(errors="replace"))

    def _stop_servers(self, state: Path) -> None:
        for _, record in live_servers(state):
            if record.pid != os.getpid():
                self._run(f"m3agent serve stop {record.url}", self.folder, self._env(state))

    def _program(self, name: str, text: str) -> Path:
        write_files(self.bin, {name: text})
        (self.bin / name).chmod(0o755)
        return self.bin / name


def _start(
    text: str, cwd: Path, env: Mapping[str, str], output: IO[bytes]
) -> Process | subprocess.Popen[bytes]:
    """Start a command in a shell; fork a plain call of m3agent instead, which starts faster."""
    if not _FOR_A_SHELL.match(text):
        words = shlex.split(text)
        at = words.index("m3agent")
        own = dict(word.split("=", 1) for word in words[:at])
        return Process(
            *words[at + 1 :], cwd=cwd, env={**env, **own}, stdout=output, stderr=output, inherit=False
        )
    return subprocess.Popen(
        ["bash", "-o", "pipefail", "-c", text],
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
    )
