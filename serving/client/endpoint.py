"""Probe a model server: find out which engine and model it is, once, before any other request."""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias
from urllib.parse import urlsplit

from m3agent.serving.client.http import host_of, is_local, open_client, request_headers
from m3agent.serving.client.messages import ReasoningField
from m3agent.serving.client.models import ModelRow, known_model
from m3agent.serving.client.prices import Prices, listed_prices
from m3agent.serving.client.server_errors import translate
from m3agent.serving.errors import EndpointRefused, EndpointUnreachable, ModelServerError, WrongModel
from m3agent.util.json_value import mapping, mappings

if TYPE_CHECKING:
    import openai

Flavour: TypeAlias = Literal[
    "vllm", "sglang", "trtllm", "minimax", "openrouter", "nim", "embedded", "unknown"
]

SGLANG_INFO_PATHS = ("/server_info", "/get_server_info")
"""SGLang's page about itself, beside /v1; SGLang has renamed it."""


@dataclass(frozen=True)
class _Kind:
    """How one kind of server is recognised, and how it is addressed."""

    reasoning_field: ReasoningField
    """The key for an assistant's reasoning, in requests and responses."""
    owner: str | None = None
    """The value of `owned_by` in /v1/models."""
    domains: tuple[str, ...] = ()
    """The domains of a hosted API."""
    version_paths: tuple[str, ...] = ()
    """The pages with the version, beside /v1."""
    takes_template: bool = False
    """Whether it passes `chat_template_kwargs` to M3's template; such servers also know `top_k`."""
    session_headers: tuple[str, ...] = ()
    """The headers from which a router in front of it reads a request's session. Hosted APIs get none."""


# vllm-router reads the first one (policies consistent_hash and sticky_least_loaded), Dynamo the second one. vllm-router passes
# on the list of models of its workers, so it looks like vLLM; Dynamo has a list of its own, so it is an unknown server.
_ROUTERS = ("X-Session-ID", "x-dynamo-session-id")

_KINDS: dict[Flavour, _Kind] = {
    "vllm": _Kind(
        "reasoning", "vllm", version_paths=("/version",), takes_template=True, session_headers=_ROUTERS
    ),
    "sglang": _Kind(
        "reasoning_content",
        "sglang",
        version_paths=SGLANG_INFO_PATHS,
        takes_template=True,
        session_headers=_ROUTERS,
    ),
    "trtllm": _Kind(
        "reasoning_content",
        "tensorrt_llm",
        version_paths=("/version",),
        takes_template=True,
        session_headers=_ROUTERS,
    ),
    "minimax": _Kind(
        "reasoning_details", domains=("minimax.io", "minimaxi.com", "minimax.chat", "minimax.cn")
    ),
    "openrouter": _Kind("reasoning", domains=("openrouter.ai",)),
    "nim": _Kind("reasoning_content", domains=("api.nvidia.com",)),
    "embedded": _Kind("reasoning", "m3agent", takes_template=True),
    "unknown": _Kind("reasoning_content", session_headers=_ROUTERS),
}
_LENGTH_KEYS = ("max_model_len", "context_length", "context_window", "max_context_length")
_MOST_LENGTH = 2**53  # larger numbers may not even fit into a float
NO_LIST = (404, 405)
"""Statuses of a server that has no list of models."""
_MODELS_NAMED = 5  # the most names in an error message


@dataclass(frozen=True)
class Endpoint:
    """A server and what it can do."""

    url: str
    """The base address; `/chat/completions` follows it."""
    model: str
    """The model's name."""
    flavour: Flavour
    """The engine or the hosted API."""
    version: str | None
    """The engine's version; None if the server does not say."""
    max_model_len: int | None
    """The context window in tokens, for prompt and answer together; None if the server does not say."""
    reasoning_field: ReasoningField
    """The key for an assistant's reasoning."""
    local: bool
    """The server is on this machine. Data sent to another machine leaves the user's control."""
    images: bool = False
    """Messages may hold images. False if unknown, because a model without vision refuses the whole request."""
    prices: Prices | None = None
    """The prices that the server lists for the model, if any."""
    effort: str | None = None
    """The level of effort that the user chose; None leaves it to the model."""
    refused: set[str] = field(default_factory=set, compare=False, repr=False)
    """Optional parameters that the server has refused so far. They are not sent again."""

    @property
    def host(self) -> str:
        """Host and port, for people."""
        return host_of(self.url)

    @property
    def known(self) -> ModelRow | None:
        """What is known about the model, if the server's kind says that it is sold by MiniMax."""
        return known_model(self.model) if self.flavour == "minimax" else None

    @property
    def takes_template(self) -> bool:
        """Whether the server passes `chat_template_kwargs` to M3's template, and knows `top_k`."""
        return _KINDS[self.flavour].takes_template

    @property
    def session_headers(self) -> tuple[str, ...]:
        """The headers that may name a request's session."""
        return _KINDS[self.flavour].session_headers


