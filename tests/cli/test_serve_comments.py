"""Test that the script of `serve --dry-run` is readable on a narrow terminal and stays the same script."""

from __future__ import annotations

import pytest

from m3agent.cli.serve.dry_run import wrapped

SCRIPT = """# checkpoint   M3
# memory       of 139.8 GiB a GPU: 52.4 GiB weights, 73.2 GiB cache, 3.0 GiB other
#
# vllm-nvidia-mxfp8, changed for agent work and this plan, and for nothing else in the world
#   + --speculative-config {"method":"eagle3","model":"Inferact/MiniMax-M3-EAGLE3-GQA"}
#       A small model proposes 3 tokens and M3 verifies
#       them in one step. (vLLM's recipe)
vllm serve MiniMaxAI/MiniMax-M3-MXFP8 --speculative-config '{"method":"eagle3","model":"Inferact"}'
"""


def test_comments_wrap_and_commands_do_not() -> None:
    assert wrapped(SCRIPT, 61).splitlines() == [
        "# checkpoint   M3",
        "# memory       of 139.8 GiB a GPU: 52.4 GiB weights, 73.2",
        "#              GiB cache, 3.0 GiB other",
        "#",
        "# vllm-nvidia-mxfp8, changed for agent work and this plan,",
        "#   and for nothing else in the world",
        '#   + --speculative-config {"method":"eagle3","model":"Inferact/MiniMax-M3-EAGLE3-GQA"}',
        "#       A small model proposes 3 tokens and M3 verifies them",
        "#       in one step. (vLLM's recipe)",
        SCRIPT.splitlines()[-1],
    ]


@pytest.mark.parametrize("columns", [1, 40, 80, 300])
def test_no_word_is_lost_at_any_width(columns: int) -> None:
    def words(script: str) -> list[str]:
        return [word for line in script.splitlines() for word in line.split() if word != "#"]

    assert words(wrapped(SCRIPT, columns)) == words(SCRIPT)
