"""Check a launch command against the options that a version of an engine has.

vLLM's argument parser does not check the names of parsers, backends and quantisations. A misspelt name is
accepted, the weights load for minutes, and only then the server stops or, worse, runs without the feature.
The listings come from the engines' own parsers and registries (`scripts/condense_listing.py`).
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Literal

from m3agent.serving.plan.command import LaunchCommand, Option, flag_of
from m3agent.serving.plan.engines import ENGINES

_STARTS = {
    "vllm": ("vllm serve", "vllm.entrypoints.cli.main serve", "vllm.entrypoints.openai.api_server"),
    "sglang": ("sglang.launch_server", "sglang serve"),
}
_MODEL = {"vllm": "--model", "sglang": "--model-path"}
_SIZE = re.compile(r"[0-9]+(\.[0-9]+)?[kmgt]|[0-9]+[KMGT]?")  # 25.6k is 25,600; 1K is 1,024
_OPTIMISATION = re.compile(r"-O=?(?P<level>.*)", re.DOTALL)  # vLLM rewrites -O3, -O=3 and -O 3

_LEVELS = (("0",), ("1",), ("2",), ("3",))
_COUNTS = {"none": (0, 0), "maybe": (0, 1), "one": (1, 1), "some": (1, None), "any": (0, None)}

Takes = Literal["none", "maybe", "one", "some", "any"]


@dataclass(frozen=True)
class KnownOption:
    """An option as the engine defines it."""

    flags: tuple[str, ...]
    takes: Takes = "one"
    type: str | None = None
    """Type of the values; None accepts any text."""
    names: tuple[str, ...] = ()
    """Allowed values; empty accepts any name."""
    repeats: bool = False


@dataclass(frozen=True)
class OptionListing:
    """Options of one version of an engine, by flag."""

    engine: str
    version: str
    options: Mapping[str, KnownOption]

    @property
    def name(self) -> str:
        """Engine and version as people write them."""
        return f"{ENGINES[self.engine].title} {self.version}"

    def spelt(self, flag: str) -> str:
        """Return the flag as the listing spells it: vLLM accepts underscores for dashes, up to the first dot."""
        if self.engine != "vllm" or not flag.startswith("--"):
            return flag
        base, dot, field = flag.partition(".")
        return base.replace("_", "-") + dot + field


def versions(engine: str) -> list[str]:
    """Return the versions of an engine with a listing, oldest first; empty if the engine has no listing."""
    listed = [
        entry.name.removesuffix(".json").removeprefix(f"{engine}-")
        for entry in (resources.files("m3agent.serving.plan") / "listings").iterdir()
        if entry.name.startswith(f"{engine}-")
    ]
    return sorted(listed, key=lambda version: [int(part) for part in version.split(".")])


@cache
def listing(engine: str, version: str | None = None) -> OptionListing:
    """Load the listing of a version; the default is the newest.

    Raises:
        ValueError: There is no listing of that engine or version.
    """
    known = versions(engine)
    if not known or version not in (None, *known):
        raise ValueError(
            f"There is no option list of {engine} {version}; known versions are {', '.join(known)}."
            if known
            else f"There is no option list of {engine}, only of vllm and sglang."
        )
    file = resources.files("m3agent.serving.plan") / "listings" / f"{engine}-{version or known[-1]}.json"
    data = json.loads(file.read_text("utf-8"))
    options: dict[str, KnownOption] = {}
    for row in data["options"]:
        names = tuple(data["registries"].get(row.get("registry"), row.get("names", ())))
        option = KnownOption(
            tuple(row["flags"]), row.get("takes", "one"), row.get("type"), names, row.get("repeats", False)
        )
        options |= dict.fromkeys(option.flags, option)
    return OptionListing(engine, data["version"], options)


def problems(argv: Sequence[str], listing: OptionListing) -> list[str]:
    """Return what the engine would reject or misread in a command.

    Returns:
        One sentence for each problem; empty if the command is valid.
    """
    command = LaunchCommand.of(argv)
    if command.starts not in _STARTS[listing.engine]:
        return [
            f"`{command.starts}` does not start {listing.name}; the command is `{_STARTS[listing.engine][0]}`."
        ]
    wrong: list[str] = []
    places = 1 if command.starts.endswith("serve") else 0
    wrong += [f"`{word}` belongs to no option." for word in command.positional[places:]]
    seen: set[KnownOption] = set()
    for option in command.options:
        wrong += _problems_of(option, listing)
        known = listing.options.get(listing.spelt(flag_of(option)))
        if known in seen and not known.repeats:
            wrong.append(
                f"`{flag_of(option)}` is given twice, perhaps once negated; only the last one counts."
            )
        elif known is not None:
            seen.add(known)
    if not command.positional[:places] and listing.options[_MODEL[listing.engine]] not in seen:
        wrong.append(f"No model is named, so {listing.name} would end, or serve its default model.")
    return wrong


def _problems_of(option: Option, listing: OptionListing) -> list[str]:
    flag, equals, inline = option[0].partition("=")
    values = ((inline,) if equals else ()) + option[1:]
    if listing.engine == "vllm" and (short := _OPTIMISATION.fullmatch(option[0])):
        level = (*filter(None, (short["level"],)), *option[1:])
        return [] if level in _LEVELS else [f"`{' '.join(option)}`: -O takes 0, 1, 2 or 3."]
    spelt = listing.spelt(flag)
    known = listing.options.get(spelt) or _setting_of_a_group(spelt, listing)
    if isinstance(known, str):
        return [f"`{flag}`: {known} is not a group of settings, so nothing can be set in it."]
    if known is None:
        return [_unknown(flag, spelt, listing)]
    if wrong := _count(flag, values, known):
        return wrong
    checks = [(flag, value, known) for value in values]
    if known.type == "json":
        checks += [check for value in values for check in _inside(flag, value, spelt, listing)]
    return [sentence for check in checks if (sentence := _value_problem(*check))]


def _setting_of_a_group(spelt: str, listing: OptionListing) -> KnownOption | str | None:
    """Return a setting inside one of vLLM's groups, which its parser does not list; the flag if that is no group."""
    group = listing.options.get(spelt.partition(".")[0])
    if "." not in spelt or group is None or listing.engine != "vllm":
        return None
    return KnownOption((spelt,)) if group.type in ("json", "json or text") else group.flags[0]


