"""Generate the command-line options for settings from the settings' declaration."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping

import typer

from m3agent.agent.settings.settings import SETTINGS

Flags = Mapping[str, object]
"""The settings given as options of a command, by name. None means that the option was not given."""

WITH_FLAG = tuple(name for name, setting in SETTINGS.items() if setting.flag)
"""The names of all settings that have a flag."""


def takes_settings(*names: str, **help_texts: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options for some settings. The command gets their values as its argument `flags`.

    The options replace `flags` in the command's signature, in the order of the declaration.

    Args:
        help_texts: Settings with a help text for this command only, by name.
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
        # typer reads the parameters with `inspect.signature`, which returns this attribute
        vars(with_flags)["__signature__"] = signature.replace(parameters=parameters)
        return with_flags

    return decorate


def _parameter(name: str, help_text: str | None) -> inspect.Parameter:
    """Return the parameter from which typer makes the option.

    It has no bounds: `load_settings` checks them and says where a value came from.
    """
    setting = SETTINGS[name]
    value_type = str if setting.read or (setting.choices and setting.metavar) else setting.type
    option = typer.Option(
        None,
        setting.switch,
        help=help_text or setting.help,
        metavar=setting.metavar,
        rich_help_panel=setting.panel or None,
    )
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=option, annotation=value_type | None
    )
