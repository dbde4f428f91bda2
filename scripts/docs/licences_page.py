"""Generate docs/licences.md, the packages that an installation needs and their licences: `make docs-pages`.

uv.lock names the packages. The licences come from the metadata of the installed packages. The page has no versions:
they are in uv.lock, and a new version rarely changes the licence.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from packaging.markers import Marker

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "licences.md"
HEAD = """\
# Dependencies and their licences

m3agent itself is under Apache-2.0. An installation also installs the packages below (on Linux, with Python 3.11 to 3.14, as in
`uv.lock`). Each has its own licence, shown as an [SPDX](https://spdx.org/licenses/) expression. It comes from the package's
metadata, or from its licence file if the metadata has no clear licence. Versions are in `uv.lock`.

Packages that only the development of m3agent needs are not listed. `make docs-pages` writes this page. The conditions of a
licence are in its text.
"""
PURPOSES = {
    "agent-client-protocol": "the protocol between editors and agents",
    "ahocorasick-rs": "searching a text for many words at once",
    "anyio": "streams of messages between tasks",
    "charset-normalizer": "decoding files that are not UTF-8",
    "datasets": "data sets on the hub",
    "docker": "the Docker engine's API",
    "gitpython": "finding the git folder of a linked work tree or a submodule",
    "httpx2": "HTTP",
    "huggingface-hub": "downloads of checkpoints",
    "jinja2": "HTML pages",
    "jsonschema": "checks of the schemas of other programs' tools",
    "kitoken": "exact token counts",
    "markupsafe": "escaping text for HTML",
    "mcp": "the protocol of other programs' tools",
    "mcp-types": "the messages of that protocol",
    "openai": "requests to model servers",
    "packaging": "versions and requirements",
    "pyarrow": "Parquet files",
    "pydantic": "validation of settings and data",
    "pydantic-core": "custom validation errors",
    "pytest": "tests of the repository to be fixed, in the sandbox",
    "ray": "benchmark runs on a cluster",
    "redact-secret": "finding secrets in text",
    "requests": "errors of requests to the Docker engine",
    "rich": "output on a terminal",
    "starlette": "the server of the embedded engine",
    "swebench": "the official way of grading",
    "tenacity": "retries",
    "tokenizers": "Hugging Face's token counts, to compare with m3agent's",
    "tree-sitter": "syntax trees for outlines and for the embedded engine",
    "tree-sitter-language-pack": "outlines and the embedded engine's changes of files that are not Python",
    "typer": "the command line",
    "urllib3": "errors of the Docker engine's stream of events",
    "uvicorn": "the server of the embedded engine",
    "pyyaml": "files for Kubernetes and Prometheus",
}
"""What our direct dependencies are for. Every other package is listed with the packages that depend on it."""
UNKNOWN = "not stated"
# Older metadata has a classifier or free text instead of an SPDX expression.
SPDX = {
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache 2.0": "Apache-2.0",
    "Apache License 2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "ISC License": "ISC",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
}
_EXPRESSION = re.compile(
    r"(?:Apache-2\.0|BSD-[23]-Clause|ISC|MIT|MPL-2\.0|PSF-2\.0|Unlicense|0BSD)(?: (?:AND|OR) (?:[\w.-]+))*"
)
PYTHONS = ("3.11", "3.12", "3.13", "3.14")


def sections() -> dict[str, dict[str, str]]:
    """Return the packages of each extra ("" is the base) with their purposes; extras leave out packages of the base."""
    packages: dict[str, dict[str, Any]] = {
        package["name"]: package for package in tomllib.loads((ROOT / "uv.lock").read_text())["package"]
    }
    ours = packages["m3agent"]
    base = _closure(packages, ours["dependencies"])
    found = {"": base}
    for extra, direct in ours["optional-dependencies"].items():
        found[extra] = {name: why for name, why in _closure(packages, direct).items() if name not in base}
    return found


def _closure(packages: dict[str, dict[str, Any]], direct: Iterable[dict[str, Any]]) -> dict[str, str]:
    """Return these dependencies and all their own dependencies, each with its purpose."""
    wanted_by: dict[str, set[str]] = {}
    queue = [(dependency, "") for dependency in direct]
    done: set[tuple[str, str]] = set()
    while queue:
        dependency, parent = queue.pop()
        name = dependency["name"]
        if not _on_linux(dependency.get("marker")):
            continue
        wanted_by.setdefault(name, set()).add(parent)
        for extra in ("", *dependency.get("extra", [])):
            if (name, extra) not in done:
                done.add((name, extra))
                package = packages[name]
                below = (
                    package.get("optional-dependencies", {}).get(extra, [])
                    if extra
                    else package.get("dependencies", [])
                )
                queue += [(one, name) for one in below]
    return {
        name: PURPOSES[name] if "" in parents else f"for {', '.join(sorted(parents))}"
        for name, parents in sorted(wanted_by.items())
    }


def _on_linux(marker: str | None) -> bool:
    """Return whether a marker holds on Linux for at least one supported Python version."""
    if marker is None:
        return True
    linux = {
        "sys_platform": "linux",
        "platform_system": "Linux",
        "os_name": "posix",
        "platform_machine": "x86_64",
    }
    return any(
        Marker(marker).evaluate({**linux, "python_version": python, "python_full_version": f"{python}.0"})
        for python in PYTHONS
    )


def licence(package: Distribution) -> str:
    """Return a package's licence as an SPDX expression, or `UNKNOWN`."""
    metadata = package.metadata
    said = [*(metadata.get_all("License-Expression") or []), *(metadata.get_all("License") or [])]
    said += [
        text.rpartition(" :: ")[2]
        for text in metadata.get_all("Classifier") or []
        if text.startswith("License")
    ]
    for text in map(str, said):
        expression = SPDX.get(text, text)
        if _EXPRESSION.fullmatch(expression):
            return expression
    return _of_text(package)


def _of_text(package: Distribution) -> str:
    """Recognise the licence by phrases in the package's licence file."""
    for file in package.files or []:
        if not re.match(r"(?i)(licen[cs]e|copying)", file.name) or not file.locate().is_file():  # type: ignore[attr-defined]
            continue
        text = " ".join(file.read_text().split())
        if "Apache License Version 2.0" in text:
            return "Apache-2.0"
        if "Permission is hereby granted, free of charge, to any person obtaining a copy" in text:
            return "MIT"
        if "Redistribution and use in source and binary forms" in text:
            return (
                "BSD-3-Clause"
                if re.search("(?i)neither the name|names? of .{0,80} may not", text)
                else "BSD-2-Clause"
            )
    return UNKNOWN


def rows(names: dict[str, str], known: dict[str, str] | None = None) -> list[str]:
    """Return the rows of a section's table. A package that is not installed gets its licence from `known`.

    Raises PackageNotFoundError if a package is neither installed nor in `known`.
    """
    found: list[str] = []
    for name, purpose in names.items():
        try:
            said = licence(distribution(name))
        except PackageNotFoundError:
            if known is None or name not in known:
                raise
            said = known[name]
        found.append(f"| {name} | {said} | {purpose} |")
    return found


def written(text: str) -> dict[str, str]:
    """Return the licence of each package on a page."""
    return dict(re.findall(r"^\| ([\w.-]+) \| (.+?) \| .+ \|$", text, re.MULTILINE))


def page(known: dict[str, str] | None = None) -> str:
    """Return the page as Markdown. Raises the same error as `rows`."""
    parts = [HEAD]
    for extra, names in sections().items():
        title = f"`m3agent[{extra}]`" if extra else "The base installation"
        parts += [f"## {title}\n", "| package | licence | what it is for |\n|---|---|---|"]
        parts += [*rows(names, known), ""]
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page())
