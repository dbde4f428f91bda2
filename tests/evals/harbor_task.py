"""A small task of Harbor, as a folder."""

from __future__ import annotations

from pathlib import Path

from tests.agent.repositories import write_files

TOML = """\
schema_version = "1.4"
[metadata]
repo = "someone/calc"
[environment]
docker_image = "calc:1"
workdir = "/app"
"""
FAULTY = "def add(a, b):\n    return a - b\n"
TEST = """\
#!/bin/bash
python3 -c 'import calc; assert calc.add(1, 2) == 3' && reward=1 || reward=0
echo $reward > /logs/verifier/reward.txt
"""
FILES = {
    "instruction.md": "add is wrong\n",
    "tests/test.sh": TEST,
    "solution/solve.sh": "#!/bin/sh\nsed -i 's/a - b/a + b/' calc.py\n",
}


def write_task(folder: Path, toml: str = TOML, **files: str) -> Path:
    """Write the task, with changed or further files, and return its folder."""
    write_files(folder, {**FILES, "task.toml": toml, **files})
    for script in ("tests/test.sh", "solution/solve.sh"):
        (folder / script).chmod(0o755)
    return folder