async def probe(url: str, *, api_key: str | None, model: str | None, timeout: float = 10) -> Endpoint:
    """Ask a server for its models, engine and version.

    Proxies that record what a model is asked often answer requests for chat only. So if `model` is named, a server
    without a list of models is no error; then nothing else about it is known.

    Args:
        model: The model to use. If None, the server must have exactly one model, or exactly one with a name
            like MiniMax M3.

    Raises:
        EndpointUnreachable: The server does not answer, or `url` is not an HTTP address.
        EndpointRefused: The response is not a list of models, or does not have `model`.
    """
    given = _clean(url)
    bases = [given] if given.endswith("/v1") else [f"{given}/v1", given]
    failure: ModelServerError | None = None
    for base in bases:
        async with open_client(base, api_key, connect=min(timeout, 10.0), read=timeout) as client:
            try:
                listed = _models(await get(client, f"{base}/models", api_key), base)
            except EndpointRefused as error:
                if error.status not in (200, *NO_LIST):
                    raise
                failure = failure or error
                continue
            chosen = _choose(listed, model, base)
            flavour = _flavour(base, chosen)
            return replace(
                _endpoint(base, flavour, chosen),
                version=await _version(client, base, flavour, api_key),
                images=flavour != "embedded" and _takes_images(chosen, flavour),
                prices=listed_prices(chosen),
            )
    if model is not None and isinstance(failure, EndpointRefused) and failure.status in NO_LIST:
        return unasked(url, model)
    raise failure or EndpointUnreachable(host_of(given), "it sent no answer")


def unasked(url: str, model: str) -> Endpoint:
    """Return a server that is not asked about itself: all that is known is its address.

    Args:
        url: The base address. If it has no path, `/v1` is added; other paths are kept as they are.

    Raises:
        EndpointUnreachable: `url` is not an HTTP address.
    """
    given = _clean(url)
    base = given if urlsplit(given).path else f"{given}/v1"
    return _endpoint(base, _flavour(base, {}), {"id": model})


def _endpoint(base: str, flavour: Flavour, entry: Mapping[str, Any]) -> Endpoint:
    """Return a server with what follows from its kind and from the model's entry in its list."""
    model = str(entry["id"])
    known = known_model(model) if flavour == "minimax" else None
    length = _length(entry) or (None if known is None else known.window)
    reasoning_field = _KINDS[flavour].reasoning_field if known is None else known.reasoning_field
    return Endpoint(base, model, flavour, None, length, reasoning_field, is_local(base))


def _clean(url: str) -> str:
    cleaned = url.strip().rstrip("/")
    if "://" not in cleaned:
        cleaned = f"http://{cleaned}"
    parts = urlsplit(cleaned)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise EndpointUnreachable(host_of(cleaned), "an endpoint must be an http:// or https:// address")
    return cleaned.removesuffix("/chat/completions").removesuffix("/models")


async def get(client: "openai.AsyncOpenAI", url: str, api_key: str | None) -> str:
    """Return the text at a URL. Raises ModelServerError."""
    return await _text(partial(client.get, url), url, api_key)


async def post(client: "openai.AsyncOpenAI", url: str, body: Mapping[str, Any], api_key: str | None) -> str:
    """Send a JSON body to a URL and return the text of the response. Raises ModelServerError."""
    return await _text(partial(client.post, url, body=body), url, api_key)


async def _text(send: Callable[..., Awaitable[Any]], url: str, api_key: str | None) -> str:
    import openai

    try:
        return str(await send(cast_to=str, options={"headers": request_headers(api_key)}))
    except openai.APIError as error:
        raise translate(error, host_of(url), api_key) from error


