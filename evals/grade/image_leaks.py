"""Look in an instance's image for what could tell the fix: later commits, cached packages, later releases of the project.

An agent with a shell in the image reads all of it, whatever its checkout contains. A fresh container without a network
runs the search (`KINDS`), and prints a line for each leak.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from m3agent.evals.data.instance import Task
from m3agent.evals.grade.container import run_in_container
from m3agent.sandbox.backends.engine import connect
from m3agent.sandbox.backends.image import local_image
from m3agent.util.sanitize import printable_line

SECONDS = 600.0
"""Most time for the search in one image."""
MOST_SHOWN = 20
"""Most leaks that are named."""
SCRIPT = "/m3agent-leaks.sh"
REPOSITORIES = """\
find "$ROOT" -xdev -type f -name HEAD 2>/dev/null | while read -r head; do
    GIT_DIR="${head%/HEAD}"
    [ -d "$GIT_DIR/objects" ] && [ -d "$GIT_DIR/refs" ] || continue
    export GIT_DIR GIT_NO_REPLACE_OBJECTS=1
    git rev-list --all > "$NOTES/refs" 2>/dev/null
    git rev-list HEAD > "$NOTES/own" 2>/dev/null || : > "$NOTES/own"
    cat $(find "$GIT_DIR/logs" -type f 2>/dev/null) /dev/null | cut -d ' ' -f 2 | sort -u > "$NOTES/logged"
    since=$(git log -1 --format=%ct "$BASE^{commit}" 2>/dev/null || echo 0)
"""
"""Begins a loop over the repositories. In it, `later` prints those of the commits on standard input that HEAD does not reach
and that are newer than the base, if the repository has it."""
NOTES = "NOTES=$(mktemp -d)\ntrap 'rm -rf \"$NOTES\"' EXIT\n"
LATER = """\
later() {
    grep -vxF -f "$NOTES/own" | git rev-list --no-walk --stdin --timestamp 2>/dev/null |
        while read -r time commit; do [ "$time" -le "$since" ] || printf '%s\\t%s\\t%s\\n' "$1" "$GIT_DIR" "$commit"; done
}
"""


@dataclass(frozen=True)
class Kind:
    """A kind of leak: how it is searched, and what it is."""

    name: str
    what: str
    """What it is, for people."""
    script: str
    """Shell lines that print `NAME TAB PLACE TAB DETAIL` for each leak. The variable `BASE` is the base commit, and `DIST` a
    pattern for the project's names in names of packages."""
    has_version: bool = False
    """Whether the detail is a version, so that only one later than the base's is a leak."""


KINDS = (
    Kind("ahead", "commits after the base that HEAD reaches", REPOSITORIES + """\
    # the image's author commits the set-up, and so does m3agent
    [ "$since" = 0 ] || git rev-list "$BASE..HEAD" 2>/dev/null | tail -n +3 | while read -r commit; do
        printf 'ahead\\t%s\\t%s\\n' "$GIT_DIR" "$commit"
    done
done
"""),
    Kind("refs", "later commits that a branch or a tag reaches", REPOSITORIES + """\
    later refs < "$NOTES/refs"
done
"""),
    Kind("reflogs", "later commits that a reflog names", REPOSITORIES + """\
    grep -vxF -f "$NOTES/refs" "$NOTES/logged" | later reflogs
done
"""),
    Kind("objects", "later commits that nothing names, packed or loose", REPOSITORIES + """\
    git cat-file --batch-all-objects --batch-check='%(objecttype) %(objectname)' 2>/dev/null |
        sed -n 's/^commit //p' | grep -vxF -f "$NOTES/refs" | grep -vxF -f "$NOTES/logged" | later objects
done
"""),
    Kind("unread", "a repository, and the image has no git to search it", """\
command -v git >/dev/null || find "$ROOT" -xdev -type f -name HEAD 2>/dev/null | while read -r head; do
    [ ! -d "${head%/HEAD}/objects" ] || printf 'unread\\t%s\\t\\n' "${head%/HEAD}"
done
"""),
    Kind("packages", "a later release of the project, as a package file", """\
find "$ROOT" -xdev -type f 2>/dev/null | grep -iE "/$DIST-[0-9][^/]*(\\.whl|\\.tar\\.gz|\\.tar\\.bz2|\\.zip|\\.conda|\\.egg)$" |
    while read -r file; do printf 'packages\\t%s\\t%s\\n' "$file" "${file##*/}"; done
""", has_version=True),
    Kind("downloads", "a later release of the project, in a cache of downloads", """\
find "$ROOT" -xdev -type f \\( -path '*/http/?/?/?/?/?/*' -o -path '*/http-v2/?/?/?/?/?/*' \\) 2>/dev/null | while read -r file; do
    # an answer's text, a wheel's own names of files, a source archive's
    { cat "$file"; [ "${file%.body}" = "$file" ] || tar -tzf "$file" 2>/dev/null | sed 's|/.*|.tar.gz|'; } |
        grep -aoiE "$DIST-[0-9][0-9A-Za-z.]*(-py[0-9a-z.]*-[a-z0-9_]*-[a-z0-9_]*\\.whl|-cp[^/ ]*\\.whl|\\.dist-info|\\.tar\\.gz|\\.zip)" |
        sort -u | while read -r name; do printf 'downloads\\t%s\\t%s\\n' "$file" "$name"; done
done
""", has_version=True),
    Kind("releases", "a later release of the project, installed", """\
find "$ROOT" -xdev \\( -type d -name '*.dist-info' -o -name '*.egg-info' -o -type d -name '*.egg' \\) 2>/dev/null |
    grep -iE "/$DIST-[0-9][^/]*$" | while read -r folder; do
        grep -q '"editable": *true' "$folder/direct_url.json" 2>/dev/null && word=own || word=releases
        printf '%s\\t%s\\t%s\\n' $word "$folder" "${folder##*/}"
    done
""", has_version=True),
)  # fmt: skip
"""All kinds of leaks in an image. The line `own` names the editable installation of the base itself."""


