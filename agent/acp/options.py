"""What a person can choose for a session in an editor, and the commands that a prompt can begin with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from acp.schema import (
    AvailableCommand,
    AvailableCommandInput,
    AvailableCommandsUpdate,
    SessionConfigOptionSelect,
    SessionConfigSelectOption,
    UnstructuredCommandInput,
)

from m3agent.agent.acp.blocks import COMMANDS
from m3agent.agent.acp.store import Mode, Record
from m3agent.agent.settings.settings import SETTINGS, Settings
from m3agent.serving.client.endpoint import unasked
from m3agent.serving.client.models import model_names
from m3agent.util.errors import UsageError

USUAL = "default"
"""The value of an option that leaves the choice to the settings."""
MODES = (
    (Mode.ASK, "Ask", "Shows each patch, and writes it once you allow it"),
    (Mode.AUTO, "Auto", "Writes each patch that passed its checks"),
    (Mode.READ_ONLY, "Read-only", "Shows each patch, and writes nothing"),
)


@dataclass(frozen=True)
class Option:
    """Something that a person can choose."""

    id: str
    """Its id; for all but the mode the name of a setting."""
    name: str
    """Its label."""
    category: Literal["mode", "model", "thought_level"]
    """What it is about, so that an editor can show it where it belongs."""
    values: Mapping[str, str]
    """The values with their labels."""


def options_of(settings: Settings) -> list[Option]:
    """Return what can be chosen, given the settings in force."""
    own = {USUAL: "As in the settings"}
    models = [settings.model] if settings.model else []
    if settings.endpoint and unasked(settings.endpoint, "").flavour == "minimax":
        models += model_names()
    efforts = {value: value.capitalize() for value in SETTINGS["effort"].choices}
    thinking = {value: value.capitalize() for value in ("enabled", "adaptive", "disabled")}
    return [
        Option("mode", "Patches", "mode", {str(mode): name for mode, name, _ in MODES}),
        Option("model", "Model", "model", {USUAL: "The server's choice", **{name: name for name in models}}),
        Option("thinking", "Thinking", "thought_level", {**own, **thinking}),
        Option("effort", "Effort", "thought_level", {**own, **efforts}),
    ]


def shown(options: list[Option], record: Record) -> list[SessionConfigOptionSelect]:
    """Return the options of a session as the protocol has them."""
    chosen = {"mode": str(record.mode), **record.chosen}
    return [
        SessionConfigOptionSelect(
            id=option.id,
            type="select",
            name=option.name,
            category=option.category,
            current_value=chosen.get(option.id, next(iter(option.values))),
            options=[
                SessionConfigSelectOption(value=value, name=name) for value, name in option.values.items()
            ],
        )
        for option in options
    ]


def checked(options: list[Option], config_id: str, value: object) -> str:
    """Return the value that a client chose. Raises UsageError if there is no such option or value."""
    option = next((each for each in options if each.id == config_id), None)
    if option is None:
        raise UsageError(
            f"there is no option {config_id[:80]!r}: the options are {', '.join(each.id for each in options)}"
        )
    if value not in option.values:
        raise UsageError(
            f"{config_id} cannot be {str(value)[:80]!r}: the values are {', '.join(option.values)}"
        )
    return str(value)


def commands() -> AvailableCommandsUpdate:
    """Return the commands as an update."""

    def taken(hint: str) -> AvailableCommandInput | None:
        return AvailableCommandInput(root=UnstructuredCommandInput(hint=hint)) if hint else None

    listed = [
        AvailableCommand(name=name, description=each.description, input=taken(each.hint))
        for name, each in COMMANDS.items()
    ]
    return AvailableCommandsUpdate(session_update="available_commands_update", available_commands=listed)
