"""The options of commands that are settings, made from the settings' declaration."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping

import typer

from m3agent.agent.settings import SETTINGS

Flags = Mapping[str, object]
"""The settings that a command was given as options, by name; None: that option was not given."""

WITH_FLAG = tuple(name for name, setting in SETTINGS.items() if setting.flag)
"""The names of all settings that have a flag."""


def takes_settings(*names: str, **help_texts: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of some settings; the command gets their values as its argument `flags`.

    The options stand in the order of the declaration, in the place where `flags` stands in the command's signature.

    Args:
        names: The settings that keep their help.
        help_texts: By a setting's name the help that this command has for it.
    """
    wanted = {**dict.fromkeys(names), **help_texts}
    unknown = wanted.keys() - SETTINGS.keys()
    assert not unknown, f"not settings: {unknown}"
    options = [_parameter(name, wanted[name]) for name in SETTINGS if name in wanted]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def with_flags(**arguments: object) -> None:
            flags = {option.name: arguments.pop(option.name) for option in options}
            command(**arguments, flags=flags)

        signature = inspect.signature(command, eval_str=True)
        parameters: list[inspect.Parameter] = []
        for parameter in signature.parameters.values():
            parameters += options if parameter.name == "flags" else [parameter]
        # typer reads the signature, as `inspect.signature` returns it
        vars(with_flags)["__signature__"] = signature.replace(parameters=parameters)
        return with_flags

    return decorate


def _parameter(name: str, help_text: str | None) -> inspect.Parameter:
    """Return the parameter that typer makes the option of. `load_settings` checks bounds and says where a value is from."""
    setting = SETTINGS[name]
    value_type = str if setting.choices and setting.metavar else setting.type
    option = typer.Option(None, setting.switch, help=help_text or setting.help, metavar=setting.metavar)
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=option, annotation=value_type | None
    )
