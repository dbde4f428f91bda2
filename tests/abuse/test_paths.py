"""Links, special files and names that are meant to reach files outside the work tree, or to hang or break the host."""

from __future__ import annotations

import asyncio
import itertools
import os
from pathlib import Path

import pytest

from m3agent.sandbox.errors import FileProblem, PathEscapes, SandboxError
from m3agent.sandbox.store.git import TreeStore
from m3agent.sandbox.store.workspace import Workspace, inside_git
from tests.abuse.box import INSIDE, Box

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module"), pytest.mark.supervisor]

# requested path -> the code that creates it inside
OUT = {
    "../x": "",
    "/etc/passwd": "",
    "a/../../x": "os.mkdir('/ws/a')",
    "a/b/../../../tmp/x": "os.makedirs('/ws/a/b')",
    "link": "os.symlink('/etc/hostname', '/ws/link')",
    "to-proc": "os.symlink('/proc/1/environ', '/ws/to-proc')",
    "to-own-descriptor": "os.symlink('/proc/self/fd/1', '/ws/to-own-descriptor')",
    "folder/x": "os.symlink('/tmp', '/ws/folder')",
    "up/x": "os.symlink('..', '/ws/up')",
    "chain": "os.symlink('/tmp/next', '/ws/chain'); os.symlink('/etc/passwd', '/tmp/next')",
    "a/c/x": "os.mkdir('/ws/a'); os.symlink('../..', '/ws/a/c')",
    "root": "os.symlink('/ws/../tmp/x', '/ws/root')",
    "sibling": "os.symlink('/ws2', '/ws/sibling')",
}
SPECIAL = {
    "fifo": "os.mkfifo('/ws/fifo')",
    "socket": "socket.socket(socket.AF_UNIX).bind('/ws/socket')",
    "folder": "os.mkdir('/ws/folder')",
    "link-to-fifo": "os.mkfifo('/ws/p'); os.symlink('p', '/ws/link-to-fifo')",
    "loop": "os.symlink('loop', '/ws/loop')",
    "to-null": "os.symlink('/dev/null', '/ws/to-null')",
}


async def test_paths_that_lead_out(box: Box) -> None:
    for path, make in OUT.items():
        await box.sandbox.exec(["find", "/ws", "-mindepth", "1", "-delete"])
        made = await box.python(f"put('/tmp/x', 'secret')\n{make}")
        assert made.exit == 0, made.stderr
        with pytest.raises(PathEscapes):
            await box.sandbox.read(path)
        with pytest.raises(PathEscapes):
            await box.sandbox.write(path, b"overwritten")
        assert (await box.sandbox.exec(["cat", "/tmp/x"])).stdout == b"secret", path


async def test_special_files_neither_hang_nor_are_followed(box: Box) -> None:
    assert (await box.python("\n".join(SPECIAL.values()))).exit == 0
    async with asyncio.timeout(20):
        for path in SPECIAL:
            with pytest.raises((FileProblem, PathEscapes)):
                await box.sandbox.read(path)
            with pytest.raises((FileProblem, PathEscapes)):
                await box.sandbox.write(path, b"x")
        await box.sandbox.checkpoint()


async def test_links_swapped_during_reads_and_writes(box: Box) -> None:
    """Whenever the host resolves the link, it neither reads nor writes a file outside."""
    swap = (
        "os.makedirs('/tmp/out', exist_ok=True); put('/tmp/out/f', 'secret'); put('/tmp/secret', 'secret')\n"
        "os.makedirs('/ws/real', exist_ok=True); put('/ws/real/f', 'inside'); put('/ws/begun', 'yes')\n"
        "while True:\n"
        "    for name, inside, outside in (('d', 'real', '/tmp/out'), ('g', 'real/f', '/tmp/secret')):\n"
        "        for target in (inside, outside):\n"
        "            os.symlink(target, f'/ws/.{name}'); os.rename(f'/ws/.{name}', f'/ws/{name}')\n"
    )
    job = await box.sandbox.exec(["python3", "-c", f"{INSIDE}\n{swap}"], background=True)
    assert job.job is not None
    async with asyncio.timeout(60):
        while (await box.sandbox.exec(["sh", "-c", "test -e /ws/begun || { sleep 0.1; false; }"])).exit:
            pass
    refused = done = 0
    # on a busy machine, the other process may not run for a while, and the links stay as they are
    until = asyncio.get_running_loop().time() + 60
    for n in itertools.count():
        if n >= 300 and ((refused and done) or asyncio.get_running_loop().time() > until):
            break
        path = ("d/f", "g")[n % 2]
        try:
            if n % 3:
                assert await box.sandbox.read(path) in {b"inside", b"written"}
            else:
                await box.sandbox.write(path, b"written")
            done += 1
        except (PathEscapes, FileProblem):
            refused += 1
    await box.sandbox.kill(job.job)
    assert refused, "the race was never on"
    assert done, "nothing was ever let through"
    outside = await box.sandbox.exec(["cat", "/tmp/out/f", "/tmp/secret"])
    assert (outside.exit, outside.stdout) == (0, b"secretsecret"), outside


