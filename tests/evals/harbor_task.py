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


DEEP_SWE_TOML = """\
schema_version = "1.3"
artifacts = ["/logs/artifacts/model.patch"]
[metadata]
repository_url = "https://github.com/someone/calc"
[verifier]
network_mode = "no-network"
environment_mode = "separate"
[verifier.environment]
build_timeout_sec = 1800.0
memory_mb = 8192
[[verifier.collect]]
command = "git diff --binary 4b825dc642cb6eb9a060e54bf8d69288fbee4904 HEAD > /logs/artifacts/model.patch"
timeout_sec = 300.0
[environment]
docker_image = "IMAGE"
workdir = "/testbed"
os = "linux"
gpus = 0
mcp_servers = []
"""
"""The form of DeepSWE 1.1: only what was committed counts, and the tests' image adds nothing but the tests."""
DEEP_SWE_TESTS = {
    "tests/test.sh": "#!/bin/bash\ngrep -q '^+.*a + b' /logs/artifacts/model.patch && reward=1 || reward=0\necho $reward > /logs/verifier/reward.txt\n",
    "tests/Dockerfile": "# tests only\nFROM IMAGE\n\nCOPY test.sh /tests/test.sh\nRUN chmod +x /tests/test.sh\n",
}


def write_deep_swe(folder: Path, image: str) -> Path:
    """Write a task in the form of DeepSWE 1.1, and return its folder."""
    tests = {name: text.replace("IMAGE", image) for name, text in DEEP_SWE_TESTS.items()}
    return write_task(folder, DEEP_SWE_TOML.replace("IMAGE", image), **tests)


def write_task(folder: Path, toml: str = TOML, **files: str) -> Path:
    """Write the task, with changed or further files, and return its folder."""
    write_files(folder, {**FILES, "task.toml": toml, **files})
    for script in ("tests/test.sh", "solution/solve.sh"):
        (folder / script).chmod(0o755)
    return folder
