"""What is known about the models of hosted APIs: prices, window, levels of effort (`serving/facts/models.toml`)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Annotated

from pydantic import AfterValidator

from m3agent.serving.client.messages import ReasoningField
from m3agent.serving.client.prices import Prices
from m3agent.serving.facts.table import Row, plausible, rows

_Price = Annotated[float, AfterValidator(plausible(0.001, 100, "dollars for a million tokens"))]
_Tokens = Annotated[int, AfterValidator(plausible(1_000, 100_000_000, "a number of tokens, such as 512_000"))]


@dataclass(frozen=True, kw_only=True)
class ModelRow(Row):
    """A model as a hosted API sells it."""

    name: str
    prompt: _Price
    completion: _Price
    cached: _Price | None = None
    """For prompt tokens from the server's cache; None if they cost as much as others."""
    step: _Tokens | None = None
    """Prompt tokens above which a request costs `times` as much; None for the same price at all lengths."""
    times: Annotated[float, AfterValidator(plausible(1, 10, "how many times as much a token costs"))] = 1.0
    window: _Tokens | None = None
    """Most tokens of prompt and answer; None if unknown."""
    effort: tuple[str, ...] = ()
    """The levels of `reasoning_effort`; empty if it has none."""
    thinking_off: bool = True
    """Whether thinking can be switched off."""
    reasoning_field: ReasoningField = "reasoning_details"
    leave_out: tuple[str, ...] = ()
    """Parameters that it refuses."""

    def check(self) -> None:
        """Compare the prices. Raises ValueError, which begins with the field's name."""
        if self.cached is not None and self.cached > self.prompt:
            raise ValueError(
                f"cached: {self.cached} is more than prompt, {self.prompt}: the range is upside down"
            )

    @property
    def prices(self) -> Prices:
        """The prices of its tokens."""
        return Prices(self.prompt, self.completion, self.cached, step=self.step, times=self.times)


@cache
def _models() -> dict[str, ModelRow]:
    return {row.name.lower(): row for row in rows(ModelRow, "models")}


def known_model(name: str) -> ModelRow | None:
    """Return what is known about a model, such as `minimax/minimax-m3:free`; None if nothing is."""
    return _models().get(name.rpartition("/")[2].partition(":")[0].lower().removesuffix("-preview"))


def model_names() -> list[str]:
    """Return the names of all known models."""
    return [row.name for row in _models().values()]


def refuse_unknown_effort(name: str, effort: str | None, thinking: str) -> None:
    """Check that a model has a level of effort, and that its thinking can be switched off if it shall be.

    Raises:
        ValueError: It has not, or cannot; the message is a sentence.
    """
    known = known_model(name)
    levels = known.effort if known is not None else ()
    if effort is not None and effort not in levels:
        has = f"its levels are {', '.join(levels)}" if levels else "leave out --effort"
        raise ValueError(f"the model {name} has no level of effort {effort!r}: {has}.")
    if known is not None and not known.thinking_off and thinking == "disabled":
        least = f", and --effort {known.effort[0]}" if known.effort else ""
        raise ValueError(f"the model {name} always thinks: choose another --thinking{least}.")