LINKS = {
    "to-a-system-file": "os.link('/usr/bin/env', '/ws/x')",
    "to-a-process-file": "os.link('/proc/1/cmdline', '/ws/x')",
    "from-another-file-system": "(put('/tmp/x', 'x'), os.link('/tmp/x', '/ws/x'))",
}


async def test_hard_links_to_what_is_outside(box: Box) -> None:
    outcomes = await box.outcomes(LINKS)
    assert set(outcomes) == set(LINKS)
    assert set(outcomes.values()) <= {"EXDEV", "EPERM", "EACCES"}
    await box.open()


GIT_FOLDERS = [
    ".git/config", ".GIT/config", ".gIt/hooks/pre-commit", "sub/.git/config", "sub2/.Git", "git~1/config", "GIT~2/config", "sub/git~1",
    ".git /config", ".git./config", ".git::$INDEX_ALLOCATION/config", ".g\u200cit/config", ".gi\ufefft/config", ".git\\config",
    "sub\\.git\\hooks\\x", ".git:stream",
]  # fmt: skip
GIT_FILES = [
    ".gitmodules",
    "sub/.GITMODULES",
    ".gitattributes",
    ".GitAttributes",
    "sub/.gitattributes",
    ".git\u200dmodules",
    ".gitmodules .",
]
REPOSITORIES = {
    "bare": ["sub/HEAD", "sub/config", "sub/objects/x", "sub/refs/x"],
    "bare-deeper": ["a/b/c/HEAD", "a/b/c/config", "a/b/c/objects/info/x", "a/b/c/refs/heads/x"],
    "bare-in-capitals": ["sub/Head", "sub/Config", "sub/OBJECTS/x", "sub/refs/x"],
    "work-tree": ["sub/HEAD", "sub/commondir", "sub/config.worktree"],
    "at-the-top": ["HEAD", "config", "objects/x", "refs/x"],
}
MAKE = """
import shutil
shutil.rmtree('/ws/.git', True)
for name in {names!r}:
    path = '/ws/' + name
    os.makedirs(os.path.dirname(path), exist_ok=True)
    put(path, 'ref: refs/heads/main\\n')
"""


async def test_git_s_own_folder_never_comes_out(box: Box) -> None:
    """This holds for every spelling that a file system may treat as `.git`."""
    done = await box.python(MAKE.format(names=[*GIT_FOLDERS, "ordinary.txt"]))
    assert done.exit == 0, done.stderr
    assert (await box.sandbox.patch()).paths == ("ordinary.txt",)


@pytest.mark.parametrize("name", GIT_FILES)
async def test_files_that_git_obeys_are_not_handed_over(box: Box, name: str) -> None:
    assert (await box.python(MAKE.format(names=[name]))).exit == 0
    with pytest.raises(PathEscapes):
        await box.sandbox.patch()


@pytest.mark.parametrize("kind_of_repository", REPOSITORIES)
async def test_a_folder_that_git_takes_for_a_repository(box: Box, kind_of_repository: str) -> None:
    """`git status` in such a folder would obey its `config`."""
    assert (await box.python(MAKE.format(names=REPOSITORIES[kind_of_repository]))).exit == 0
    with pytest.raises(PathEscapes):
        await box.sandbox.patch()


LINKS_OUT = {
    "absolute": {"l": "/etc/passwd"},
    "parent": {"l": "../x"},
    "deep-parent": {"a/b/l": "../../../x"},
    "down-and-up": {"l": "a/../../x"},
    "through-another-link": {"a/up": "..", "l": "a/up/../x"},
    "through-two-links": {"a/b/c/up": "../../..", "l": "a/b/c/up/../../x"},
    "through-a-link-to-here": {"here": ".", "l": "here/../x"},
    "dots-and-slashes": {"l": ".//./a/.//..//../x"},
    "process": {"l": "/proc/self/root"},
}


@pytest.mark.parametrize("links", LINKS_OUT)
async def test_links_that_would_lead_out_of_the_user_s_tree(box: Box, links: str) -> None:
    make = "".join(
        f"os.makedirs(os.path.dirname('/ws/{path}'), exist_ok=True); os.symlink({target!r}, '/ws/{path}')\n"
        for path, target in LINKS_OUT[links].items()
    )
    done = await box.python(make)
    assert done.exit == 0, done.stderr
    with pytest.raises(PathEscapes):
        await box.sandbox.patch()


