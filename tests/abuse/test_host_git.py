"""Git on the host, after the sandbox wrote files that make git run programs: none may run or reach the user's files."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from m3agent.agent.delivery.apply import apply_to_work_tree, commit_to_branch
from m3agent.agent.repo.repository import open_repository
from m3agent.sandbox.errors import PathEscapes
from tests.abuse.box import Box

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module"), pytest.mark.supervisor]

MakeRepo = Callable[..., Path]
HOOKS = ["pre-commit", "post-checkout", "post-index-change", "post-commit", "post-merge", "pre-applypatch", "reference-transaction", "fsmonitor-watchman", "pre-push"]  # fmt: skip
CONFIG = """
[core]
	fsmonitor = {run}
	hooksPath = .githooks
	sshCommand = {run}
	editor = {run}
	pager = {run}
	attributesFile = .gitattributes
	worktree = /
[filter "evil"]
	clean = {run}; cat
	smudge = {run}; cat
	process = {run}
	required = true
[diff]
	external = {run}
[diff "evil"]
	textconv = {run}; cat
	command = {run}
[merge "evil"]
	driver = {run}
[alias]
	status = !{run}
[credential]
	helper = !{run}
[gpg]
	program = {run}
[commit]
	gpgSign = true
[include]
	path = ../evil.config
[extensions]
	worktreeConfig = true
[submodule "x"]
	url = ext::{run}
	update = !{run}
[remote "origin"]
	url = ext::{run}
	uploadpack = {run}
"""
# changes to .git and around it; an ordinary change of a.py follows each
ATTACKS = {
    "config": "put('/ws/.git/config', CONFIG)",
    "config-of-work-tree": "put('/ws/.git/config', CONFIG); put('/ws/.git/config.worktree', CONFIG)",
    "hooks": (
        "os.makedirs('/ws/.git/hooks', exist_ok=True)\n"
        "for hook in HOOKS:\n"
        "    put(f'/ws/.git/hooks/{hook}', SCRIPT); os.chmod(f'/ws/.git/hooks/{hook}', 0o755)"
    ),
    "attributes-in-git-folder": "put('/ws/.git/config', CONFIG); os.makedirs('/ws/.git/info', exist_ok=True); put('/ws/.git/info/attributes', '* filter=evil diff=evil merge=evil\\n')",
    "git-file-elsewhere": "shutil.rmtree('/ws/.git', True); os.mkdir('/ws/elsewhere'); put('/ws/elsewhere/config', CONFIG); put('/ws/.git', 'gitdir: elsewhere\\n')",
    "git-folder-is-a-link": "shutil.rmtree('/ws/.git', True); os.mkdir('/tmp/g'); put('/tmp/g/config', CONFIG); os.symlink('/tmp/g', '/ws/.git')",
    "alternates": "os.makedirs('/ws/.git/objects/info', exist_ok=True); put('/ws/.git/objects/info/alternates', '/etc\\n')",
    "index": "open('/ws/.git/index', 'wb').write(b'DIRC' + os.urandom(500))",
    "nested-repository": "os.makedirs('/ws/n/.git/hooks'); put('/ws/n/.git/config', CONFIG); put('/ws/n/.git/HEAD', 'ref: x\\n'); put('/ws/n/f.py', 'x = 1\\n')",
    "user-configuration": "os.makedirs(os.path.expanduser('~'), exist_ok=True); put(os.path.expanduser('~/.gitconfig'), CONFIG); put('/ws/.gitconfig', CONFIG)",
    "hooks-folder-in-tree": "put('/ws/.git/config', CONFIG); os.mkdir('/ws/.githooks'); put('/ws/.githooks/pre-commit', SCRIPT); os.chmod('/ws/.githooks/pre-commit', 0o755)",
}  # fmt: skip
REFUSED = {
    "attributes": "put('/ws/.gitattributes', '* filter=evil diff=evil merge=evil\\n'); put('/ws/.git/config', CONFIG)",
    "submodules": "put('/ws/.gitmodules', '[submodule \"x\"]\\n path = x\\n url = ext::touch% owned\\n update = !touch owned\\n')",
    "attributes-below": "os.mkdir('/ws/sub'); put('/ws/sub/.gitattributes', '* filter=evil\\n')",
}
FILES: dict[str, str | bytes] = {"a.py": "x = 1\n", "b.py": "y = 1\n"}


def attack(name: str, owned: Path) -> str:
    run = f"touch {owned}"
    return (
        f"import shutil\nCONFIG = {CONFIG.replace('{run}', run)!r}\nHOOKS = {HOOKS!r}\nSCRIPT = '#!/bin/sh\\n{run}\\n'\n"
        f"os.makedirs('/ws/.git', exist_ok=True)\n{ {**ATTACKS, **REFUSED}[name] }\nput('/ws/a.py', 'x = 2\\n')"
    )


def of_user(repo: Path, *command: str) -> None:
    """Run a git command as a user would next, with the user's own configuration."""
    subprocess.run(["git", *command], cwd=repo, check=True, capture_output=True)


