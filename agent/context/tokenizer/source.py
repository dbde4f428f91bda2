"""Find the tokenizer for counting without loading it; a cached pack needs only its identity."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from hashlib import sha256

from m3agent.agent.context.cache import folder_of_all, keep_file
from m3agent.util.private_file import read_file
from m3agent.util.record import record

TYPE_CHECKING = False  # type checkers take this for true; typing itself is slow to import
if TYPE_CHECKING:
    from typing import Literal

    from m3agent.agent.settings.settings import Settings

KITOKEN = "0.11.1"
"""Version of the counting library; part of cache keys, because another version may count differently."""

_MODEL = "MiniMaxAI/MiniMax-M3"
_FILE = "tokenizer.json"
_LARGEST = 256 * 1024 * 1024
_REMEMBERED = 50
_ADVICE = "give the model's tokenizer.json or its folder with --tokenizer"


@record
class TokenizerSource:
    """A tokenizer and its location."""

    kind: Literal["file", "hub", "server"]
    """`hub` is Hugging Face's cache."""
    id: str
    """Identity; equal as long as the counts are."""
    label: str
    """Name for people."""
    location: str
    """Path of the file, or the address that counts."""
    cache: str
    """Folder for data derived from it."""
    model: str | None = None
    """Name of the model; only for a server."""
    api_key: str | None = None
    """Key; only for a server."""


def chosen_tokenizer(
    settings: Settings,
    state: str,
    model: str | None,
    *,
    endpoint: str | None = None,
    api_key: str | None = None,
) -> TokenizerSource | None:
    """Return the tokenizer for the settings; `state` is the state folder.

    `endpoint` is the address of the model server and `api_key` its key, for the setting `tokenizer = "server"`.
    """
    return find_tokenizer(
        settings.tokenizer,
        env=os.environ,
        cache=folder_of_all(state),
        model=model,
        endpoint=endpoint,
        api_key=api_key,
    )


def find_tokenizer(
    wanted: str | None,
    *,
    env: Mapping[str, str],
    cache: str,
    model: str | None = None,
    endpoint: str | None = None,
    api_key: str | None = None,
) -> TokenizerSource | None:
    """Return the tokenizer for counting, or None if tokens are estimated without a tokenizer.

    An unchanged file is read only once; later calls recognise it by its metadata.

    Args:
        wanted: A tokenizer.json, a folder that contains one, or `server` for the tokenizer of the server at
            `endpoint`. None for the model's own tokenizer, if Hugging Face's cache has it.

    Raises:
        UsageError: The wanted tokenizer does not exist.
        ModelServerError: See `find_server`.
    """
    if wanted == "server":
        from m3agent.agent.context.tokenizer.server import find_server

        name, url, label = find_server(endpoint, model=model, api_key=api_key)
        return TokenizerSource("server", name, label, url, cache, model=model, api_key=api_key)
    if wanted is not None:
        path = _expanded(wanted, env)
        return TokenizerSource("file", _identity(path, cache), wanted, _file_of(path), cache)
    for name in _names(model):
        found = _in_hub(name, env)
        if found is not None:
            return TokenizerSource("hub", _identity(found, cache), f"{name} from the hub cache", found, cache)
    return None


def read_tokenizer(path: str) -> bytes:
    """Return the content of a tokenizer's file.

    Raises:
        UsageError: The file cannot be read.
    """
    try:
        # O_NONBLOCK: opening a pipe must not wait for a writer.
        with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise _fault(f"{path} is not a file: {_ADVICE}.")
            if status.st_size > _LARGEST:
                raise _fault(f"{path} is too large to be a tokenizer ({status.st_size:,} bytes): {_ADVICE}.")
            return file.read(_LARGEST)
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from None


def identity(data: bytes) -> str:
    """Return the identity of a tokenizer's file.

    Half a digest is sufficient, and it is part of file names.
    """
    return f"{sha256(data).hexdigest()[:32]}-kitoken-{KITOKEN}"


def _file_of(path: str) -> str:
    """Return the path of the tokenizer.json for a path of a file or a folder."""
    return f"{path}/{_FILE}" if os.path.isdir(path) else path


def _identity(given: str, cache: str) -> str:
    """Return the identity of a tokenizer's file; the file is read only if it is new or has changed."""
    path = _file_of(given)
    try:
        status = os.stat(path)
    except FileNotFoundError:
        if path != given:
            raise _fault(
                f"There is no {_FILE} in {given}: give the folder of a downloaded model, or the file itself."
            ) from None
        raise _fault(f"There is no tokenizer at {given}: {_ADVICE}.") from None
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from None
    # Renaming another file into place changes the inode. Writing to this file changes its times, and no
    # program can set the change time back.
    known_by = f"{status.st_dev} {status.st_ino} {status.st_size} {status.st_mtime_ns} {status.st_ctime_ns} {KITOKEN}"
    memory = f"{cache}/tokenizers/known"
    lines = (read_file(memory) or b"").decode("utf-8", "replace").splitlines()
    for line in lines:
        name, _, facts = line.partition(" ")
        if facts == known_by:
            return name
    found = identity(read_tokenizer(path))
    keep_file(memory, "\n".join([f"{found} {known_by}", *lines[: _REMEMBERED - 1]]).encode())
    return found


def _names(model: str | None) -> list[str]:
    """Return the hub repositories that may contain the model's tokenizer, the likeliest first."""
    names = [model] if model is not None and model.count("/") == 1 else []
    if model is None or "minimax-m3" in model.lower():
        names.append(_MODEL)
    return names


def _in_hub(name: str, env: Mapping[str, str]) -> str | None:
    """Return the tokenizer.json of a repository in the hub's cache.

    It is taken from the main branch, else from the newest download.
    """
    home = env.get("HF_HOME") or f"{env.get('XDG_CACHE_HOME') or env.get('HOME', '') + '/.cache'}/huggingface"
    hub = env.get("HF_HUB_CACHE") or env.get("HUGGINGFACE_HUB_CACHE") or f"{home}/hub"
    folder = f"{_expanded(hub, env)}/models--{name.replace('/', '--')}"
    try:
        snapshots = os.listdir(f"{folder}/snapshots")
    except (OSError, ValueError):
        return None
    main = (read_file(f"{folder}/refs/main") or b"").decode("utf-8", "replace").strip()
    dated: list[tuple[bool, int, str]] = []
    for snapshot in snapshots:
        path = f"{folder}/snapshots/{snapshot}/{_FILE}"
        try:
            status = os.stat(path)
        except OSError:
            continue
        if stat.S_ISREG(status.st_mode):
            dated.append((snapshot == main, status.st_mtime_ns, path))
    return max(dated)[2] if dated else None


def _expanded(path: str, env: Mapping[str, str]) -> str:
    """Return the path with a leading `~` replaced, because no shell does that in settings."""
    return env.get("HOME", "~") + path[1:] if path == "~" or path.startswith("~/") else path


def _unreadable(path: str, error: Exception) -> Exception:
    reason = error.strerror if isinstance(error, OSError) else error
    return _fault(f"The tokenizer {path} cannot be read ({reason}): {_ADVICE}.")


def _fault(text: str) -> Exception:
    from m3agent.util.errors import UsageError

    return UsageError(text)