NAMES = [b"new\nline", b"tab\there", b'quo"te', b"back\\slash", b"\xff\xfe", b"caf\xe9", b"-rf", b"--output=x", b":(glob)*", b"$(touch x)", b"`x`",
         b" leading", b"trailing ", b"\x1b[2J", b"\x7f", "\u202eabc".encode(), b"x" * 255, b"...", b"%s%n", b"nul", b"CON", b"*", b"a;b", b"|x", b"~", b"#"]  # fmt: skip


async def test_names_of_files_come_out_as_they_are(box: Box) -> None:
    sandbox = box.sandbox
    base = sandbox.workspace.base
    await box.python(
        f"for name in {NAMES!r}:\n"
        "    open(b'/ws/' + name, 'w').close(); os.makedirs(b'/ws/d/' + name); open(b'/ws/d/' + name + b'/f', 'w').close()"
    )
    patch = await sandbox.patch()
    assert {os.fsencode(path) for path in patch.paths} == {*NAMES, *(b"d/" + name + b"/f" for name in NAMES)}
    for name in NAMES:
        assert await sandbox.read(os.fsdecode(name)) == b""
    await sandbox.rollback(base)
    assert (await sandbox.patch()).empty


async def test_folders_deeper_than_any_path(box: Box) -> None:
    program = "for _ in range(1500): os.mkdir('deeper'); os.chdir('deeper')\nput('bottom', 'x')\nput('/ws/top', 'x')"
    assert (await box.python(program)).exit == 0
    assert "top" in (await box.sandbox.patch()).paths


async def test_a_link_of_a_megabyte_and_links_in_a_circle(box: Box) -> None:
    program = (
        "for n in range(10): os.symlink(f'l{(n + 1) % 10}', f'/ws/l{n}')\n"
        "print(outcome(lambda: os.symlink('x' * 1_000_000, '/ws/long')))"
    )
    assert (await box.python(program)).stdout.strip() == b"ENAMETOOLONG"
    with pytest.raises((PathEscapes, FileProblem)):
        await box.sandbox.read("l0")
    assert len((await box.sandbox.patch()).paths) == 10


async def test_folders_without_rights(box: Box) -> None:
    program = (
        "os.mkdir('/ws/shut'); put('/ws/shut/f', 'x'); os.chmod('/ws/shut', 0)\n"
        "put('/ws/no', 'x'); os.chmod('/ws/no', 0); put('/ws/yes', 'x')"
    )
    assert (await box.python(program)).exit == 0
    assert "yes" in (await box.sandbox.patch()).paths
    await box.sandbox.exec(["chmod", "-R", "u+rwX", "/ws"])


async def test_files_that_change_while_they_are_taken_out(box: Box) -> None:
    sandbox = box.sandbox
    program = (
        "n = 0\n"
        "while True:\n"
        "    n += 1\n"
        "    for name in ('a', 'b', 'c'):\n"
        "        path = f'/ws/{name}'\n"
        "        try: os.unlink(path)\n"
        "        except IsADirectoryError: os.rmdir(path)\n"
        "        except FileNotFoundError: pass\n"
        "        (lambda: put(path, 'x' * n), lambda: os.mkdir(path), lambda: os.symlink('/etc/passwd', path), lambda: os.mkfifo(path))[n % 4]()\n"
    )
    job = await sandbox.exec(["python3", "-c", f"{INSIDE}\n{program}"], background=True)
    assert job.job is not None
    for _ in range(10):
        async with asyncio.timeout(30):
            await sandbox.checkpoint()
    await sandbox.kill(job.job)
    await sandbox.exec(["rm", "-rf", "/ws/a", "/ws/b", "/ws/c"])
    assert not {"a", "b", "c"} & set((await sandbox.patch()).paths)


# The host checks the supervisor's paths too: an attacker who exploits the kernel could replace the supervisor.
@pytest.mark.parametrize(
    "path",
    ["../x", "/etc/x", "a/../../x", ".git/config", ".GIT/hooks/x", "a//b", "./a", "", "a/", "..", "git~1/x"],
)
async def test_a_supervisor_that_lies_about_paths(tmp_path: Path, path: str) -> None:
    (tmp_path / "tree").mkdir()
    workspace = Workspace.from_folder(TreeStore(tmp_path / "trees.git"), tmp_path / "tree", [])
    try:
        tree = workspace.commit_changes(workspace.base, [(path, 0o100644, b"x")], [])
        paths = workspace.patch(tree).paths
    except SandboxError:
        return
    assert path not in paths
    assert not any(inside_git(p) or ".." in p or p.startswith("/") for p in paths)
