"""The sandbox's contract with the agent's core: on Docker, on bubblewrap, and in memory, as the core's tests use it.

Commands are shell scripts. For the sandbox in memory, a function does the same as each script.
"""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from m3agent.sandbox.backends.factory import SandboxSpec, new_sandbox
from m3agent.sandbox.backends.sandbox import Sandbox
from m3agent.sandbox.errors import FileProblem, PathEscapes, SandboxDied
from m3agent.sandbox.store.git import TreeEntry, TreeStore
from m3agent.sandbox.store.workspace import Workspace
from tests.agent.repositories import write_files
from tests.conftest import backend_here
from tests.fakes.files import EXECUTABLE, LINK, REGULAR
from tests.fakes.machine import Command, Done, sandbox_over
from tests.fakes.trees import MemoryTrees

REAL = [
    pytest.param(kind, marks=[pytest.mark.integration, getattr(pytest.mark, kind)])
    for kind in ("docker", "bwrap")
]

AnySandbox = Callable[..., Sandbox]
SCRIPTS: dict[str, Callable[[Command], Done]] = {}


def does(script: str) -> Callable[[Callable[[Command], Done]], Callable[[Command], Done]]:
    """Register a function that replaces a shell script in the sandbox in memory."""

    def mark(function: Callable[[Command], Done]) -> Callable[[Command], Done]:
        SCRIPTS[script] = function
        return function

    return mark


async def shell(command: Command) -> Done | None:
    """The only program of the sandbox in memory."""
    if command.argv[0] != "sh":
        return None
    if command.argv[2] == HANG:
        await asyncio.Event().wait()
    return SCRIPTS[command.argv[2]](command)


@pytest.fixture(params=["memory", *REAL])
def any_sandbox(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    workspace_of: Callable[[Mapping[str, str | bytes]], Workspace],
) -> AnySandbox:
    """Make a sandbox of each kind with the given files."""
    if request.param == "memory":
        return lambda files: sandbox_over(tmp_path, files, shell)
    backend = backend_here(request.param)
    return lambda files: new_sandbox(backend, SandboxSpec(backend), workspace_of(files), lambda _: None)