async def leaks_in(image: str, task: Task, code: Path) -> tuple[str, ...]:
    """Return what an image contains of the time after a task's base, a sentence for each leak; it is searched once.

    Args:
        code: The checkout of the base.

    Raises:
        EnvironmentBuildFailed: The container engine failed.
    """
    if (known := _SEARCHED.get((image, task.instance_id))) is not None:
        return known
    if not image or await asyncio.to_thread(_is_of_host, image):
        return ()
    script = script_of(task, stated(code, "name")).encode()
    run = await run_in_container(image, {SCRIPT: script}, SCRIPT, SECONDS)
    sentences = list(read_leaks(run.output.splitlines(), task, stated(code, "version")))
    if run.timed_out:
        sentences.append("the search for leaks in the image took too long")
    known = _SEARCHED[image, task.instance_id] = tuple(dict.fromkeys(sentences))[:MOST_SHOWN]
    return known


def _is_of_host(image: str) -> bool:
    """Return whether an image only shows this host's programs: it has nothing of the project."""
    with contextlib.closing(connect()) as api:
        here = local_image(api, image)
        return here is not None and bool(here.binds)


_SEARCHED: dict[tuple[str, str], tuple[str, ...]] = {}
"""The leaks by image and instance: all agents of a card use the same images."""
STATED = (
    ("pyproject.toml", r"""(?m)^{field}\s*=\s*["']([^"']+)"""),
    ("setup.cfg", r"(?m)^{field}\s*=\s*([\w.+!-]+)\s*$"),
    ("setup.py", r"""\b{field}\s*=\s*["']([^"']+)"""),
)
"""Files of a project that may state its name and its version, and how."""


def stated(code: Path, field: str) -> str:
    """Return the `name` or the `version` that the files of a project state; empty if they state none."""
    for name, pattern in STATED:
        with contextlib.suppress(OSError):
            if match := re.search(pattern.format(field=field), (code / name).read_text("utf-8", "replace")):
                return match[1]
    return ""


def script_of(task: Task, stated_name: str = "", root: str = "/") -> str:
    """Return the search for all kinds of leaks below the folder `root`; packages may have the stated or the repository's name."""
    names = {canonicalize_name(name) for name in (task.repo.rpartition("/")[2], stated_name) if name}
    pattern = "|".join(re.escape(name).replace(r"\-", "[-_.]") for name in sorted(names))
    values = {"ROOT": root, "BASE": task.base_commit or "none", "DIST": f"({pattern})"}
    head = "".join(f"{name}={shlex.quote(value)}\n" for name, value in values.items())
    return head + NOTES + LATER + "".join(kind.script for kind in KINDS)


def read_leaks(lines: Iterable[str], task: Task, version: str) -> Iterator[str]:
    """Yield a sentence for each leak among the lines that the search printed."""
    entries = [tuple(line.split("\t")) for line in lines if line.count("\t") == 2]
    base = _base_version(entries, task, version)
    for kind in KINDS:
        places: dict[str, list[str]] = {}
        for _, place, detail in (entry for entry in entries if entry[0] == kind.name):
            if not kind.has_version or _is_later(detail, base):
                places.setdefault(place, []).append(detail)
        for place, details in sorted(places.items()):
            shown = ", ".join(sorted(filter(None, details))[:3])
            yield printable_line(f"{place}: {kind.what}{f' ({shown})' if shown else ''}", 300)


def _base_version(entries: Sequence[tuple[str, ...]], task: Task, version: str) -> Version | None:
    """Return the project's version at the base: of its editable installation, of the recipe, or `version`."""
    own = [detail for word, _, detail in entries if word == "own"]
    told = [text for name, text in task.environment.variables.items() if "PRETEND_VERSION" in name]
    return next((known for text in (*own, *told, version) if (known := _version(text)) is not None), None)


def _is_later(file: str, base: Version | None) -> bool:
    """Return whether a package is of a later release than the base. Unknown versions count as later."""
    known = _version(file)
    return known is None or base is None or known > base


def _version(text: str) -> Version | None:
    """Return the version in a package's name, or in a text that is one."""
    match = re.search(
        r"(?:^|-)v?(\d[\w.!+]*?)(?:\.(?:dist-info|egg-info|egg|tar\.\w+|zip|conda|whl)|-|$)", text
    )
    try:
        return None if match is None else Version(match[1])
    except InvalidVersion:
        return None