@pytest.mark.parametrize("name", ATTACKS)
async def test_no_planted_program_runs_on_the_host(
    box: Box, make_repo: MakeRepo, tmp_path: Path, name: str
) -> None:
    repo, owned, sandbox = make_repo(FILES), tmp_path / "owned", box.sandbox
    await sandbox.rollback(sandbox.workspace.base)
    done = await box.python(attack(name, owned))
    assert done.exit == 0, done.stderr.decode()
    await sandbox.checkpoint()
    patch = await sandbox.patch()
    await sandbox.rollback(patch.base)
    await sandbox.rollback(patch.tree)
    workspace = sandbox.workspace
    assert "a.py" in patch.paths
    repository = open_repository(repo)
    commit_to_branch(repository, workspace, patch, "fixed", "Fix it\n")
    apply_to_work_tree(repository, workspace, patch)
    assert (repo / "a.py").read_text() == "x = 2\n"
    for command in (
        ["status"],
        ["diff"],
        ["add", "-A"],
        ["commit", "-qm", "x"],
        ["log", "-p"],
        ["checkout", "-q", "fixed"],
    ):
        of_user(repo, *command)
    assert not owned.exists()
    assert not any(path.startswith(".git/") or "/.git" in path for path in patch.paths)


@pytest.mark.parametrize("name", REFUSED)
async def test_git_control_files_in_a_patch_are_refused(
    box: Box, make_repo: MakeRepo, tmp_path: Path, name: str
) -> None:
    owned = tmp_path / "owned"
    await box.sandbox.rollback(box.sandbox.workspace.base)
    done = await box.python(attack(name, owned))
    assert done.exit == 0, done.stderr.decode()
    with pytest.raises(PathEscapes):
        await box.sandbox.patch()
    assert not owned.exists()


async def test_git_that_reads_the_configuration_runs_the_program(make_repo: MakeRepo, tmp_path: Path) -> None:
    """Counter-check of the refusals above: a git that reads this configuration does run the program."""
    repo, owned = make_repo(FILES), tmp_path / "owned"
    (repo / ".git" / "config").open("a").write(f"[core]\n fsmonitor = touch {owned}\n")
    of_user(repo, "status")
    assert owned.exists()


RUNS_LATER = ["conftest.py", "sub/conftest.py", "sitecustomize.py", "x.pth", ".github/workflows/x.yml", ".vscode/tasks.json", ".envrc", ".pre-commit-config.yaml",
              "setup.py", "Makefile", ".husky/pre-commit", ".devcontainer/devcontainer.json", ".gitlab-ci.yml", "pytest.ini", "tox.ini"]  # fmt: skip


async def test_files_that_run_later_are_named(box: Box) -> None:
    program = f"for name in {RUNS_LATER!r}:\n    os.makedirs(os.path.dirname('/ws/' + name), exist_ok=True); put('/ws/' + name, 'x')"
    assert (await box.python(program)).exit == 0
    patch = await box.sandbox.patch()
    assert set(RUNS_LATER) <= set(patch.runs_later)


ARCHIVE = """
import io, tarfile, zipfile
with tarfile.open('/ws/evil.tar', 'w') as archive:
    for name, kind, target in (('../../escaped', tarfile.REGTYPE, ''), ('/tmp/escaped', tarfile.REGTYPE, ''), ('l', tarfile.SYMTYPE, '/etc'), ('l/escaped', tarfile.REGTYPE, ''),
                               ('h', tarfile.LNKTYPE, '../../etc/passwd'), ('dev', tarfile.CHRTYPE, ''), ('.git/config', tarfile.REGTYPE, '')):
        info = tarfile.TarInfo(name); info.type, info.linkname, info.mode = kind, target, 0o6755; archive.addfile(info)
with zipfile.ZipFile('/ws/evil.zip', 'w') as archive: archive.writestr('../../escaped', 'x')
with zipfile.ZipFile('/ws/bomb.zip', 'w', zipfile.ZIP_DEFLATED) as archive: archive.writestr('bomb', bytes(40 << 20))
put('/ws/evil.patch', '--- /dev/null\\n+++ b/../../escaped\\n@@ -0,0 +1 @@\\n+x\\n')
"""


async def test_archives_come_out_as_files_and_are_never_unpacked(
    box: Box, make_repo: MakeRepo, tmp_path: Path
) -> None:
    repo, sandbox = make_repo(FILES), box.sandbox
    await sandbox.rollback(sandbox.workspace.base)
    done = await box.python(ARCHIVE)
    assert done.exit == 0, done.stderr.decode()
    patch = await sandbox.patch()
    apply_to_work_tree(open_repository(repo), sandbox.workspace, patch)
    names = {"evil.tar", "evil.zip", "bomb.zip", "evil.patch"}
    assert set(patch.paths) == names
    assert {path.name for path in repo.iterdir()} == {*names, *FILES, ".git"}
    assert not list(tmp_path.rglob("escaped"))