async def test_a_file_that_is_too_large_stays_out_of_the_sandbox_and_in_the_tree(
    any_sandbox: AnySandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("m3agent.sandbox.backends.sandbox.LARGEST_FILE", 5)
    told = list[str]()
    sandbox = any_sandbox({"large.bin": "123456", "a.txt": "1"})
    sandbox._say = told.append
    async with sandbox:
        with pytest.raises(FileProblem):
            await sandbox.read("large.bin")
        await sandbox.write("a.txt", b"2")
        assert (await sandbox.patch()).paths == ("a.txt",)
        await sandbox.rollback(sandbox.workspace.base)
        assert await sandbox.read("a.txt") == b"1"
    assert told == ["not copied into sandboxes, because larger than 100 MiB: large.bin"]


FILES = {"a.txt": "a\n", "sub/b.txt": "b\n"}
TALK = "cat; echo out; echo err >&2; exit 3"
OTHER = "echo other"
HANG = "sleep 300"


@does(TALK)
def talk(command: Command) -> Done:
    return Done(3, command.stdin + b"out\n", b"err\n")


@does(OTHER)
def other(_: Command) -> Done:
    return Done(stdout=b"other\n")


async def test_what_a_command_did(any_sandbox: AnySandbox, tmp_path: Path) -> None:
    log = tmp_path / "out.log"
    async with any_sandbox(FILES) as sandbox:
        done = await sandbox.exec(["sh", "-c", TALK], stdin=b"in\n", log=log)
        assert (done.exit, done.stdout, done.stderr) == (3, b"in\nout\n", b"err\n")
        assert (done.total_bytes, done.omitted, done.timed_out, done.oom) == (11, (0, 0), False, False)
        assert sorted(log.read_bytes().splitlines()) == [b"err", b"in", b"out"]
        assert (await sandbox.exec(["sh", "-c", TALK], stdin=b"in\n")).digest == done.digest
        assert (await sandbox.exec(["sh", "-c", OTHER])).digest != done.digest


async def test_a_command_that_cannot_be_run(any_sandbox: AnySandbox) -> None:
    async with any_sandbox(FILES) as sandbox:
        missing = await sandbox.exec(["no-such-program"])
        assert (missing.exit, missing.stdout) == (127, b"")
        assert b"no-such-program" in missing.stderr
        nowhere = await sandbox.exec(["sh", "-c", OTHER], cwd="no/such/folder")
        assert nowhere.exit == 127
        assert b"no/such/folder" in nowhere.stderr
        assert (await sandbox.exec(["sh", "-c", OTHER], cwd="sub")).exit == 0


MANY = "head -c 200000 /dev/zero; echo; echo end"


@does(MANY)
def many(_: Command) -> Done:
    return Done(stdout=bytes(200_000) + b"\nend\n")


async def test_long_output_is_kept_head_and_tail(any_sandbox: AnySandbox) -> None:
    async with any_sandbox(FILES) as sandbox:
        done = await sandbox.exec(["sh", "-c", MANY], keep=100)
        assert done.stdout == bytes(100) + bytes(95) + b"\nend\n"
        assert (done.total_bytes, done.omitted) == (200_005, (200_005 - 200, 0))


async def test_a_command_that_is_cancelled_leaves_the_sandbox_in_use(any_sandbox: AnySandbox) -> None:
    async with any_sandbox(FILES) as sandbox:
        running = asyncio.ensure_future(sandbox.exec(["sh", "-c", HANG], timeout=300))
        await sandbox.ping()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert (await sandbox.exec(["sh", "-c", OTHER])).stdout == b"other\n"


async def test_a_sandbox_that_ended_is_an_error_and_no_result(any_sandbox: AnySandbox) -> None:
    async with any_sandbox(FILES) as sandbox:
        running = asyncio.ensure_future(sandbox.exec(["sh", "-c", HANG], timeout=300))
        await sandbox.ping()
        await sandbox.machine.destroy()
        for asked in (
            running,
            sandbox.exec(["sh", "-c", OTHER]),
            sandbox.read("a.txt"),
            sandbox.checkpoint(),
        ):
            with pytest.raises(SandboxDied):
                await asked


LINKS = "mkdir deep; echo b > deep/b.txt; ln -s deep in; ln -s /etc/passwd out; ln -s /ws/a.txt here; ln -s ../x up; ln -s me me"


@does(LINKS)
def links(command: Command) -> Done:
    command.files.write("deep/b.txt", b"b\n")
    for name, target in (
        ("in", "deep"),
        ("out", "/etc/passwd"),
        ("here", "/ws/a.txt"),
        ("up", "../x"),
        ("me", "me"),
    ):
        command.files.link(name, target)
    return Done()


async def test_files_are_read_and_written_inside_the_work_tree_only(any_sandbox: AnySandbox) -> None:
    async with any_sandbox(FILES) as sandbox:
        content = bytes(range(256)) * 40
        await sandbox.write("new/er/c.bin", content)
        assert await sandbox.read("new/er/c.bin") == content
        assert await sandbox.read("new/er/c.bin", limit=10) == content[:10]
        assert await sandbox.read("/ws/./sub/../a.txt") == b"a\n"
        await sandbox.exec(["sh", "-c", LINKS])
        assert await sandbox.read("in/b.txt") == b"b\n"
        assert await sandbox.read("here") == b"a\n"
        await sandbox.write("in/b.txt", b"changed\n")
        assert await sandbox.read("deep/b.txt") == b"changed\n"
        for path in ("../x", "/etc/passwd", "out", "out/x", "up", "a/../../x", "", ".", "sub/.."):
            with pytest.raises(PathEscapes):
                await sandbox.read(path)
            with pytest.raises(PathEscapes):
                await sandbox.write(path, b"x")
        with pytest.raises(PathEscapes):
            await sandbox.read("me")
        for path in ("missing", "deep", "a.txt/below", "no/such"):
            with pytest.raises(FileProblem):
                await sandbox.read(path)
        for path in ("deep", "a.txt/below"):
            with pytest.raises(FileProblem):
                await sandbox.write(path, b"x")
        assert (await sandbox.read("a.txt"), await sandbox.read("deep/b.txt")) == (b"a\n", b"changed\n")


async def test_a_written_file_keeps_its_mode(any_sandbox: AnySandbox) -> None:
    async with any_sandbox({"run.sh": "echo\n"}) as sandbox:
        await sandbox.exec(["sh", "-c", EXECUTE])
        await sandbox.write("run.sh", b"echo more\n")
        tree = await sandbox.checkpoint()
        assert sandbox.workspace.entries(tree)["run.sh"].mode == EXECUTABLE


EXECUTE = "chmod +x run.sh"


@does(EXECUTE)
def execute(command: Command) -> Done:
    command.files.chmod("run.sh", EXECUTABLE)
    return Done()


PROJECT: dict[str, str | bytes] = {
    "a.py": "one\ntwo\n",
    "gone.py": "x\n",
    ".gitignore": "*.log\nbuild/\n",
    "run.sh": "echo\n",
    "bin.dat": b"\0\1",
}
WORK = (
    "echo three >> a.py; rm gone.py; echo n > new.py; echo l > x.log; mkdir -p build __pycache__; "
    "echo b > build/b; echo p > __pycache__/p.pyc; chmod +x run.sh; ln -s a.py link; printf '*.py' > sub.txt; "
    "mkdir sub; echo '*' > sub/.gitignore; echo s > sub/s.py"
)


@does(WORK)
def work(command: Command) -> Done:
    files = command.files
    files.write("a.py", b"one\ntwo\nthree\n")
    files.remove("gone.py")
    for path, content in (
        ("new.py", b"n\n"),
        ("x.log", b"l\n"),
        ("build/b", b"b\n"),
        ("__pycache__/p.pyc", b"p\n"),
        ("sub.txt", b"*.py"),
        ("sub/.gitignore", b"*\n"),
        ("sub/s.py", b"s\n"),
    ):
        files.write(path, content)
    files.chmod("run.sh", EXECUTABLE)
    files.link("link", "a.py")
    return Done()


async def test_checkpoint_patch_and_rollback(any_sandbox: AnySandbox) -> None:
    async with any_sandbox(PROJECT) as sandbox:
        base = sandbox.tree
        assert base == sandbox.workspace.base
        assert await sandbox.checkpoint() == base
        assert (await sandbox.patch()).empty
        await sandbox.exec(["sh", "-c", WORK])
        changed = await sandbox.checkpoint()
        assert changed == sandbox.tree != base
        # a .gitignore written in the sandbox hides nothing; the base's rules and the usual build files are left out
        wanted = [
            *(("M", "a.py"), ("D", "gone.py"), ("A", "link"), ("A", "new.py"), ("M", "run.sh")),
            *(("A", "sub.txt"), ("A", "sub/.gitignore"), ("A", "sub/s.py")),
        ]
        assert sandbox.workspace.store.changed_paths(base, changed) == wanted
        entries = sandbox.workspace.entries(changed)
        assert [entries[path].mode for path in ("a.py", "link", "run.sh")] == [REGULAR, LINK, EXECUTABLE]
        assert sandbox.workspace.store.get_blob(entries["link"].sha) == b"a.py"
        patch = await sandbox.patch()
        assert (patch.base, patch.tree, patch.paths) == (base, changed, tuple(path for _, path in wanted))
        assert b"+three" in patch.text
        await sandbox.rollback(base)
        assert sandbox.tree == base
        assert (await sandbox.patch()).empty
        assert await sandbox.read("a.py") == b"one\ntwo\n"
        assert await sandbox.read("gone.py") == b"x\n"
        assert await sandbox.read("x.log") == b"l\n", "what is ignored stays"
        with pytest.raises(FileProblem):
            await sandbox.read("new.py")
        await sandbox.rollback(changed)
        assert (await sandbox.patch()).text == patch.text


WORK_IN_PART = "echo 2 > part/a.txt; echo 2 > part/b.txt; echo 2 > a.txt; rm part/gone.txt"


@does(WORK_IN_PART)
def work_in_part(command: Command) -> Done:
    for path in ("part/a.txt", "part/b.txt", "a.txt"):
        command.files.write(path, b"2\n")
    command.files.remove("part/gone.txt")
    return Done()


async def test_no_state_has_a_change_in_a_submodule(any_sandbox: AnySandbox) -> None:
    async with any_sandbox({"a.txt": "1\n", "part/a.txt": "1\n", "part/gone.txt": "1\n"}) as sandbox:
        sandbox.workspace.store.note_submodules(["part"])
        await sandbox.exec(["sh", "-c", WORK_IN_PART])
        assert (await sandbox.patch()).paths == ("a.txt",)
        assert set(sandbox.left_out) == {"part/a.txt", "part/b.txt"}


async def test_a_tree_is_known_by_its_files(any_sandbox: AnySandbox) -> None:
    async with any_sandbox(FILES) as sandbox:
        base = sandbox.tree
        await sandbox.write("a.txt", b"changed\n")
        changed = await sandbox.checkpoint()
        await sandbox.write("a.txt", b"a\n")
        assert await sandbox.checkpoint() == base
        await sandbox.write("a.txt", b"changed\n")
        assert await sandbox.checkpoint() == changed


REPLACE = "rm a.txt; mkdir a.txt; echo x > a.txt/x; rm -r sub; echo s > sub"


@does(REPLACE)
def replace(command: Command) -> Done:
    command.files.remove("a.txt")
    command.files.write("a.txt/x", b"x\n")
    command.files.remove("sub")
    command.files.write("sub", b"s\n")
    return Done()


async def test_a_file_in_the_place_of_a_folder_and_back(any_sandbox: AnySandbox) -> None:
    async with any_sandbox(FILES) as sandbox:
        base = sandbox.tree
        await sandbox.exec(["sh", "-c", REPLACE])
        changed = await sandbox.checkpoint()
        assert sorted(sandbox.workspace.entries(changed)) == ["a.txt/x", "sub"]
        await sandbox.rollback(base)
        assert (await sandbox.read("a.txt"), await sandbox.read("sub/b.txt")) == (b"a\n", b"b\n")
        await sandbox.rollback(changed)
        assert await sandbox.read("a.txt/x") == b"x\n"


REFUSED = {
    "ln -s /etc/passwd out": lambda files: files.link("out", "/etc/passwd"),
    "ln -s ../../x out": lambda files: files.link("out", "../../x"),
    "printf x > .gitattributes": lambda files: files.write(".gitattributes", b"x"),
    "printf x > .gitmodules": lambda files: files.write(".gitmodules", b"x"),
}


@pytest.mark.parametrize("script", REFUSED)
async def test_patches_that_are_never_handed_over(any_sandbox: AnySandbox, script: str) -> None:
    @does(script)
    def _(command: Command) -> Done:
        REFUSED[script](command.files)
        return Done()

    async with any_sandbox(FILES) as sandbox:
        await sandbox.exec(["sh", "-c", script])
        with pytest.raises(PathEscapes):
            await sandbox.patch()


HOSTILE = (
    "rm -rf .git; mkdir .git; printf '[core]\\n fsmonitor = touch /tmp/m3agent-owned\\n' > .git/config; "
    "mkdir -p n/.git; echo x > n/.git/config; echo y > n/f.py"
)


@does(HOSTILE)
def hostile(command: Command) -> Done:
    for path in (".git/config", "n/.git/config", "n/f.py"):
        command.files.write(path, b"x\n")
    return Done()


async def test_what_the_sandbox_makes_of_git_is_never_read(any_sandbox: AnySandbox) -> None:
    async with any_sandbox(FILES) as sandbox:
        await sandbox.exec(["sh", "-c", HOSTILE])
        assert (await sandbox.patch()).paths == ("n/f.py",)


LARGE = "head -c 11000000 /dev/zero > big.bin; echo s > small.txt"


@does(LARGE)
def large(command: Command) -> Done:
    command.files.write("big.bin", bytes(11_000_000))
    command.files.write("small.txt", b"s\n")
    return Done()


async def test_large_new_files_are_left_out_with_a_note(any_sandbox: AnySandbox) -> None:
    async with any_sandbox(FILES) as sandbox:
        await sandbox.exec(["sh", "-c", LARGE])
        assert (await sandbox.patch()).paths == ("small.txt",)
        assert list(sandbox.left_out) == ["big.bin"]


@pytest.fixture(params=["memory", "git"])
def any_store(request: pytest.FixtureRequest, tmp_path: Path) -> TreeStore:
    """A tree store of each kind."""
    return MemoryTrees(tmp_path) if request.param == "memory" else TreeStore(tmp_path / "trees.git")


def tree_of(store: TreeStore, files: Mapping[str, str | bytes], mode: int = REGULAR) -> str:
    contents = {path: text if isinstance(text, bytes) else text.encode() for path, text in files.items()}
    return store.write_tree(TreeEntry(path, mode, store.put_blob(data)) for path, data in contents.items())


def test_trees_differ_if_their_content_differs(any_store: TreeStore) -> None:
    files = {"b/c.txt": "c\n", "a.txt": "a\n", "b.txt": ""}
    tree = tree_of(any_store, files)
    assert tree_of(any_store, dict(reversed(files.items()))) == tree
    assert tree_of(any_store, files, EXECUTABLE) != tree
    entries = any_store.list_tree(tree)
    assert [(entry.path, entry.mode) for entry in entries] == [
        (path, REGULAR) for path in ("a.txt", "b.txt", "b/c.txt")
    ]
    assert any_store.get_blobs([entry.sha for entry in entries]) == [b"a\n", b"", b"c\n"]


def test_a_tree_s_patch_is_one_that_git_takes(any_store: TreeStore, tmp_path: Path) -> None:
    before = {"same.txt": b"s\n", "a.txt": b"one\ntwo\x0b\nthree\r\ncaf\xe9\n", "gone.txt": b"g\n"}
    after = {"same.txt": b"s\n", "a.txt": b"one\n2\x0b\nthree\r\ncaf\xe9\n", "d/new.txt": b"no end"}
    old, new = tree_of(any_store, before), tree_of(any_store, after)
    folder = tmp_path / "work"
    write_files(folder, before)
    for patch in (any_store.diff(old, new), any_store.diff(new, old), any_store.diff(old, new)):
        subprocess.run(["git", "apply", "-"], cwd=folder, input=patch, check=True)
    found = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert found == after
    assert any_store.diff(old, old) == b""
