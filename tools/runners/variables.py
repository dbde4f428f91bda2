"""Variables that a repository declares for its tests: the table `env` in the configuration that `command` describes.

    [tests.env]
    SERVICE_URL = "http://localhost:8080"

Commands in the sandbox get them. The tree before the patch declares them, so a patch cannot add one.
"""

from __future__ import annotations

import re
from typing import Any

MOST_VARIABLES, MOST_LENGTH = 100, 4096
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_READ_BY_TOOLS = re.compile(
    r"(?:PATH|HOME|USER|LOGNAME|SHELL|TMPDIR|IFS|ENV|BASH\w*|SHELLOPTS|CDPATH|CLASSPATH|GLIBC_TUNABLES|LOCPATH|GCONV_PATH|NIX_LD\w*|"
    r"CC|CXX|MAKEFLAGS|GOFLAGS|JAVA_TOOL_OPTIONS|JDK_JAVA_OPTIONS|_JAVA_OPTIONS|MAVEN_\w+|GRADLE_\w+|DOTNET_\w+|MSBUILD\w*|"
    r"(?:LD|DYLD|MALLOC|PYTHON|PYTEST|COVERAGE|PIP|UV|GIT|NODE|NPM|YARN|PERL|RUBY|GEM|BUNDLE|GO|RUST|CARGO|COMPOSER|PHP|MIX|ERL|"
    r"SSL|M3AGENT)_?\w*|\w*_PROXY|\w+_CA_BUNDLE)",
    re.IGNORECASE,
)
"""Names of variables that decide which code the loader, an interpreter, a shell or a test runner starts, or whom it trusts."""


def fault_of(table: Any) -> str:
    """Return what is wrong with a table of variables, as a clause; empty if it is right."""
    if not isinstance(table, dict) or len(table) > MOST_VARIABLES:
        return f"must be a table of at most {MOST_VARIABLES} variables"
    for name, value in table.items():
        if _NAME.fullmatch(name) is None:
            return f"has {name!r}, which is not the name of a variable"
        if _READ_BY_TOOLS.fullmatch(name) is not None:
            return f"may not set {name}, which the system or a tool reads"
        if not isinstance(value, str) or "\0" in value or len(value) > MOST_LENGTH:
            return f"must give {name} a text of at most {MOST_LENGTH:,} characters"
    return ""
