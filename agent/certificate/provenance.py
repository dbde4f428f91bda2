"""Say who made a patch: the harness, the model, and where the model's licence is. No licence's terms are repeated here."""

from __future__ import annotations

from m3agent import __version__
from m3agent.agent.certificate.statement import Maker

M3_LICENCE = "https://huggingface.co/MiniMaxAI/MiniMax-M3/blob/main/LICENSE"
"""The licence file of MiniMax M3, which is also that of its quantised forms."""
HARNESS_LICENCE = "https://www.apache.org/licenses/LICENSE-2.0"
"""The licence of m3agent itself, and so of its engine `embedded`."""
EMBEDDED = "m3agent-embedded"
"""The name of the engine `embedded` as a model. It is a search and has no weights."""


def maker_of(model: str) -> Maker:
    """Return who made a patch.

    Args:
        model: The model's name, as its server gives it.
    """
    return Maker(harness=f"m3agent {__version__}", model=model, model_licence=_licence_of(model))


def _licence_of(model: str) -> str | None:
    name = model.rpartition("/")[2].lower()
    if name == EMBEDDED:
        return HARNESS_LICENCE
    return M3_LICENCE if name == "minimax-m3" or name.startswith("minimax-m3-") else None
