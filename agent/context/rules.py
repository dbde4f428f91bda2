"""Decide by name and by content which files do not belong in a prompt.

Like all modules of a cached pack (`files`, `cache`, `history`, `pack`), this one imports almost nothing. On a
repository of a million tokens, the imports of a typical program would take longer than everything else.
"""

from __future__ import annotations

from m3agent.agent.repo.own_output import CERTIFICATE

SECRETS = "1+redact-secret-0.1.0b15"
"""Versions of the rules for secrets (see `secrets`) and of the library, which is too slow to query."""

VERSION = f"3 {SECRETS}"
"""Part of every cache key. Change it whenever a rule below or the output of `chunks` changes."""

MAX_FILE_BYTES = 1024 * 1024
"""Larger files are not packed; almost all of them are generated or contain data."""

_LONG_LINE = 2000
_SMALL = 8192
_HEAD = 1024


class Reason(str):
    """Why a file is not in the context, in words for people."""

    __slots__ = ()


OVER_BUDGET = Reason("over budget")
BINARY = Reason("binary")
CREDENTIALS = Reason("credentials")
IMAGE = Reason("image")
LARGE = Reason("larger than 1 MiB")
LFS = Reason("Git LFS pointer")
LINK = Reason("symbolic link")
LOCK = Reason("lock file")
MINIFIED = Reason("minified")
UNREADABLE = Reason("unreadable")
VENDORED = Reason("vendored")
GENERATED = Reason("generated")
NOTEBOOK = Reason("notebook")
TRANSLATION = Reason("translation catalogue")
SUBMODULE = Reason("submodule or nested repository")
IGNORED = Reason("ignored by .m3agentignore")
EXCLUDED = Reason("left out by --include or --exclude")

BY_CONTENT = (BINARY, CREDENTIALS, GENERATED, LARGE, LFS, MINIFIED)
"""The reasons that `reason_by_content` returns. Caches store indexes in this tuple, so only append to it."""

_VENDORED_FOLDERS = frozenset(
    {
        *("node_modules", "bower_components", "vendor", "_vendor", "third_party", "third-party"),
        *("thirdparty", "site-packages", ".venv", "venv", ".tox", ".nox", "__pycache__"),
    }
)
_LOCKS = frozenset(
    {
        *("package-lock.json", "npm-shrinkwrap.json", "pnpm-lock.yaml", "go.sum", "bun.lockb"),
        *("packages.lock.json", "gradle.lockfile", "package.resolved"),
    }
)
_BY_SUFFIX = (
    dict.fromkeys(
        [".jks", ".kdbx", ".key", ".keystore", ".p12", ".p8", ".pem", ".pfx", ".pkcs12", ".ppk", ".tfstate"],
        CREDENTIALS,
    )
    | dict.fromkeys(
        [
            *(".ai", ".avif", ".bmp", ".eps", ".gif", ".heic", ".ico", ".icns", ".jpeg", ".jpg", ".png"),
            *(".psd", ".svg", ".tif", ".tiff", ".webp"),
        ],
        IMAGE,
    )
    | dict.fromkeys([".po", ".pot", ".xlf", ".xliff"], TRANSLATION)
    | {".lock": LOCK, ".map": MINIFIED, ".ipynb": NOTEBOOK}
)
_MINIFIED = (".min.js", ".min.css", ".min.mjs")

_CREDENTIAL_NAMES = frozenset(
    {
        *(".env", ".envrc", ".netrc", "_netrc", ".pgpass", ".my.cnf", ".npmrc", ".pypirc", ".htpasswd"),
        *(".git-credentials", ".dockercfg", ".dockerconfigjson", "kubeconfig", "credentials"),
        *(
            f"{name}.{suffix}"
            for name in ("credentials", "secret", "secrets")
            for suffix in ("json", "yaml", "yml", "toml", "ini")
        ),
    }
)
_KEY_FILES = ("id_rsa", "id_dsa", "id_ecdsa", "id_ed25519")
_ACCOUNT_FILES = ("service-account", "service_account", "client_secret")
# Templates of such files contain no secrets, and they document the settings.
_TEMPLATES = ("dist", "example", "sample", "template")


def reason_by_name(path: str) -> Reason | None:
    """Return why a file with this path is left out whatever its content; None if it is not."""
    *folders, name = path.lower().split("/")
    dot = name.rfind(".")
    found = _BY_SUFFIX.get(name[dot:]) if dot > 0 else None
    if found is CREDENTIALS or _holds_credentials(name):
        return CREDENTIALS
    if not _VENDORED_FOLDERS.isdisjoint(folders):
        return VENDORED
    if found is not None:
        return found
    if name in _LOCKS:
        return LOCK
    return MINIFIED if name.endswith(_MINIFIED) else None


def _holds_credentials(name: str) -> bool:
    known = (
        name in _CREDENTIAL_NAMES
        or name.endswith(".env")
        or name.startswith(".env.")
        or (name.startswith(_KEY_FILES) and not name.endswith(".pub"))
        or (name.startswith(_ACCOUNT_FILES) and name.endswith(".json"))
    )
    return known and not any(word in name for word in _TEMPLATES)


def reason_by_content(data: bytes, largest: int = MAX_FILE_BYTES) -> Reason | None:
    """Return why a file with this content is left out; None if it is not.

    Files of more than `largest` bytes are too large.
    """
    if len(data) > largest:
        return LARGE
    if b"\0" in data and not data.startswith((b"\xff\xfe", b"\xfe\xff")):  # byte order marks of UTF-16
        return BINARY
    head = data[:_HEAD]
    if head.startswith(b"-----BEGIN ") and b"PRIVATE KEY" in head[:64]:
        return CREDENTIALS
    if head.startswith(b"version https://git-lfs.github.com/spec/"):
        return LFS
    if _says_generated(head) or head.startswith(CERTIFICATE):
        return GENERATED
    if len(data) > _SMALL:
        in_long_lines = sum(len(line) for line in data.splitlines() if len(line) > _LONG_LINE)
        if in_long_lines * 2 > len(data):
            return MINIFIED
    return None


def _says_generated(head: bytes) -> bool:
    """Return whether a comment in the first lines marks the file as generated.

    The mark is the tag `@generated`, or Go's convention: "generated" together with "DO NOT EDIT".
    """
    if b"enerated" not in head:
        return False
    for line in head.splitlines():
        comment = line.lstrip()
        if comment.startswith((b"//", b"#", b"/*", b"*", b"--", b";", b"<!--", b'"""')) and (
            b"@generated" in comment or (b"enerated" in comment and b"DO NOT EDIT" in comment.upper())
        ):
            return True
    return False
