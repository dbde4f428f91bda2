"""Install the dependencies of one test suite and keep them; runs inside a build container.

The folder `home` has configurations of package managers, and `/ws` the suite's input files. Output and exit status are those of
`env_script.py`.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

from m3agent.sandbox.images import env_script

REASON = re.compile(
    r"\W*(?:(?:npm|yarn) )?(?:err!|(?:error|fatal|failed|could not|cannot|unable)\b)|go: (?!downloading|finding|found|added)",
    re.IGNORECASE,
)
"""Start of a line with the reason of a failure, in the output of package managers."""
PREFIX = re.compile(r"\W*(?:(?:npm|yarn) )?(?:err!|(?:error|fatal)\b)[\s:]*", re.IGNORECASE)
MOST_REASONS = 2  # lines with a reason that the message quotes
SPECIAL = re.compile(r"([\\*?\[\]!# ])")
"""Characters with a meaning in git's patterns."""


def reason_of(lines: list[str]) -> str:
    """Return why a command failed: the first lines with an error, otherwise the last line of its output."""
    texts = [line.strip() for line in lines if line.strip()]
    marked = [PREFIX.sub("", text) for text in texts if REASON.match(text)]
    chosen = [text for text in marked if text][:MOST_REASONS] or texts[-1:] or ["no message"]
    return "; ".join(text.lstrip(": ")[:200] for text in dict.fromkeys(chosen))


def run(argv: list[str], folder: str, env: dict[str, str]) -> list[str] | None:
    """Run a program with its output in the log; return its output if it failed, else None."""
    env_script.say("$ " + " ".join(argv))
    lines = []
    with subprocess.Popen(
        argv, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            text = line.decode(errors="replace").rstrip()
            env_script.say("| " + text)  # no line of it is taken for a notice
            lines.append(text)
            del lines[2000:]
    return lines if process.returncode else None


def pattern(path: str) -> str:
    """Return git's pattern for one folder."""
    return "/" + SPECIAL.sub(r"\\\1", path) + "/"


def keep(job: dict[str, Any], tree: Path) -> None:
    """Store the folders for the work tree in the archive, and list those that git and m3agent need not look into."""
    kept = [path for path in job["keep"] if (tree / path).is_dir()]
    place = Path(job["suites"], job["name"])
    if kept:
        archive = str(place.with_suffix(".tar"))
        lines = run(["tar", "-c", "-f", archive, "--", *kept], str(tree), job["env"])
        if lines is not None:
            env_script.fail("what was installed cannot be stored: " + reason_of(lines))
    skipped = [path for path in kept if path in job["untracked"]]
    if skipped:
        place.with_suffix(".folders").write_text(json.dumps(skipped) + "\n", "utf-8")
        place.with_suffix(".exclude").write_text("".join(pattern(path) + "\n" for path in skipped), "utf-8")


def main() -> None:
    """Run the commands; after the last ones, keep what they made."""
    job = json.loads((env_script.HERE / "job.json").read_text("utf-8"))
    env = job["env"] = {**env_script.environment(job["env"]), **job["env"]}
    home = Path(env["HOME"])
    if (env_script.HERE / "home").is_dir():
        subprocess.check_call(["cp", "-R", str(env_script.HERE / "home") + "/.", str(home)])
    if "CARGO_HOME" in env and (home / ".cargo/config.toml").exists():
        # it stays in the image: cargo finds downloaded crates by the address of their registry
        shutil.copy(str(home / ".cargo/config.toml"), env["CARGO_HOME"])
    tree = Path(job["tree"])
    for argv in job["commands"]:
        if shutil.which(argv[0], path=env["PATH"]) is None:
            env_script.fail(argv[0] + " is not in the image")
        lines = run(argv, str(tree / job["root"]), env)
        if lines is not None:
            env_script.fail("`" + " ".join(argv) + "` failed: " + reason_of(lines))
    if job["last"]:
        keep(job, tree)
        for file in tree.iterdir():  # the sandbox puts its own work tree there
            if file.is_dir() and not file.is_symlink():
                shutil.rmtree(str(file), ignore_errors=True)
            else:
                file.unlink()
    env_script.finish()
