"""Declare the settings, each once, as a field of `Settings`.

Everything else about a setting is derived from its declaration: the flags of the commands (`options`), the
environment variable, the key in settings files, and whether a repository's own file may set it (`loader`).
`make docs-pages` also derives the arguments of the Python API and the table in docs/settings.md.

The command line imports this module when it starts, so this module imports nothing heavy. Its annotations are read at
run time, so it does not postpone their evaluation.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field, fields
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin
from urllib.parse import urlsplit

from m3agent.sandbox.backends.kinds import Backend
from m3agent.util.token_count import token_count
from m3agent.util.xdg import config_path, state_path

if TYPE_CHECKING:
    from m3agent.agent.settings.server_key import ServerKey
    from m3agent.sandbox.network.allow_list import AllowList

LONGEST_NAME = 1000
"""The most characters of a model's or an image's name: more than a path of this length would have."""
AUTO_BUDGET = 2**53
"""Stands for `--context-budget auto`. It is more than any limit, so that every other limit is lower."""
RERUNS = 3
"""How often the tests that decide a verdict run again; `m3agent.agent.verify.flaky` explains the reruns."""


@dataclass(eq=False)  # a frozen one takes longer to make, and every command makes all of them
class Setting:
    """The declaration of a setting."""

    default: object
    help: str
    """One sentence, for `--help` and the documentation."""
    _: KW_ONLY
    panel: str = ""
    """The panel of `--help` that has its flag."""
    more: str = ""
    """Further text for the documentation, in Markdown."""
    metavar: str | None = None
    """Stands for the value in `--help`. With it, the command line takes any text for a choice, and `load_settings`
    reports invalid values."""
    if_unset: str = ""
    """What applies if the default is None, in Markdown."""
    flag: bool = True
    """Whether commands have a flag for it. The Python API has an argument for every setting."""
    at_least: int | None = None
    """The lowest number that is allowed."""
    above: int | None = None
    """Numbers must be greater than this one."""
    at_most: int | None = None
    """The highest number that is allowed."""
    read: Callable[[str], object] | None = None
    """Turns text into a value, and raises ValueError. With it, the command line and files take text for a number."""
    check: Callable[[Any], object] | None = None
    """Returns the value to use; raises ValueError with the reason why a value is refused."""
    repository: Literal["no", "ignored", "unset", "lower"] = "no"
    """Whether a repository's own file may set it. Strangers write that file. It must not decide where the
    repository's content goes, with which key, what runs outside the sandbox, or how the sandbox is made. Limits on
    usage and cost are "lower": the file's value is used only if it is lower than the value in the user's file, or
    lower than the default if the user's file has no value. A choice is "unset": the file's value is used only if the
    user's file has none. "ignored" is "no" for a setting that earlier versions took from such a file: the file stays
    valid."""
    measure: Callable[[Any], float] = float
    """Turns a value of a "lower" setting into the number to compare."""
    secret: bool = False
    """Whether the value is secret. It is then never shown, and never taken from a command line, because every user of
    the machine can see command lines."""
    address: bool = False
    """Whether the value is a URL. Errors do not repeat a URL that may contain a password."""
    name: str = ""
    """Its name and its type come from the field of `Settings`."""
    type: Any = str
    """The type without None: `int`, `float`, `bool`, `str`, or a `Literal` of strings. If the annotation is a string,
    because importing its type takes long, values are text, and `check` converts them."""

    @property
    def field(self) -> Any:
        """The field of `Settings` that declares it."""
        return field(default=self.default, metadata={"setting": self})

    @property
    def option(self) -> str:
        """The flag, like `--max-turns`."""
        return "--" + self.name.replace("_", "-")

    @property
    def switch(self) -> str:
        """All forms of the flag. `--no-NAME` switches off what is on by default."""
        on = self.type is bool and self.default
        return f"{self.option}/--no-{self.option.removeprefix('--')}" if on else self.option

    @property
    def variable(self) -> str:
        """The environment variable, like `M3AGENT_MAX_TURNS`."""
        return f"M3AGENT_{self.name.upper()}"

    @property
    def choices(self) -> tuple[str, ...]:
        """The allowed values of a choice; empty for other types."""
        return get_args(self.type) if get_origin(self.type) is Literal else ()


def declared(declaration: "type[Settings]") -> dict[str, Setting]:
    """Return the settings of `Settings`, or of a class that extends it, by name."""
    settings: dict[str, Setting] = {}
    for each in fields(declaration):
        setting = settings[each.name] = each.metadata["setting"]
        setting.name, setting.type = each.name, _value_type(each.type)
    return settings


def _value_type(annotation: Any) -> Any:
    if isinstance(annotation, str):
        return str
    if get_origin(annotation) in (Union, UnionType):
        return next(each for each in get_args(annotation) if each is not NoneType)
    return annotation


def _context_budget(text: str) -> int:
    return AUTO_BUDGET if text.strip().lower() == "auto" else token_count(text)


def _check_endpoint(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0:
        raise ValueError("it should be an address like http://host:8000/v1")
    if parts.username is not None or parts.password is not None:
        raise ValueError("it must not contain a user name or password; put the key into M3AGENT_API_KEY")
    return url


def _check_engine(name: object) -> object:
    if name != "embedded":
        raise ValueError(
            "a fix starts the engine 'embedded' only; start another with `m3agent serve --engine`, which it then finds, "
            "or give --endpoint"
        )
    return name


def _check_name(text: str) -> str:
    if not text.strip() or text.startswith("-"):
        raise ValueError("it should be a name, not empty and not beginning with '-'")
    if not text.isprintable() or len(text) > LONGEST_NAME:
        raise ValueError(f"it should be a name of printable characters, at most {LONGEST_NAME}")
    return text


def _to_keys(text: str) -> "tuple[ServerKey, ...]":
    from m3agent.agent.settings.server_key import ServerKey

    return (ServerKey(text),)


def _to_allow_list(hosts: str) -> "AllowList":
    from m3agent.sandbox.network.allow_list import AllowList

    return AllowList(hosts)


def _check_hosts(hosts: str) -> str:
    for entry in hosts.split(","):
        host = urlsplit(f"//{entry.strip()}")
        if (
            not host.hostname
            or host.port == 0
            or host.netloc != entry.strip()
            or "@" in entry
            or "*" in entry
        ):
            raise ValueError("it should be hosts separated by commas, like gpu-box:8000,192.168.1.5")
    return hosts


def _check_server_price(price: str) -> str:
    from m3agent.serving.client.prices import server_price

    server_price(price)
    return price


def _check_commands(commands: str) -> str:
    if not commands.isprintable() or len(commands) > LONGEST_NAME:
        raise ValueError(f"it should be commands separated by semicolons, at most {LONGEST_NAME} characters")
    return commands


def _check_memory(size: str) -> str:
    if not re.fullmatch(r"[1-9][0-9]{0,11}[kmg]", size, re.IGNORECASE):
        raise ValueError("it should be a whole number with the unit k, m or g, like 4g")
    return size


def _measure_memory(size: str) -> float:
    from m3agent.sandbox.backends.factory import parse_bytes

    return parse_bytes(size)


def _check_github_api(url: str) -> str:
    from m3agent.serving.client.http import is_local

    _check_endpoint(url)
    parts = urlsplit(url)
    if parts.scheme != "https" and not is_local(url):
        raise ValueError("it should be an https address, since tokens are sent there")
    if parts.query or parts.fragment:
        raise ValueError("it should be an address like https://github.example.com/api/v3")
    return url.rstrip("/")


@dataclass(frozen=True)
class Settings:
    """All settings of one run, complete and checked. `config show` and the documentation list them in this order."""

    endpoint: str | None = Setting(
        None,
        "Address of an OpenAI-compatible M3 server.",
        panel="The model",
        more="For example `http://host:8000/v1`.",
        metavar="URL",
        if_unset="the server that `m3agent serve` runs here, else the embedded engine",
        check=_check_endpoint,
        address=True,
    ).field
    engine: Literal["embedded"] | None = Setting(
        None,
        "Engine to start for this fix: embedded, which needs a test that fails.",
        panel="The model",
        more="Excludes `endpoint`.",
        metavar="NAME",
        if_unset="none; `endpoint` says which server",
        check=_check_engine,
    ).field
    model: str | None = Setting(
        None,
        "Model name, if the server offers several.",
        panel="The model",
        metavar="NAME",
        if_unset="the server's only one",
        check=_check_name,
        repository="unset",
    ).field
    api_key: "tuple[ServerKey, ...] | None" = Setting(
        None,
        "Key for the endpoint.",
        more="See [Keys](#keys). A server that `m3agent serve` runs here gets its own key instead.",
        if_unset="no key is sent",
        flag=False,
        check=_to_keys,
        secret=True,
    ).field
    key_over_http: str | None = Setting(
        None,
        "Hosts that may get a key over plain http, where others in the network can read it.",
        more="Separated by commas: `gpu-box:8000`, or `gpu-box` for all ports. This machine needs no entry.",
        metavar="HOST,...",
        if_unset="none",
        flag=False,
        check=_check_hosts,
    ).field
    thinking: Literal["enabled", "disabled", "adaptive"] = Setting(
        "enabled",
        "M3's thinking mode.",
        panel="The model",
        more="See [Thinking](servers.md#thinking).",
        repository="ignored",
    ).field
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = Setting(
        None,
        "How much the model thinks, if it has levels of effort, as MiniMax-M3.1-Flash has.",
        panel="The model",
        more="See [Thinking](servers.md#thinking).",
        if_unset="the model's own default",
    ).field
    image: str | None = Setting(
        None,
        "Docker image for the sandbox.",
        panel="The sandbox",
        more="It needs python3.",
        metavar="IMG",
        if_unset="the one that the repository declares, else m3agent's own",
        check=_check_name,
    ).field
    environment: Literal["auto", "off"] = Setting(
        "auto",
        "Whether to install the dependencies that the repository declares (auto) or not (off).",
        panel="The sandbox",
        more="For Docker sandboxes; see [The sandbox](sandbox.md).",
        metavar="auto|off",
    ).field
    dockerfile: Literal["ask", "build", "read"] = Setting(
        "ask",
        "Whether to build the repository's Dockerfile, which runs its instructions (build), or only to use the image "
        "and packages that it names (read).",
        panel="The sandbox",
        more="`ask` asks once for each text of the file if standard input is a terminal, and otherwise means `read` "
        "with a note; see [The sandbox](sandbox.md#devcontainerjson-and-dockerfile).",
        metavar="ask|build|read",
    ).field
    sandbox: Backend | None = Setting(
        None,
        "Where tool calls run.",
        panel="The sandbox",
        more="`here`: in the present container, without isolation (see [The sandbox](sandbox.md#without-isolation)).",
        if_unset="docker, or bwrap if there is no container engine",
    ).field
    allow_net: "AllowList | None" = Setting(
        None,
        "Hosts that commands may reach, through a proxy.",
        panel="The sandbox",
        more="Separated by commas: `example.org`, `*.example.org`, `example.org:8443` (see [Network](network.md)). "
        "An empty value removes the hosts that a place of lower priority allows.",
        metavar="HOST,...",
        if_unset="none",
        check=_to_allow_list,
    ).field
    context_budget: int | None = Setting(
        None,
        "Limit of tokens of the repository's text in the prompt.",
        panel="The prompt",
        more="A number, text like `512k` or `1M`, or `auto` (see [The context](context.md#budget)). `m3agent context` calls the "
        "flag `--budget`.",
        metavar="TOKENS",
        read=_context_budget,
        if_unset="what the window leaves",
        at_least=1,
        repository="lower",
    ).field
    attempts: int = Setting(
        1,
        "Number of concurrent attempts; the best patch wins; limits of tokens and cost apply to all together.",
        panel="Limits",
        more="`max_turns` and `max_minutes` are limits for each.",
        metavar="N",
        at_least=1,
        at_most=64,
    ).field
    max_turns: int = Setting(
        100, "Limit of requests to the model.", panel="Limits", metavar="N", at_least=1, repository="lower"
    ).field
    max_minutes: float = Setting(
        60.0, "Time limit, in minutes.", panel="Limits", metavar="M", above=0, repository="lower"
    ).field
    max_tokens: int | None = Setting(
        None,
        "Limit of tokens that the model writes.",
        panel="Limits",
        more="For the whole session. A number, or text like `512k` or `1M`.",
        metavar="N",
        read=token_count,
        if_unset="no limit",
        at_least=1,
        repository="lower",
    ).field
    max_cost: float | None = Setting(
        None,
        "Limit of cost, in US dollars; an error if the server's prices are not known.",
        panel="Limits",
        metavar="D",
        if_unset="no limit",
        above=0,
        repository="lower",
    ).field
    server_price: str | None = Setting(
        None,
        "Price of your own server: GPUs x dollars per GPU-hour (8x2.50), or dollars per hour.",
        panel="The model",
        more="See [Model servers](servers.md).",
        metavar="[N x]D",
        if_unset="the hosted API's known prices; none for other servers",
        check=_check_server_price,
    ).field
    seed: int | None = Setting(
        None,
        "Seed of the embedded engine's search.",
        panel="The model",
        metavar="N",
        if_unset="`0`",
        at_least=0,
    ).field
    candidates: int | None = Setting(
        None,
        "Limit of changes that the embedded engine tries, however long that takes: the same number and seed give "
        "the same patch.",
        panel="The model",
        metavar="N",
        if_unset="6000 within 240 s",
        at_least=1,
    ).field
    reruns: int = Setting(
        RERUNS,
        "How often tests are rerun to detect flaky ones; 0 means never.",
        panel="Verification",
        more="Only the tests that decide the verdict.",
        metavar="N",
        at_least=0,
        at_most=20,
    ).field
    verify_rounds: int = Setting(
        2,
        "How often a verdict other than verified goes back to the model; 0 means never.",
        panel="Verification",
        more="The model can then correct its change in the same session, within all other limits.",
        metavar="N",
        at_least=0,
        at_most=10,
    ).field
    verify_minutes: float = Setting(
        5.0,
        "Time for the patched tree's tests if the whole suite takes longer.",
        panel="Verification",
        more="Tests that execute the change run first. If one of them has no time, the patch is unverified.",
        metavar="N",
        above=0,
    ).field
    baseline_minutes: float = Setting(
        60.0,
        "Time for the tests of the unchanged tree, which run while the model works.",
        panel="Verification",
        more="If it is too short, verification uses the tests that had a result, and those near the change.",
        metavar="N",
        above=0,
    ).field
    checks: str | None = Setting(
        None,
        "Commands that a patch must not make worse, such as 'ruff check .; mypy src'; found: those that the repository declares.",
        panel="Verification",
        more="Separated by semicolons. See [Declared checks](verify.md#declared-checks).",
        metavar="CMD;...",
        if_unset="none",
        check=_check_commands,
    ).field
    memory: str = Setting(
        "4g",
        "Memory limit of a sandbox: a number with the unit k, m or g.",
        flag=False,
        check=_check_memory,
        repository="lower",
        measure=_measure_memory,
    ).field
    cpus: float = Setting(
        2.0, "Limit of processors of a sandbox.", flag=False, above=0, repository="lower"
    ).field
    yes: bool = Setting(
        False,
        "Do not ask before a repository is first sent to a host.",
        panel="Other",
        more="Without a terminal to ask on, a note names the host. Nothing is asked or said about this machine.",
    ).field
    github_api: str = Setting(
        "https://api.github.com",
        "Address of GitHub's API, for GitHub Enterprise.",
        panel="Other",
        more="For example `https://github.example.com/api/v3`. Its host is the one that counts as GitHub. It must "
        "be https, except on this machine.",
        metavar="URL",
        check=_check_github_api,
        address=True,
    ).field
    tokenizer: str | None = Setting(
        None,
        "The model's tokenizer.json or its folder, or 'server'.",
        panel="The prompt",
        more="Without one, token counts are estimates (≈).",
        metavar="PATH|server",
        if_unset="the one in the hub's cache",
        check=_check_name,
    ).field
    prefix: Literal["plain", "frozen"] = Setting(
        "plain",
        "Order of the text, for the server's prefix cache: plain (rarely changed files first), or frozen "
        "(an earlier pack, then the changes).",
        panel="The prompt",
    ).field
    instructions: bool = Setting(
        True,
        "Point the model to the repository's own instructions for agents (AGENTS.md and similar files).",
        panel="The prompt",
    ).field
    mcp: bool = Setting(
        True,
        "Offer the tools of the MCP servers that are configured.",
        panel="The sandbox",
        more="See [Tools of other programs](mcp.md).",
    ).field

    probe: bool = Setting(
        True,
        "Ask the server about its model and engine before the first request.",
        panel="The model",
        more="Without it, the model must be named, and the server gets requests for chat only. Some recording proxies "
        "need that.",
    ).field

    training: bool = Setting(
        False,
        "For programs that train a model with the conversation.",
        panel="Other",
        more="See [Fixing an issue](fix.md#training).",
    ).field

    @property
    def keys(self) -> "tuple[ServerKey, ...]":
        """The keys that are configured, those that come first are preferred. `agent/endpoint/choice.py` chooses."""
        return self.api_key or ()

    def public(self) -> dict[str, object]:
        """Return the values by name, without secrets."""
        return {name: getattr(self, name) for name, setting in SETTINGS.items() if not setting.secret}


SETTINGS: Mapping[str, Setting] = declared(Settings)
"""The settings by name."""


def config_file(env: Mapping[str, str]) -> Path | None:
    """Return the path of the user's settings file, which may not exist; None if there is no home folder."""
    path = config_path(env)
    return Path(path) if path else None


def state_dir(env: Mapping[str, str]) -> Path:
    """Return the folder for sessions and caches; see `xdg.state_path`."""
    return Path(state_path(env))
