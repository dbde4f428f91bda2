"""Parse a launch command into program, positional words and options, and put it together again."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

Option = tuple[str, ...]
"""Words of one option: the flag (or `flag=value`), then its values."""

END_CHILDREN = "trap 'kill $(jobs -p) 2>/dev/null || true; wait' EXIT"
"""A line of a bash script: the end of the script ends its background jobs. `kill 0` would also end the script's caller."""


@dataclass(frozen=True)
class LaunchCommand:
    """A parsed command; `words` puts it together again."""

    launcher: tuple[str, ...]
    """Words before a shell line that contains the engine's command (`srun ... bash -c`); empty if the command
    starts the engine directly.
    """
    program: tuple[str, ...]
    """Words up to and including the module or subcommand."""
    positional: tuple[str, ...]
    """Words between the program and the first option."""
    options: tuple[Option, ...]

    @classmethod
    def of(cls, argv: Sequence[str]) -> LaunchCommand:
        """Parse a command.

        An option takes every word up to the next flag. A flag is a word that begins with a dash and is not a
        number.
        """
        launcher: tuple[str, ...] = ()
        words = tuple(argv)
        if words[-2:-1] == ("-c",):
            launcher, words = words[:-1], tuple(words[-1].split())
        flags = (place for place, word in enumerate(words) if _is_flag(word) and word != "-m")
        begin = next(flags, len(words))
        end = words.index("-m", 0, begin) + 2 if "-m" in words[:begin] else 1
        end = min(end + (words[end : end + 1] == ("serve",)), begin)
        options: list[Option] = []
        for word in words[begin:]:
            if _is_flag(word):
                options.append((word,))
            else:
                options[-1] += (word,)
        return cls(launcher, words[:end], words[end:begin], tuple(options))

    @property
    def words(self) -> tuple[str, ...]:
        """All words of the command."""
        words = sum(self.options, self.program + self.positional)
        return (*self.launcher, " ".join(words)) if self.launcher else words

    @property
    def starts(self) -> str:
        """What the command starts, without interpreter and folder: `vllm serve`, `sglang.launch_server`."""
        words = self.program[self.program.index("-m") + 1 :] if "-m" in self.program else self.program
        return " ".join((PurePosixPath(words[0]).name, *words[1:])) if words else ""

    def option(self, flag: str) -> Option | None:
        """Return the first option with exactly this flag, or None."""
        return next((option for option in self.options if flag_of(option) == flag), None)

    def value(self, flag: str) -> str:
        """Return the value of the first option with exactly this flag, or an empty text if no option has it."""
        option = self.option(flag)
        return "" if option is None else value_of(option)

    def replacing(self, *options: Option, drop: Sequence[str] = ()) -> LaunchCommand:
        """Return the command with some options replaced."""
        gone = {flag_of(option) for option in options} | set(drop)
        kept = (option for option in self.options if flag_of(option) not in gone)
        return replace(self, options=(*kept, *options))


def flag_of(option: Option) -> str:
    """Return the flag of an option, without the value in `flag=value`."""
    return option[0].partition("=")[0]


def value_of(option: Option) -> str:
    """Return the value of an option, beside its flag or in the words after it."""
    return option[0].partition("=")[2] or " ".join(option[1:])


def command_line(argv: Sequence[str], env: Mapping[str, str]) -> str:
    """Format a command for a POSIX shell, with its environment variables as `export` lines before it.

    The shell expands `$NAME` inside words and values.
    """
    command = LaunchCommand.of(argv)
    settings = [f"export {name}={_quoted(value)}" for name, value in env.items()]
    if command.launcher:
        line = [*map(_quoted, command.launcher), f'"{command.words[-1]}"']
        return "\n".join([*settings, " ".join(line)])
    start = (*command.program, *command.positional)
    parts = [" ".join(map(_quoted, words)) for words in (start, *command.options)]
    return "\n".join([*settings, " \\\n  ".join(parts)])


def _quoted(word: str) -> str:
    return f'"{word}"' if "$" in word else shlex.quote(word)


def _is_flag(word: str) -> bool:
    return word.startswith("-") and not word[1:].replace(".", "", 1).isdigit()
