"""The output folder: rows, the agent's view of them, the repository's archive, and the tried candidates.

    instances.jsonl                        complete rows; only for the grader
    agent_view.jsonl                       the fields of each row that an agent may see
    repos/OWNER__NAME.shallow.git.tar.gz   the instances' base commits
    create.json                            each candidate that was tried, with its result

Files are written atomically, and everything that a row names is written before the row. The folder is
therefore usable at any time.
"""

from __future__ import annotations

import contextlib
import fcntl
import gzip
import io
import json
import re
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from m3agent.agent.report.write import write_page
from m3agent.evals.create.graded import Validated
from m3agent.evals.create.mine import MinedCommit
from m3agent.evals.data.results import Record
from m3agent.sandbox.store.git import TreeStore
from m3agent.util.errors import EnvironmentFault, UsageError
from m3agent.util.json_lines import json_lines

ROWS, VIEW, TRIED, LOCK = "instances.jsonl", "agent_view.jsonl", "create.json", ".lock"
SEEN = (
    *("instance_id", "repo", "base_commit", "problem_statement", "version", "environment", "repo_archive"),
    "repo_ref",
)
"""Fields of a row that an agent may see."""
HIDDEN = ("test_cmd_full",)
"""Keys of `environment` that the agent must not see: the value names the test files."""
CONFIG = "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = true\n"
FOLDERS = ("", "/objects", "/objects/info", "/objects/pack", "/refs", "/refs/heads", "/refs/tags")
# For reproducible bytes: no delta of the source's packs is reused, and threads would split the work
# differently each time.
PACKING = (
    *("--no-reuse-delta", "--no-reuse-object", "--threads=1", "--window=10", "--depth=50", "--compression=6"),
)


class ValidatedCandidate(Record):
    """A candidate that was validated."""

    verdict: Literal["valid", "invalid", "left out"]
    """Whether it is an instance; `left out` if it could be one, but of a kind that was not asked for."""
    reason: str
    instance_id: str
    title: str
    score: int
    seconds: float
    """Wall time of the validation."""
    kind: str = ""
    """`m3agent.evals.create.statement.Kind`; empty if the candidate is invalid."""


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")

    v: Literal[1] = 1
    repo: str
    tried: dict[str, ValidatedCandidate] = Field(default_factory=dict)


@dataclass
class CreatedFolder:
    """A folder of instances that is being created."""

    path: Path
    """Its whole path, because git runs in other folders."""
    repo: str
    tried: dict[str, ValidatedCandidate]
    rows: dict[str, dict[str, Any]]

    @classmethod
    @contextlib.contextmanager
    def opened(cls, path: Path, repo: str) -> Iterator[CreatedFolder]:
        """Open a new folder, or an existing one to continue, and lock it for this process.

        Raises:
            UsageError: The folder is in use, is damaged, or contains other files or another repository's
                instances.
            EnvironmentFault: The folder cannot be written.
        """
        if path.exists() and (not path.is_dir() or (any(path.iterdir()) and not (path / TRIED).exists())):
            raise UsageError(f"{path} is not empty and is not a folder of instances: give a new folder.")
        try:
            (path / "repos").mkdir(parents=True, exist_ok=True)
            lock = (path / LOCK).open("w")
        except OSError as error:
            raise EnvironmentFault(f"{path} cannot be written: {error.strerror}.") from None
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise UsageError(
                    f"Another process works in {path}: wait for it, or give another folder."
                ) from None
            file, rows = _read(path, repo)
            if file.repo != repo:
                raise UsageError(
                    f"{path} holds instances of {file.repo}, not of {repo}: give another folder."
                )
            made = cls(path.resolve(), repo, file.tried, rows)
            made._write_tried()
            yield made

    @property
    def archive(self) -> Path:
        """Path of the repository's archive, which may not exist yet."""
        return self.path / "repos" / f"{folder_name(self.repo)}.shallow.git.tar.gz"

    def add(self, sha: str, tried: ValidatedCandidate, row: dict[str, Any] | None, store: TreeStore) -> None:
        """Record a tried candidate; `row` is the new instance, or None if the candidate is invalid.

        Raises:
            EnvironmentFault: The folder cannot be written.
        """
        if row is not None:
            rows = {**self.rows, row["instance_id"]: row}
            refs = {one["repo_ref"]: one["base_commit"] for one in rows.values()}
            write_page(self.archive, pack(store, refs, folder_name(self.repo)))
            self.rows = rows
            write_page(self.path / VIEW, _lines(view(one) for one in rows.values()))
            write_page(self.path / ROWS, _lines(iter(rows.values())))
        self.tried[sha] = tried
        self._write_tried()

    def _write_tried(self) -> None:
        file = _File(repo=self.repo, tried=self.tried)
        write_page(self.path / TRIED, file.model_dump_json(indent=1).encode() + b"\n")


