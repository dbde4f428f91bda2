"""The words of a launch command: what is started, and each option with its values."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

Option = tuple[str, ...]
"""An option's words: the flag (or `flag=value`), then its values."""


@dataclass(frozen=True)
class Command:
    """A command taken apart; `words` puts it together again.

    `launcher` is what comes before a shell line that holds the engine's command (`srun ... bash -c`), empty where the
    command is the engine's own. `program` goes up to the module or subcommand, `positional` up to the first option.
    """

    launcher: tuple[str, ...]
    program: tuple[str, ...]
    positional: tuple[str, ...]
    options: tuple[Option, ...]

    @classmethod
    def of(cls, argv: Sequence[str]) -> Command:
        """Take apart; an option takes every word up to the next one that begins with a dash and is no number."""
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
        """The whole command again."""
        words = sum(self.options, self.program + self.positional)
        return (*self.launcher, " ".join(words)) if self.launcher else words

    @property
    def starts(self) -> str:
        """What is started, without interpreter and folder: `vllm serve`, `sglang.launch_server`."""
        words = self.program[self.program.index("-m") + 1 :] if "-m" in self.program else self.program
        return " ".join((PurePosixPath(words[0]).name, *words[1:])) if words else ""

    def option(self, flag: str) -> Option | None:
        """The first option that stands under exactly this flag; None: there is none."""
        return next((option for option in self.options if flag_of(option) == flag), None)

    def replacing(self, *options: Option, drop: Sequence[str] = ()) -> Command:
        """With these options last, in place of those under the same flags, and without those under the flags `drop`."""
        gone = {flag_of(option) for option in options} | set(drop)
        kept = (option for option in self.options if flag_of(option) not in gone)
        return replace(self, options=(*kept, *options))


def flag_of(option: Option) -> str:
    """The flag, also of `flag=value`."""
    return option[0].partition("=")[0]


def command_line(argv: Sequence[str], env: Mapping[str, str]) -> str:
    """A command as a POSIX shell takes it, after its variables; `$NAME` is left to the shell to fill in."""
    command = Command.of(argv)
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
