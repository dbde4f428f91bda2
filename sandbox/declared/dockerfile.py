"""Read a Dockerfile as data: its instructions, and the image and packages that it names."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from packaging.requirements import InvalidRequirement, Requirement

from m3agent.sandbox.declared.types import plain_words, words_of

CONTINUED = re.compile(r"\\[ \t]*$")
DIRECTIVE = re.compile(r"#\s*escape\s*=\s*`", re.IGNORECASE)
HEREDOC = re.compile(r"<<-?[\"']?[A-Za-z_]\w*")
INSTRUCTION = re.compile(r"([A-Za-z]+)(?:\s+(.*))?", re.DOTALL)
FLAG = re.compile(r"(--[a-z]+(?:=\S*)?)\s+")
VARIABLE = re.compile(r"\\(.)|\$(?:(\w+)|\{(\w+)(?::([-+])([^}]*))?\})", re.DOTALL)
SEPARATOR = re.compile(r"&&|\|\||[;|\n]")
SYSTEM_PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]+")
"""Name of a Debian package (Debian's policy, 5.6.1)."""
WITH_VALUE = frozenset(
    {
        *("-r", "-c", "-e", "-i", "-t", "-o", "-f", "--requirement", "--constraint", "--editable"),
        *("--index-url", "--extra-index-url", "--target", "--find-links", "--option", "--trusted-host"),
        *("--prefix", "--root", "--python"),
    }
)
"""Options of pip and apt whose value is the next word."""


@dataclass(frozen=True)
class Instruction:
    """One instruction: its name in upper case, its flags (`--from=base`), and the rest of its text."""

    name: str
    flags: tuple[str, ...]
    text: str

    def __str__(self) -> str:
        return " ".join((self.name, *self.flags, self.text))


@dataclass
class Stage:
    """One build stage."""

    base: str
    """What it starts from: an image or an earlier stage."""
    name: str = ""
    values: Mapping[str, str] = field(default_factory=dict)
    """The arguments that are declared before the first stage."""
    steps: list[Instruction] = field(default_factory=list)
    """Its instructions, without FROM."""


@dataclass(frozen=True)
class Named:
    """What a Dockerfile names."""

    image: str | None
    """The image that its last stage starts from; None if that is no plain name."""
    requirements: tuple[str, ...]
    """Words that its `pip install` lines install from an index."""
    system_packages: tuple[str, ...]
    """Debian packages that its `apt-get install` lines install."""


def read_instructions(text: str) -> list[Instruction]:
    """Return the instructions of a Dockerfile.

    Raises:
        ValueError: It has something else, or uses what only newer formats have; a phrase that says what.
    """
    if DIRECTIVE.match(text.lstrip()):
        raise ValueError("its escape character is not a backslash")
    found, line = list[Instruction](), ""
    for part in text.splitlines():
        if part.lstrip().startswith("#") or (line and not part.strip()):
            continue
        line += CONTINUED.sub(" ", part)
        if not CONTINUED.search(part):
            found += [_instruction(line.strip())] if line.strip() else []
            line = ""
    return [*found, _instruction(line.strip())] if line.strip() else found


def read_stages(
    instructions: Sequence[Instruction], target: str | None, args: Mapping[str, str]
) -> list[Stage]:
    """Return the stages up to the wanted one, which is the last.

    Raises:
        ValueError: The stages are not well-formed; a phrase that says why.
    """
    values: dict[str, str] = {}
    stages: list[Stage] = []
    for one in instructions:
        if one.name == "FROM":
            if target and stages and stages[-1].name == target.lower():
                break
            words = expand(one.text, values).split()
            if len(words) not in (1, 3) or (len(words) == 3 and words[1].upper() != "AS"):
                raise ValueError(f"it has an instruction 'FROM {one.text[:60]}'")
            stages.append(Stage(words[0], words[2].lower() if len(words) == 3 else "", values))
        elif stages:
            stages[-1].steps.append(one)
        elif one.name == "ARG":
            values |= declared_argument(one.text, values, args)
        else:
            raise ValueError(f"it begins with {one.name} and not with FROM")
    if not stages:
        raise ValueError("it has no instruction FROM")
    if target and stages[-1].name != target.lower():
        raise ValueError(f"it has no stage {target[:60]}")
    return stages


def declared_argument(text: str, values: Mapping[str, str], args: Mapping[str, str]) -> dict[str, str]:
    """Return the arguments that an instruction ARG declares, those with a value.

    Args:
        values: Values that its defaults may refer to.
        args: Values that were given, which replace the defaults.
    """
    found: dict[str, str] = {}
    for word in words_of(text):
        name, has_default, default = word.partition("=")
        if name in args:
            found[name] = args[name]
        elif has_default:
            found[name] = expand(default, {**values, **found})
        elif name in values:
            found[name] = values[name]
    return found


def expand(text: str, values: Mapping[str, str]) -> str:
    """Replace variables (`$A`, `${A}`, `${A:-default}`, `${A:+other}`) by their values; unknown ones by nothing."""

    def value(match: re.Match[str]) -> str:
        if match[1] is not None:
            return match[1]
        known = values.get(match[2] or match[3], "")
        if match[4] == "+":
            return match[5] if known else ""
        return known or match[5] or ""

    return VARIABLE.sub(value, text)


def as_list(text: str) -> list[str] | None:
    """Return the words of an instruction in JSON form (`["a", "b"]`); None if it has another form."""
    try:
        words = json.loads(text) if text.startswith("[") else None
    except (ValueError, RecursionError):
        return None
    return words if isinstance(words, list) and all(isinstance(word, str) for word in words) else None


def read_named(text: str, target: str | None, args: Mapping[str, str]) -> Named:
    """Return what a Dockerfile names, in the stages that the wanted one is built on.

    Raises:
        ValueError: It cannot be read; a phrase that says why.
    """
    stages = read_stages(read_instructions(text), target, args)
    chain = [stages.pop()]
    while earlier := next((stage for stage in stages if stage.name == chain[-1].base.lower()), None):
        stages = stages[: stages.index(earlier)]
        chain.append(earlier)
    lines = [
        line for stage in chain for step in stage.steps if step.name == "RUN" for line in _commands(step)
    ]
    image = chain[-1].base if re.fullmatch(r"[a-z0-9][\w.:/@-]*", chain[-1].base) else None
    return Named(
        None if image == "scratch" else image,
        tuple(word for word in _installed(lines, "pip") if _is_requirement(word)),
        tuple(word for word in _installed(lines, "apt") if SYSTEM_PACKAGE.fullmatch(word)),
    )


def _instruction(line: str) -> Instruction:
    match = INSTRUCTION.fullmatch(line)
    if match is None:
        raise ValueError(f"it has the line '{line[:60]}'")
    name, rest, flags = match[1].upper(), match[2] or "", list[str]()
    while flag := FLAG.match(rest):
        flags.append(flag[1])
        rest = rest[flag.end() :]
    if name in {"RUN", "COPY", "ADD"} and HEREDOC.search(rest):
        raise ValueError(f"it has a here-document in an instruction {name}")
    return Instruction(name, tuple(flags), rest)


def _commands(step: Instruction) -> Iterator[list[str]]:
    """Yield the words of each command that a RUN instruction starts."""
    words = as_list(step.text)
    if words is not None:
        yield words
        return
    for command in SEPARATOR.split(step.text):
        yield words_of(command)


def _installed(commands: Sequence[Sequence[str]], by: str) -> list[str]:
    """Return, each once, what the commands install that are installations by pip or apt."""
    programs = {"pip": {"pip", "pip3"}, "apt": {"apt", "apt-get"}}[by]
    found = dict[str, None]()
    for words in commands:
        names = [word.rpartition("/")[2] for word in words]
        if "install" in names and not programs.isdisjoint(names[: names.index("install")]):
            rest = words[names.index("install") + 1 :]
            found |= dict.fromkeys(plain_words(rest, WITH_VALUE))
    return list(found)


def _is_requirement(word: str) -> bool:
    try:
        return Requirement(word).url is None
    except InvalidRequirement:
        return False  # for example a folder
