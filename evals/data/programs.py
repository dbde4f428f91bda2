"""Read folders of small programs like QuixBugs: a faulty module, its tests, and the corrected module.

programs/NAME/NAME.py          the faulty module
programs/NAME/test_NAME.py     its tests, for pytest
programs/NAME/ISSUE.md         the statement
programs/NAME/...              other files that it needs
gold/NAME.py                   the corrected module
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from m3agent.evals.data.files import commit_folder, id_of, read_statement, unreadable, within
from m3agent.evals.data.instance import Answer, DataError, Environment, Instance, Source, Task
from m3agent.sandbox.errors import SandboxError
from m3agent.sandbox.store.git import TreeEntry, TreeStore
from m3agent.util.errors import EnvironmentFault

PROGRAMS, GOLD, STATEMENT = "programs", "gold", "ISSUE.md"

TIMEOUT = 60.0
"""Time limit for the tests of one program, in seconds.

The tests of a correct program take two seconds at most; a faulty one may loop forever.
"""


def program_names(folder: Path) -> list[str]:
    """Return the names of a folder's programs in alphabetical order.

    Raises:
        DataError: The folder cannot be read, or a name cannot be an instance's id.
    """
    try:
        names = sorted(path.name for path in (folder / PROGRAMS).iterdir() if path.is_dir())
    except OSError as error:
        raise unreadable(folder / PROGRAMS, error) from None
    return [id_of(folder / PROGRAMS / name) for name in names if not name.startswith((".", "__"))]


def read_program(folder: Path, name: str) -> Instance:
    """Return a program as an instance. The base contains its tests, and a patch may change only the module.

    Raises:
        DataError: A file is missing, is not text or leads out of the folder; or the program has no fault.
        EnvironmentFault: git or the disk fails.
    """
    program = folder / PROGRAMS / name
    for needed in (f"{name}.py", f"test_{name}.py"):
        within(program, needed, f"{program}:")
    statement = read_statement(within(program, STATEMENT, f"{program}:"))
    gold = within(folder / GOLD, f"{name}.py", f"{folder}:")
    try:
        commit, patch = _base_and_patch(program, f"{name}.py", gold.read_bytes())
    except OSError as error:
        raise unreadable(gold, error) from None
    except SandboxError as error:
        raise EnvironmentFault(str(error)) from None
    if not patch:
        raise DataError(f"{gold} is identical to {program / f'{name}.py'}: there is nothing to fix")
    try:
        text = patch.decode()
    except UnicodeDecodeError:
        raise DataError(f"{gold} or {program / f'{name}.py'} is not UTF-8") from None
    return Instance(
        task=Task(
            instance_id=name,
            repo=name,
            base_commit=commit,
            statement=statement,
            source=Source(kind="folder", location=str(program.resolve())),
            environment=Environment(pip_packages=("pytest",)),
        ),
        answer=Answer(
            patch=text,
            fail_to_pass=(),
            test_command="python -m pytest -q",
            only=(f"{name}.py",),
            timeout=TIMEOUT,
        ),
    )


def _base_and_patch(program: Path, path: str, gold: bytes) -> tuple[str, bytes]:
    """Return the commit id of a program's folder, and the diff that replaces one of its files by `gold`."""
    with tempfile.TemporaryDirectory() as temporary:
        store = TreeStore(Path(temporary) / "store.git")
        commit = commit_folder(store, program)
        blob = store.put_blob(gold)
        entries = [
            TreeEntry(e.path, e.mode, blob if e.path == path else e.sha) for e in store.list_tree(commit)
        ]
        return commit, store.diff(commit, store.write_tree(entries))
