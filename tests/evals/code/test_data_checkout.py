"""Checkouts contain one commit with its own id, and nothing from before or after it."""

from __future__ import annotations

import io
import os
import shutil
import stat
import subprocess
import tarfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from m3agent.evals.code.checkout import checkout, prove
from m3agent.evals.data.instance import DataError, Source, Task
from m3agent.evals.data.load import load
from m3agent.util.errors import EnvironmentFault
from tests.agent.repositories import write_files
from tests.conftest import git
from tests.evals.data_rows import SHARED

SECRET = "the-fix-that-nobody-may-see"


@pytest.fixture
def upstream(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with older commits, a base (branch `base`), and a later fix, in branches, tags and reflogs."""
    made_once = tmp_path_factory.getbasetemp() / "upstream"
    if not made_once.exists():
        make_upstream(made_once)
    return Path(shutil.copytree(made_once, tmp_path / "upstream", symlinks=True))


def make_upstream(repo: Path) -> None:
    write_files(repo, {"calc.py": "old\n"})
    git(repo, "init", "-q")
    for content in ("first\n", "base\n", f"{SECRET}\n"):
        write_files(
            repo, {"calc.py": content.encode(), "pkg/data.bin": b"\0\r\n\xff", "run.sh": b"#!/bin/sh\n"}
        )
        (repo / "run.sh").chmod(0o755)
        if not (repo / "link").is_symlink():
            (repo / "link").symlink_to("calc.py")
        git(repo, "add", "-A")
        git(repo, "commit", "-q", "-m", content)
        git(repo, "branch", content.strip().replace(SECRET, "fixed"))
        git(repo, "tag", "-a", "-m", content, f"v-{content.strip()}")


@pytest.fixture
def archive(upstream: Path, tmp_path: Path) -> Path:
    """A tar of a bare clone of it, with all its branches."""
    git(tmp_path, "clone", "-q", "--bare", str(upstream), "calc.git")
    return tarred(tmp_path / "calc.git", tmp_path / "calc.git.tar.gz")


def tarred(folder: Path, target: Path) -> Path:
    with tarfile.open(target, "w:gz") as tar:
        tar.add(folder, folder.name)
    return target


def a_task(kind: str, location: Path | str, ref: str = "refs/heads/base", base: str = "") -> Task:
    source = Source.model_validate({"kind": kind, "location": str(location), "ref": ref})
    return Task(instance_id="calc-1", repo="calc", base_commit=base, statement="x", source=source)


def everything_in(repository: Path) -> bytes:
    """Return the content of all objects of a repository and of every file of its git folder."""
    names = git(repository, "cat-file", "--batch-all-objects", "--batch-check=%(objectname)")
    objects = subprocess.run(
        ["git", "cat-file", "--batch"], cwd=repository, input=names.encode(), capture_output=True, check=True
    ).stdout
    return objects + b"".join(
        path.read_bytes() for path in (repository / ".git").rglob("*") if path.is_file()
    )


@pytest.mark.parametrize("form", ["archive", "path", "file URL", "bare", "mirror", "packed mirror"])
def test_a_checkout_is_the_base_with_its_own_id_and_nothing_else(
    upstream: Path, archive: Path, tmp_path: Path, form: str
) -> None:
    base = git(upstream, "rev-parse", "base")
    locations: dict[str, Path | str] = {
        "archive": archive,
        "path": upstream,
        "file URL": (tmp_path / "a folder").as_uri(),
        "bare": tmp_path / "calc.git",
        "mirror": tmp_path / "calc.git",
        "packed mirror": tmp_path / "mirror.tar.gz",
    }
    (tmp_path / "a folder").symlink_to(upstream)  # its address has %20
    if "mirror" in form:  # copies for reading often have only the history
        git(tmp_path / "calc.git", "pack-refs", "--all")
        (tmp_path / "calc.git/config").unlink()
    if form == "packed mirror":  # and no empty folders
        shutil.rmtree(tmp_path / "calc.git/refs")
        tarred(tmp_path / "calc.git", tmp_path / "mirror.tar.gz")
    target = tmp_path / "target"
    kind = "archive" if form in {"archive", "packed mirror"} else "git"
    proof = checkout(a_task(kind, locations[form], base=base), target)
    assert git(target, "rev-parse", "HEAD") == base == proof.head
    assert git(target, "log", "--all", "--reflog", "--format=%H") == base
    assert git(target, "for-each-ref", "--format=%(refname)") == "refs/heads/main"
    assert git(target, "rev-parse", "HEAD^{tree}") == git(upstream, "rev-parse", "base^{tree}")
    assert git(target, "status", "--porcelain") == ""
    assert git(target, "remote") == git(target, "reflog") == git(target, "tag") == ""
    git(target, "fsck", "--strict")
    content = everything_in(target)
    assert SECRET.encode() not in content
    assert b"first\n" not in content
    assert str(upstream).encode() not in content, "nor does it say where it is from"
    assert proof.clean
    assert proof.matches
    assert (proof.commits, proof.objects, proof.reachable) == (1, 7, 7)


def test_files_come_out_as_they_are_in_the_commit(upstream: Path, tmp_path: Path) -> None:
    write_files(
        upstream,
        {
            ".gitattributes": "*.txt eol=crlf\n*.c ident\n*.f filter=evil\n",
            "a.txt": "a\n",
            "a.c": "$Id$\n",
            "a.f": "f\n",
        },
    )
    git(upstream, "add", "-A")
    git(upstream, "commit", "-q", "-m", "attributes")
    target = tmp_path / "target"
    assert checkout(a_task("git", upstream, "HEAD"), target).clean
    assert (target / "a.txt").read_bytes() == b"a\n"
    assert (target / "a.c").read_bytes() == b"$Id$\n"
    assert (target / "pkg/data.bin").read_bytes() == b"\0\r\n\xff"
    assert (target / "link").readlink() == Path("calc.py")
    assert (target / "run.sh").stat().st_mode & stat.S_IXUSR


def test_a_shallow_archive_of_several_bases_gives_only_the_one_that_is_named(
    upstream: Path, tmp_path: Path
) -> None:
    bare = tmp_path / "shallow.git"
    git(tmp_path, "init", "-q", "--bare", str(bare))
    for name in ("first", "base", "fixed"):
        git(
            bare, "fetch", "-q", "--depth=1", "--no-tags", upstream.as_uri(), f"{name}:refs/heads/base/{name}"
        )
    git(bare, "symbolic-ref", "HEAD", "refs/heads/nowhere")
    git(bare, "pack-refs", "--all")
    task = a_task(
        "archive",
        tarred(bare, tmp_path / "s.tar.gz"),
        "refs/heads/base/base",
        git(upstream, "rev-parse", "base"),
    )
    assert checkout(task, tmp_path / "target").clean
    assert SECRET.encode() not in everything_in(tmp_path / "target")
    assert (tmp_path / "target" / "calc.py").read_text() == "base\n"


def test_a_folder_gives_the_same_commit_wherever_and_whenever(tmp_path: Path) -> None:
    heads: list[str] = []
    for name in ("here", "there"):
        write_files(tmp_path / name, {"a.py": "a\n", "b/c.txt": b"\r\n", "__pycache__/a.pyc": name})
        os.utime(tmp_path / name / "a.py", (len(heads), len(heads)))
        proof = checkout(a_task("folder", tmp_path / name, ""), tmp_path / f"{name}-target")
        assert proof.clean
        assert proof.matches is None
        heads.append(proof.head)
    assert heads[0] == heads[1]
    assert (tmp_path / "here-target" / "b/c.txt").read_bytes() == b"\r\n"
    assert not (tmp_path / "here-target" / "__pycache__").exists()
    assert checkout(a_task("folder", tmp_path / "here", "", heads[0]), tmp_path / "again").matches
    write_files(tmp_path / "here", {"a.py": "b\n"})
    with pytest.raises(DataError, match="not the base"):
        checkout(a_task("folder", tmp_path / "here", "", heads[0]), tmp_path / "changed")


def test_repository_with_sha256_ids_is_accepted(tmp_path: Path) -> None:
    repo = tmp_path / "long"
    write_files(repo, {"a.py": "a\n"})
    git(repo, "init", "-q", "--object-format=sha256")
    git(repo, "add", "-A")
    git(repo, "commit", "-q", "-m", "one")
    base = git(repo, "rev-parse", "HEAD")
    git(tmp_path, "clone", "-q", "--bare", str(repo), "long.git")
    task = a_task("archive", tarred(tmp_path / "long.git", tmp_path / "long.tar"), base, base)
    assert checkout(task, tmp_path / "target").clean
    assert len(base) == 64


Spoil = Callable[[Path], object]
SPOILT: dict[str, Spoil] = {
    "a second commit": lambda r: git(r, "commit", "-q", "--allow-empty", "-m", "second"),
    "a tag": lambda r: git(r, "tag", "v1"),
    "a branch": lambda r: git(r, "branch", "other"),
    "a remote": lambda r: git(r, "remote", "add", "origin", "https://example.invalid/x"),
    "an unreachable commit": lambda r: git(r, "commit-tree", "-m", "hidden", "HEAD^{tree}"),
    "a loose object": lambda r: git(r, "hash-object", "-w", str(r / ".git" / "HEAD")),
    "a stash": lambda r: ((r / "calc.py").write_text("x"), git(r, "stash")),
    "borrowed objects": lambda r: write_files(
        r, {".git/objects/info/alternates": f"{r.parent / 'upstream/.git/objects'}\n"}
    ),
    "a fetch that is remembered": lambda r: (r / ".git" / "FETCH_HEAD").write_text("1" * 40),
}


@pytest.mark.parametrize("what", sorted(SPOILT))
def test_a_repository_with_anything_more_is_not_clean(upstream: Path, tmp_path: Path, what: str) -> None:
    base = git(upstream, "rev-parse", "base")
    target = tmp_path / "target"
    assert checkout(a_task("git", upstream, "base", base), target).clean
    SPOILT[what](target)
    assert not prove(target, base).clean


def test_a_repository_at_another_commit_is_not_clean(upstream: Path, tmp_path: Path) -> None:
    checkout(a_task("git", upstream, "fixed"), tmp_path / "target")
    assert prove(tmp_path / "target").clean
    assert not prove(tmp_path / "target", git(upstream, "rev-parse", "base")).clean


@pytest.mark.parametrize("ref", ["refs/heads/none", "1" * 40, "--all"])
@pytest.mark.parametrize("kind", ["archive", "git"])
def test_missing_ref_is_a_fault_of_the_data(
    upstream: Path, archive: Path, tmp_path: Path, kind: str, ref: str
) -> None:
    with pytest.raises(DataError, match=f"does not have {ref}"):
        checkout(a_task(kind, archive if kind == "archive" else upstream, ref), tmp_path / "target")


def test_another_commit_than_the_base_is_the_datas_fault(
    upstream: Path, archive: Path, tmp_path: Path
) -> None:
    base = git(upstream, "rev-parse", "base")
    with pytest.raises(DataError, match=f"not the base {base}"):
        checkout(a_task("archive", archive, "refs/heads/fixed", base), tmp_path / "target")
    assert not (tmp_path / "target").exists()


@pytest.mark.parametrize(
    ("kind", "location"),
    [
        ("git", "nowhere"),
        ("git", "ext::sh -c touch% ran"),
        ("git", "ssh://nobody@127.0.0.1:1/x"),
        ("git", "https://127.0.0.1:1/x.git"),
        ("git", "http://127.0.0.1:1/x.git"),
        ("archive", "nowhere.tar"),
    ],
)
def test_a_source_that_cannot_be_had_is_the_machines_fault(tmp_path: Path, kind: str, location: str) -> None:
    with pytest.raises(EnvironmentFault):
        checkout(a_task(kind, location, "main"), tmp_path / "target")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("key", ["core.sshCommand", "remote.origin.uploadpack"])
def test_no_program_of_a_repository_on_this_machine_runs(upstream: Path, tmp_path: Path, key: str) -> None:
    """Git would start it to fetch a missing commit."""
    origin = "ssh://host.invalid/x" if key == "core.sshCommand" else "file:///nowhere"
    for name, value in {
        "core.repositoryFormatVersion": "1",
        "extensions.partialClone": "origin",
        "remote.origin.promisor": "true",
        "remote.origin.url": origin,
        "protocol.ssh.allow": "always",
        "protocol.file.allow": "always",
        key: f"touch '{tmp_path}/ran';",
    }.items():
        git(upstream, "config", name, value)
    subprocess.run(["git", "cat-file", "-e", "1" * 40], cwd=upstream, capture_output=True, check=False)
    assert (tmp_path / "ran").exists(), "git would"
    (tmp_path / "ran").unlink()
    with pytest.raises(DataError, match="does not have"):
        checkout(a_task("git", upstream, "1" * 40), tmp_path / "target")
    assert checkout(a_task("git", upstream, "base"), tmp_path / "target").clean
    assert not (tmp_path / "ran").exists()


def test_a_repository_on_this_machine_that_is_none_is_the_machines_fault(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFault, match="not in a git repository"):
        checkout(a_task("git", tmp_path, "main"), tmp_path / "target")


def test_a_target_with_something_in_it_is_left_alone(upstream: Path, tmp_path: Path) -> None:
    write_files(tmp_path / "target", {"mine": "x"})
    with pytest.raises(EnvironmentFault, match="not empty"):
        checkout(a_task("git", upstream), tmp_path / "target")
    (tmp_path / "empty").mkdir()
    assert checkout(a_task("git", upstream), tmp_path / "empty").clean


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


@pytest.mark.parametrize(
    "bad",
    [
        member("../escaped"),
        member("calc.git/refs/heads/x", tarfile.SYMTYPE, "/etc/passwd"),
    ],
    ids=lambda info: f"{info.name}-{info.type.decode()}",
)
def test_an_archive_with_a_member_that_leads_out_is_refused(
    archive: Path, tmp_path: Path, bad: tarfile.TarInfo
) -> None:
    plain = tmp_path / "bad.tar"
    with tarfile.open(archive) as old, tarfile.open(plain, "w") as new:
        new.addfile(bad, io.BytesIO())
        for info in old:
            new.addfile(info, old.extractfile(info) if info.isreg() else None)
    with pytest.raises(DataError, match="refused"):
        checkout(a_task("archive", plain), tmp_path / "target", cache=tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []
    assert not (tmp_path / "escaped").exists()


def test_an_archive_that_is_damaged_or_holds_no_repository_is_the_datas_fault(
    archive: Path, tmp_path: Path
) -> None:
    content = archive.read_bytes()
    write_files(tmp_path / "no-repo", {"a": "a"})
    tarred(tmp_path / "no-repo", tmp_path / "no-repo.tar.gz")
    write_files(
        tmp_path, {"cut.tar.gz": content[: len(content) // 2], "junk.tar.gz": b"junk" * 500, "no.tar": b""}
    )
    for name in ("no-repo.tar.gz", "cut.tar.gz", "junk.tar.gz", "no.tar"):
        with pytest.raises(DataError, match=name):
            checkout(a_task("archive", tmp_path / name), tmp_path / "target")


def test_nothing_of_an_archive_is_run_or_followed(upstream: Path, archive: Path, tmp_path: Path) -> None:
    bare, mark = tmp_path / "calc.git", tmp_path / "ran"
    program = tmp_path / "program.sh"
    program.write_text(f"#!/bin/sh\ntouch '{mark}'\n")
    program.chmod(0o755)
    for key in (
        "core.fsmonitor",
        "uploadpack.packObjectsHook",
        "core.sshCommand",
        "filter.evil.smudge",
        "core.alternateRefsCommand",
    ):
        git(bare, "config", key, str(program))
    git(bare, "config", "core.hooksPath", str(tmp_path / "hooks"))
    for hook in ("post-checkout", "reference-transaction", "pre-auto-gc"):
        write_files(bare, {f"hooks/{hook}": program.read_text()})
        (bare / "hooks" / hook).chmod(0o755)
    task = a_task("archive", tarred(bare, tmp_path / "evil.tar.gz"))
    assert checkout(task, tmp_path / "target", cache=tmp_path / "cache").clean
    assert not mark.exists()
    (mirror,) = (tmp_path / "cache").iterdir()
    assert str(program) not in (mirror / "config").read_text()
    assert not (mirror / "hooks").exists()
    assert not (tmp_path / "target/.git/hooks").exists()
    # objects borrowed from another repository on this machine must not be used
    for path in sorted((bare / "objects").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    write_files(bare, {"objects/info/alternates": str(upstream / ".git/objects") + "\n"})
    with pytest.raises((DataError, EnvironmentFault)):
        checkout(a_task("archive", tarred(bare, tmp_path / "borrowing.tar.gz")), tmp_path / "other")


def test_a_cache_is_made_once_by_several_at_once_and_noticed_to_be_old(
    upstream: Path, archive: Path, tmp_path: Path
) -> None:
    cache, base = tmp_path / "cache", git(upstream, "rev-parse", "base")

    def make(number: int) -> bool:
        return (
            checkout(a_task("archive", archive, base=base), tmp_path / f"t{number}", cache=cache).clean
            is True
        )

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(make, range(6)))
    (mirror,) = cache.iterdir()
    made = mirror.stat().st_ino
    assert make(6)
    assert mirror.stat().st_ino == made
    git(tmp_path / "calc.git", "branch", "-D", "base")
    tarred(tmp_path / "calc.git", archive)
    with pytest.raises(DataError, match="does not have refs/heads/base"):
        make(7)


@pytest.mark.skipif(not SHARED.is_dir(), reason="no real benchmark data beside the repository")
def test_of_three_bases_in_one_real_archive_the_others_fix_does_not_come_along(tmp_path: Path) -> None:
    names = ["pytest-dev__pytest-7432", "pytest-dev__pytest-7490"]
    early, late = load(str(SHARED / "swebench-dev"), ids=names)
    for instance in (early, late):
        proof = checkout(instance.task, tmp_path / instance.id, cache=tmp_path / "cache")
        assert proof.clean
        assert proof.matches
    write_files(tmp_path, {"gold.diff": early.answer.patch})

    def undone(instance_id: str) -> int:
        arguments = ["git", "apply", "--check", "--reverse", str(tmp_path / "gold.diff")]
        return subprocess.run(
            arguments, cwd=tmp_path / instance_id, capture_output=True, check=False
        ).returncode

    assert undone(late.id) == 0, "the later base has the earlier instance's fix"
    assert undone(early.id) != 0
    both = set(git(tmp_path / early.id, "rev-list", "--all")) & {late.task.base_commit}
    assert not both
    other = subprocess.run(
        ["git", "cat-file", "-e", late.task.base_commit],
        cwd=tmp_path / early.id,
        capture_output=True,
        check=False,
    )
    assert other.returncode != 0