def _inside(flag: str, value: str, spelt: str, listing: OptionListing) -> list[tuple[str, str, KnownOption]]:
    """Return the settings inside a JSON group that the listing knows by name, each with its option."""
    group = json.loads(value) if _json(value) else None
    return [
        (f"{flag}.{name}", setting, known)
        for name, setting in (group.items() if isinstance(group, dict) else ())
        if isinstance(setting, str) and (known := listing.options.get(f"{spelt}.{name}"))
    ]


def _unknown(flag: str, spelt: str, listing: OptionListing) -> str:
    longer = {known.flags: name for name, known in listing.options.items() if name.startswith(spelt)}
    if spelt.startswith("--") and len(longer) == 1:
        (name,) = longer.values()
        return f"`{flag}` is short for `{name}` only in this version: write it in full."
    return f"{listing.name} has no option `{flag}`{_hint(spelt, listing.options)}"


def _count(flag: str, values: tuple[str, ...], known: KnownOption) -> list[str]:
    least, most = _COUNTS[known.takes]
    if len(values) < least:
        return [f"`{flag}` needs a value."]
    if most == 0 and values:
        return [f"`{flag}` is a switch and takes no value, but `{values[0]}` follows it."]
    if most is not None and len(values) > most:
        return [f"`{flag}` takes one value, but `{values[1]}` follows `{values[0]}`."]
    return []


def _value_problem(flag: str, value: str, known: KnownOption) -> str | None:
    if known.names and value not in known.names:
        return f"`{flag}` has no `{value}`{_hint(value, known.names)}"
    fits, called = _TYPES.get(known.type or "", (lambda _: True, ""))
    return None if fits(value) else f"`{flag}` takes {called}, not `{value}`."


def _hint(word: str, known: Sequence[str] | Mapping[str, KnownOption]) -> str:
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f"; did you mean `{near[0]}`?" if near else "."


def _parses(parse: Callable[[str], object]) -> Callable[[str], bool]:
    def fits(value: str) -> bool:
        try:
            parse(value)
        except (ValueError, RecursionError):
            return False
        return True

    return fits


_json = _parses(json.loads)
_TYPES: Mapping[str, tuple[Callable[[str], bool], str]] = {
    "int": (_parses(int), "a whole number"),
    "float": (_parses(float), "a number"),
    "number": (_parses(float), "a number"),
    "size": (lambda value: _SIZE.fullmatch(value) is not None, "a whole number such as 8192 or 8k"),
    "size or auto": (
        lambda value: value in ("-1", "auto") or _SIZE.fullmatch(value) is not None,
        "a whole number such as 131072 or 128K, or auto",
    ),
    "json": (_json, "JSON"),
    # The engine takes a value that does not look like JSON as text, so it does not reject a missing brace.
    "json or text": (
        lambda value: not value.lstrip().startswith("{") or _json(value),
        "JSON that is complete",
    ),
}
"""Whether a text is a value of a type, and the type's name for people."""
