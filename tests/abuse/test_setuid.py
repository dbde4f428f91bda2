"""Programs that run as root outside: inside they run as the sandbox's user."""

from __future__ import annotations

import pytest

from tests.abuse.box import Box

pytestmark = pytest.mark.asyncio(loop_scope="module")

# The loader prints the ids that the kernel gave to a new program. For a program that gained rights it prints nothing.
EXAMINE = """
import glob, stat, subprocess
for path in glob.glob("/usr/bin/*") + glob.glob("/usr/sbin/*"):
    try: info = os.stat(path)
    except OSError: continue
    if stat.S_ISREG(info.st_mode) and info.st_mode & (stat.S_ISUID | stat.S_ISGID) and os.access(path, os.X_OK):
        try: shown = subprocess.run([path, "--version"], env={"LD_SHOW_AUXV": "1"}, capture_output=True, stdin=subprocess.DEVNULL, timeout=1).stdout
        except subprocess.TimeoutExpired as error: shown = error.stdout or b""
        values = dict(line.split(":", 1) for line in shown.decode().splitlines() if line.startswith("AT_"))
        print(path, values.get("AT_EUID", "").strip(), values.get("AT_EGID", "").strip(), values.get("AT_SECURE", "").strip())
"""


@pytest.mark.slow
async def test_setuid_programs_of_the_image_gain_nothing(box: Box) -> None:
    done = await box.python(EXAMINE, timeout=120)
    assert done.exit == 0, done.stderr.decode()
    programs = done.stdout.decode().splitlines()
    assert programs, "the image has no such program to try"
    assert {line.split(maxsplit=1)[1] for line in programs} == {"1000 1000 0"}


async def test_a_setuid_program_of_its_own_gains_nothing(box: Box) -> None:
    program = (
        "import shutil, subprocess\n"
        "for folder in ('/ws', '/tmp', '/dev/shm', '/opt/m3agent'):\n"
        "    path = folder + '/id'\n"
        "    shutil.copy('/usr/bin/id', path); os.chmod(path, 0o6755)\n"
        "    print(outcome(lambda: os.chown(path, 0, 0)), outcome(lambda: print(subprocess.run([path, '-u'], capture_output=True).stdout.decode().strip(), end=' ')))\n"
        "    os.unlink(path)"
    )
    done = await box.python(program)
    assert done.exit == 0, done.stderr.decode()
    words = done.stdout.decode().split()
    assert "0" not in words
    assert set(words) <= {"EPERM", "EINVAL", "EACCES", "1000", "done"}


async def test_privileges_of_a_command(box: Box) -> None:
    program = (
        "status = dict(line.split(':', 1) for line in open('/proc/self/status'))\n"
        "print(*(status[name].strip() for name in ('CapInh', 'CapPrm', 'CapEff', 'CapBnd', 'CapAmb', 'NoNewPrivs', 'Seccomp')))\n"
        "print(os.getresuid(), os.getresgid(), [group for group in os.getgroups() if group not in (1000, 65534)])"
    )
    done = await box.python(program)
    rights, users = done.stdout.decode().splitlines()
    assert rights == " ".join(["0000000000000000"] * 5) + " 1 2"
    assert users == "(1000, 1000, 1000) (1000, 1000, 1000) []"
