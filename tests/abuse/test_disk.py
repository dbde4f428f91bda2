"""Full disks, no inodes left: the writer gets an error, the sandbox still works, and deleted files free the space."""

from __future__ import annotations

import resource

import pytest

from m3agent.sandbox.backends.sandbox import SandboxLimits
from m3agent.sandbox.errors import DiskFull
from tests.abuse.box import Box

pytestmark = pytest.mark.asyncio(loop_scope="module")

LIMITS = SandboxLimits(memory=192 << 20)
PAGE = resource.getpagesize()
FOLDERS = ["/ws", "/tmp", "/dev/shm", "/opt/m3agent"]
READ_ONLY = ["/", "/usr", "/etc", "/dev", "/usr/lib", "/usr/local", "/proc", "/sys"]

FILL = """
written = 0
try:
    with open({folder!r} + "/full", "wb", 0) as file:
        while written < 1 << 30: written += file.write(bytes(1 << 20))
except OSError as error:
    print(errno.errorcode[error.errno], written)
"""
COUNT = """
made = 0
try:
    while made < 200_000:
        os.close(os.open(f"{folder}/n{{made}}", os.O_CREAT | os.O_WRONLY)); made += 1
except OSError as error:
    print(errno.errorcode[error.errno], made)
for n in range(made): os.unlink(f"{folder}/n{{n}}")
"""


@pytest.mark.parametrize("folder", FOLDERS)
async def test_bytes(box: Box, folder: str) -> None:
    done = await box.python(FILL.format(folder=folder))
    error, written = done.stdout.split()
    assert error in {b"ENOSPC", b"EFBIG"}
    assert int(written) < LIMITS.disk + PAGE, "a tmpfs has whole pages"
    if folder == "/ws":
        with pytest.raises(DiskFull):
            await box.sandbox.write("more.bin", bytes(8 << 20))
    await box.sandbox.exec(["rm", f"{folder}/full"])
    await box.sandbox.write("more.bin", bytes(8 << 20))


@pytest.mark.parametrize("folder", FOLDERS)
async def test_inodes(box: Box, folder: str) -> None:
    done = await box.python(COUNT.format(folder=folder))
    assert done.stdout, f"200,000 files in {folder}"
    error, made = done.stdout.split()
    assert error == b"ENOSPC"
    assert int(made) <= max(LIMITS.inodes, 20_000)
    await box.sandbox.write("one-more.txt", b"x")


async def test_nothing_else_is_writable(box: Box) -> None:
    asks = {folder: f"os.open({folder + '/abuse'!r}, os.O_CREAT | os.O_WRONLY)" for folder in READ_ONLY}
    outcomes = await box.outcomes(asks)
    assert set(outcomes) == set(READ_ONLY)
    assert set(outcomes.values()) <= {"EROFS", "EACCES", "EPERM", "ENOENT"}
    await box.open()


async def test_a_file_of_a_terabyte_with_nothing_in_it(box: Box) -> None:
    program = "with open('/ws/sparse', 'wb') as file: print(outcome(lambda: file.truncate(1 << 40)))"
    done = await box.python(program)
    patch = await box.sandbox.patch()
    if done.stdout.strip() == b"done":
        assert patch.empty
        assert box.sandbox.left_out == {"sparse": "larger than 10 MiB"}
    else:
        assert done.stdout.strip() == b"EFBIG"


@pytest.mark.supervisor
async def test_a_deleted_file_that_is_still_open_is_given_back(box: Box) -> None:
    hold = FILL.format(folder="/ws") + "os.unlink('/ws/full')\ntime.sleep(300)"
    hold = hold.replace("with open", "held = open").replace(
        ", 0) as file:", ", 0); file = held\n    if True:"
    )
    assert (await box.python(hold, timeout=1.5)).timed_out
    await box.sandbox.write("more.bin", bytes(40 << 20))


@pytest.mark.slow
async def test_many_files_in_the_patch_are_counted_and_left_out(box: Box) -> None:
    await box.python("for n in range(2100): open(f'/ws/n{n}', 'w').close()")
    patch = await box.sandbox.patch()
    assert len(patch.paths) == 2000
    assert "100 new files" in box.sandbox.left_out