def _models(text: str, base: str) -> list[Mapping[str, Any]]:
    """Return the entries of a list of models.

    Raises:
        EndpointRefused: The text is something else, so the address is not that of a model server.
    """
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError):
        answer = None
    entries = mapping(answer).get("data")
    if not isinstance(entries, list):
        what = "a web page" if "<html" in text[:2000].lower() else "something that is not a list of models"
        advice = "this is not the address of an OpenAI-compatible API; such an address usually ends in /v1"
        raise EndpointRefused(
            200, f"{what} at {urlsplit(base).path}/models", host=host_of(base), advice=advice
        )
    return [entry for entry in mappings(entries) if entry.get("id")]


def _choose(listed: list[Mapping[str, Any]], model: str | None, base: str) -> Mapping[str, Any]:
    names = [str(entry["id"]) for entry in listed]
    some = ", ".join(names[:_MODELS_NAMED]) + (", …" if len(names) > _MODELS_NAMED else "")
    if model is not None:
        for entry in listed:
            if entry["id"] == model:
                return entry
        if names:
            raise WrongModel(host_of(base), f"does not serve {model!r}", some)
        missing = f"there is no model {model!r}"
        raise EndpointRefused(404, missing, host=host_of(base), advice="it serves no model yet")
    if not listed:
        raise EndpointRefused(
            404, "no models", host=host_of(base), advice="wait until it has loaded its model"
        )
    like_m3 = [entry for entry in listed if "minimax-m3" in str(entry["id"]).lower()]
    candidates = listed if len(listed) == 1 else like_m3
    if len(candidates) != 1:
        raise WrongModel(host_of(base), f"serves {len(names)} models", some)
    return candidates[0]


def _length(entry: Mapping[str, Any]) -> int | None:
    for key in _LENGTH_KEYS:
        length = entry.get(key)
        if isinstance(length, int) and not isinstance(length, bool) and 0 < length < _MOST_LENGTH:
            return length
    return None


def _flavour(base: str, model: Mapping[str, Any]) -> Flavour:
    """Return the kind of server: by host name for a hosted API, else by the `owned_by` of the model."""
    name = urlsplit(base).hostname or ""
    for flavour, kind in _KINDS.items():
        if any(name == domain or name.endswith(f".{domain}") for domain in kind.domains):
            return flavour
    owner = str(model.get("owned_by") or "").lower().replace("-", "_")
    for flavour, kind in _KINDS.items():
        if kind.owner == owner:
            return flavour
    return "unknown"


def _takes_images(entry: Mapping[str, Any], flavour: Flavour) -> bool:
    """Return whether the model accepts images, by its entry in the list of models.

    If the entry does not say, return True only for M3 on MiniMax's own hosts, which accepts images. vLLM,
    SGLang and TensorRT-LLM say nothing. OpenRouter has `architecture.input_modalities`, others `modalities`
    or `capabilities`. Each is a list of words, or an object with words as keys and booleans as values.
    """
    architecture = mapping(entry.get("architecture"))
    places = (
        entry.get("input_modalities"),
        entry.get("modalities"),
        architecture.get("input_modalities"),
        architecture.get("modalities"),
        entry.get("capabilities"),
    )
    stated = [value for value in places if isinstance(value, list | Mapping)]
    if not stated:
        return flavour == "minimax" and "minimax-m3" in str(entry["id"]).lower()
    words = {str(word).lower() for value in stated for word in _stated_words(value)}
    return not words.isdisjoint(("image", "images", "vision"))


def _stated_words(value: Sequence[object] | Mapping[object, object]) -> Sequence[object]:
    """Return the words of a list, or of an object that has such a list as `input`, or words as keys."""
    if not isinstance(value, Mapping):
        return value
    listed = value.get("input")
    return listed if isinstance(listed, list) else [word for word in value if value[word] is True]


async def _version(
    client: "openai.AsyncOpenAI", base: str, flavour: Flavour, api_key: str | None
) -> str | None:
    """Return the server's version; None if it does not say, which is not an error."""
    for path in _KINDS[flavour].version_paths:
        try:
            answer = json.loads(await get(client, base.removesuffix("/v1") + path, api_key))
        except (ModelServerError, ValueError, RecursionError):
            continue
        if isinstance(answer, dict) and answer.get("version"):
            return str(answer["version"])
    return None