def instance_id(repo: str, base: str) -> str:
    """Return the instance's id.

    It contains the base commit's id, because the fix's own id would tell an agent where to find the fix.
    """
    return f"{folder_name(repo)}-{base[:12]}"


def folder_name(repo: str) -> str:
    """Return a repository's name as it appears in ids and file names: `owner__name`."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", repo.replace("/", "__")).lstrip("._-")[:150] or "repository"


def row_of(
    repo: str,
    candidate: MinedCommit,
    recipe: tuple[dict[str, Any], str],
    statement: tuple[str, str],
    found: Validated,
) -> dict[str, Any]:
    """Return the row of an instance: SWE-bench's fields and the additional ones of `docs/eval-create.md`."""
    ident = instance_id(repo, candidate.base)
    environment, version = recipe
    tests = " ".join(candidate.test_files)
    return {
        "repo": repo,
        "instance_id": ident,
        "base_commit": candidate.base,
        "patch": candidate.patch,
        "test_patch": candidate.test_patch,
        "problem_statement": statement[0],
        "hints_text": "",
        "created_at": environment["exclude_newer"],
        "version": version,
        "FAIL_TO_PASS": json.dumps(sorted(found.fail_to_pass)),
        "PASS_TO_PASS": json.dumps(sorted(found.pass_to_pass)),
        "environment_setup_commit": candidate.base,
        "source": "history",
        "fix_commit": candidate.commit.sha,
        "statement_source": statement[1],
        "environment": {**environment, "test_cmd_full": f"{environment['test_cmd']} {tests}"},
        "repo_archive": f"repos/{folder_name(repo)}.shallow.git.tar.gz",
        "repo_ref": f"refs/heads/base/{ident}",
    }


def view(row: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a row that an agent may see."""
    environment = {name: value for name, value in row["environment"].items() if name not in HIDDEN}
    return {name: row[name] for name in SEEN} | {"environment": environment}


def _read(path: Path, repo: str) -> tuple[_File, dict[str, dict[str, Any]]]:
    if not (path / TRIED).exists():
        return _File(repo=repo), {}
    try:
        file = _File.model_validate_json((path / TRIED).read_bytes())
        rows = {}
        if (path / ROWS).exists():
            for _, line in json_lines((path / ROWS).read_bytes()):
                row = json.loads(line)
                rows[row["instance_id"]] = row
    except (OSError, ValueError, KeyError, TypeError, ValidationError) as error:
        why = str(error).splitlines()[0]
        raise UsageError(
            f"{path} cannot be continued because its files are damaged ({why}): give a new folder."
        ) from None
    return file, rows


def _lines(rows: Iterator[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def pack(store: TreeStore, refs: Mapping[str, str], name: str) -> bytes:
    """Return the archive, a gzipped tar that contains the bare repository `name`.git: a commit for each ref, and no history.

    The same commits give the same bytes, however git had packed the source repository.

    Raises:
        GitFailed: The store lacks objects of these commits.
    """
    commits = sorted(set(refs.values()))
    wanted = store.git("rev-list", "--objects", "--no-walk=unsorted", *commits)
    files = {
        "HEAD": b"ref: refs/heads/main\n",
        "config": CONFIG.encode(),
        "packed-refs": "".join(f"{sha} {ref}\n" for ref, sha in sorted(refs.items())).encode(),
        "shallow": "".join(f"{sha}\n" for sha in commits).encode(),
    }
    # Git makes the pack in the store and renames it, so the folder must be in the same file system.
    with tempfile.TemporaryDirectory(dir=store.git_dir.resolve()) as scratch:
        store.git("pack-objects", "-q", *PACKING, f"{scratch}/pack", stdin=wanted)
        for part in Path(scratch).glob("pack-*"):
            if part.suffix in {".pack", ".idx"}:
                files[f"objects/pack/{part.name}"] = part.read_bytes()
    return _tar(f"{name}.git", files)


def _tar(root: str, files: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=buffer, mtime=0, compresslevel=6) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive,
    ):
        for folder in FOLDERS:
            info = tarfile.TarInfo(f"{root}{folder}")
            info.type, info.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(info)
        for name, content in sorted(files.items()):
            info = tarfile.TarInfo(f"{root}/{name}")
            info.size, info.mode = len(content), 0o644
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()
