"""Variables that a repository declares for its tests: the table `env` in the configuration that `command` describes.

    [tests.env]
    SERVICE_URL = "http://localhost:8080"

Commands in the sandbox get them. The tree before the patch declares them, so a patch cannot add one.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import Any

MOST_VARIABLES, MOST_LENGTH = 100, 4096
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_READERS = {
    "the system": "PATH HOME USER LOGNAME TMPDIR XDG_* HOSTALIASES LOCALDOMAIN RES_OPTIONS",
    "the loader": "LD_* DYLD_* NIX_LD* GLIBC_TUNABLES LOCPATH GCONV_PATH",
    "a shell": "SHELL IFS ENV BASH BASH_* BASHOPTS SHELLOPTS CDPATH FPATH ZDOTDIR PS4 PROMPT_COMMAND",
    "a program that connects": "HTTP_PROXY HTTPS_PROXY ALL_PROXY NO_PROXY FTP_PROXY SSL_CERT_FILE SSL_CERT_DIR SSLKEYLOGFILE "
    "OPENSSL_CONF OPENSSL_CONF_INCLUDE OPENSSL_ENGINES OPENSSL_MODULES REQUESTS_CA_BUNDLE CURL_CA_BUNDLE AWS_CA_BUNDLE CURL_HOME",
    "Git": "GIT_*",
    "m3agent": "M3AGENT_*",
    "Python": "PYTHON* VIRTUAL_ENV PIP_* UV_* CONDA_* POETRY_* PDM_*",
    "a test runner": "PYTEST_* COVERAGE_* GTEST_* VSTEST_*",
    "Node.js": "NODE_OPTIONS NODE_PATH NODE_EXTRA_CA_CERTS NODE_TLS_REJECT_UNAUTHORIZED NODE_V8_COVERAGE NPM_CONFIG_* "
    "YARN_* PNPM_* COREPACK_* BUN_OPTIONS BUN_INSTALL DENO_DIR",
    "a compiler": "CC CXX CPP LD AR AS CFLAGS CXXFLAGS CPPFLAGS LDFLAGS CPATH C_INCLUDE_PATH CPLUS_INCLUDE_PATH LIBRARY_PATH "
    "COMPILER_PATH GCC_EXEC_PREFIX",
    "make or CMake": "MAKEFLAGS MAKEFILES MFLAGS GNUMAKEFLAGS CMAKE_TOOLCHAIN_FILE CMAKE_PREFIX_PATH CMAKE_PROGRAM_PATH "
    "CMAKE_C_COMPILER_LAUNCHER CMAKE_CXX_COMPILER_LAUNCHER",
    "Java": "JAVA_HOME JDK_HOME JRE_HOME JAVA_TOOL_OPTIONS JDK_JAVA_OPTIONS _JAVA_OPTIONS JAVA_OPTS CLASSPATH SBT_OPTS MAVEN_* "
    "MVNW_* GRADLE_*",
    ".NET": "COR_* CORECLR_* COMPLUS_* MSBUILD* NUGET_* DOTNET_STARTUP_HOOKS DOTNET_ROOT DOTNET_ROOT_* DOTNET_ADDITIONAL_DEPS "
    "DOTNET_SHARED_STORE DOTNET_HOST_PATH DOTNET_CLI_HOME",
    "Go": "GOFLAGS GOROOT GOPATH GOBIN GOENV GOWORK GOPROXY GOSUMDB GONOSUMDB GONOSUMCHECK GOPRIVATE GOINSECURE GOVCS "
    "GOTOOLCHAIN GOTOOLDIR GOEXPERIMENT GOCACHE GOMODCACHE GOCOVERDIR GOOS GOARCH CGO_*",
    "Rust": "CARGO CARGO_* RUSTC RUSTC_* RUSTDOC RUSTFLAGS RUSTDOCFLAGS RUSTUP_*",
    "Perl": "PERL5* PERLLIB PERL_* HARNESS_PERL HARNESS_PERL_SWITCHES HARNESS_OPTIONS HARNESS_SUBCLASS",
    "Ruby": "RUBYOPT RUBYLIB RUBYSHELL GEM_HOME GEM_PATH BUNDLE_*",
    "PHP": "PHPRC PHP_INI_SCAN_DIR PHP_BINARY COMPOSER_*",
    "Erlang or Elixir": "ERL_* ELIXIR_ERL_OPTIONS REBAR_* MIX_EXS MIX_HOME MIX_ARCHIVES MIX_PATH MIX_DEPS_PATH MIX_BUILD_PATH MIX_BUILD_ROOT",
    "Lua": "LUA_INIT LUA_PATH LUA_CPATH",
}
"""Who reads a variable to decide which code it starts, where files are, or whom it trusts. A star stands for any end of a name."""
_READER_OF = {name: reader for reader, names in _READERS.items() for name in names.split()}


def fault_of(table: Any) -> str:
    """Return what is wrong with a table of variables, as a clause; empty if it is right."""
    if not isinstance(table, dict) or len(table) > MOST_VARIABLES:
        return f"must be a table of at most {MOST_VARIABLES} variables"
    for name, value in table.items():
        if _NAME.fullmatch(name) is None:
            return f"has {name!r}, which is not the name of a variable"
        if reader := _reader(name):
            return f"may not set {name}, which {reader} reads"
        if not isinstance(value, str) or "\0" in value or len(value) > MOST_LENGTH:
            return f"must give {name} a text of at most {MOST_LENGTH:,} characters"
    return ""


def _reader(name: str) -> str:
    """Return who reads a variable that may not be set; empty if it may."""
    readers = (reader for pattern, reader in _READER_OF.items() if fnmatchcase(name.upper(), pattern))
    return next(readers, "")
