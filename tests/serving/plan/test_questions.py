"""Questions of platform engineers, each with what `m3agent plan` must and must not say.

The first fifteen were compared with the recipe pages, the trackers and the engines' sources on 2026-11-27, the others on 2026-11-30.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

from m3agent.agent.exit_codes import FAILURES
from m3agent.cli.plan import plan
from m3agent.serving.plan.kinds import EngineKind, Precision

MILLION = 1_048_576
QUESTIONS: dict[str, tuple[dict[str, Any], tuple[str, ...], tuple[str, ...]]] = {
    "eight H100 with half a million tokens": (
        {"gpus": "8xH100"},
        (r"^1 +vllm +mxfp8 +8xH100-80 +TP8 +fp8 +666,752 ", "recipe page caps eight H100 at 131,072 tokens"),
        ("sglang", "unused"),
    ),
    "eight H100 with a million": (
        {"gpus": "8xH100", "context": MILLION},
        (
            "utilisation 0.965",
            "with little margin at a million",
            "--cpu-offload-gb 26 --gpu-memory-utilization 0.90",
        ),
        (),
    ),
    "eight H20": ({"gpus": "8xH20"}, (r"^1 +vllm +mxfp8 +8xH20-96 +TP8 +bf16 +[0-9,]+ ",), ("sglang",)),
    "four B200": (
        {"gpus": "4xB200"},
        (r"^1 +vllm +mxfp8 +4xB200 +TP4 +bf16 +[0-9,]+ ", r"^\d +sglang +mxfp8 +4xB200 +TP4 EP "),
        ("nvfp4",),
    ),
    "four B200 with NVFP4": (
        {"gpus": "4xB200", "precision": Precision.NVFP4},
        ("^checkpoint +nvidia/MiniMax-M3-NVFP4$", r"^engine +vllm >=0\.25$", "58.0 GiB weights"),
        ("assumed", "another NVFP4 checkpoint"),
    ),
    "eight B300 with a million": (
        {"gpus": "8xB300", "context": MILLION},
        (r"^1 +vllm +mxfp8 +8xB300 +TP8 +bf16 +[0-9,]+ ",),
        ("tight", "set high"),
    ),
    "two boards of GB200": (
        {"gpus": "2xGB200 NVL4"},
        ("M3 on 2x4xGB200", "4 of the 8 GPUs stay unused", "2 servers of 4xGB200 behind a router use 8 GPUs"),
        (),
    ),
    "sixteen H100": (
        {"gpus": "16xH100"},
        (
            r"^1 +vllm +mxfp8 +8xH100-80 +TP8 ",
            "8 of the 16 GPUs stay unused",
            "2 servers of 8xH100-80 behind",
        ),
        (),
    ),
    "sixteen H100 with a million": (
        {"gpus": "16xH100", "context": MILLION},
        (
            r"^1 +vllm +mxfp8 +2x8xH100-80 +TP16 ",
            "the network between them determines the speed",
            "2 servers of",
        ),
        ("unused",),
    ),
    "eight MI300X": (
        {"gpus": "8xMI300X"},
        (r"^1 +vllm +bf16 +8xMI300X +TP8 ", "vLLM converts them to BF16 when it loads them"),
        (r"vllm +mxfp8",),
    ),
    "four MI300X with MXFP8": (
        {"gpus": "4xMI300X", "precision": Precision.MXFP8},
        ("cannot be served on 4xMI300X", "take 8xMI300X", "weights of 198.7 GiB a GPU"),
        (),
    ),
    "two MI325X": ({"gpus": "2xMI325X"}, ("cannot be served on 2xMI325X", "take 4xMI325X"), ()),
    "four MI355X": (
        {"gpus": "4xMI355X"},
        (r"^1 +vllm +mxfp8 +4xMI355X +TP4 +bf16 +[0-9,]+ ", "VLLM_ROCM_USE_AITER=1", "AITER_MOE=1"),
        ("mxfp4",),
    ),
    "eight A100": (
        {"gpus": "8xA100"},
        (r"^1 +vllm +mxfp8 +8xA100-80 +TP8 +bf16 ", r"^engine +vllm >=0\.27\.1$", "no recipe page has these"),
        (r" fp8 +\d",),
    ),
    "one H200": (
        {"gpus": "1xH200"},
        (
            "cannot be served on 1xH200",
            "take 4xH200",
            "MXFP8: weights of 411.7 GiB",
            "BF16: weights of 794.0 GiB",
        ),
        (),
    ),
    "a DGX Spark": (
        {"gpus": "DGX Spark"},
        ("cannot be served on 1xGB10", "take 4x1xGB10"),
        ("not a number",),
    ),
    "four RTX PRO 6000": (
        {"gpus": "4x RTX PRO 6000"},
        (r"^1 +vllm +nvfp4 +4xRTXPRO6000 +TP4 ", r"^engine +vllm >=0\.27\.1$", "vllm-project/recipes#678"),
        ("Hopper",),
    ),
    # The following were asked later.
    "four DGX Spark": (
        {"gpus": "4 DGX Spark"},
        (r"^1 +vllm +nvfp4 +4x1xGB10 +TP4 ", "eugr/spark-vllm-docker#290"),
        (),
    ),
    "SGLang on four B200": (
        {"gpus": "4xB200", "engine": EngineKind.SGLANG},
        (
            r"^1 +sglang +mxfp8 +4xB200 +TP4 EP ",
            r"^engine +sglang >=0\.5\.23$",
            "compile the msa kernels at the same",
        ),
        (),
    ),
    "SGLang on eight MI300X": (
        {"gpus": "8xMI300X", "engine": EngineKind.SGLANG},
        (r"^1 +sglang +mxfp8 +8xMI300X +TP8 EP ", r"recipe sglang-mi300x"),
        ("cannot be served", "no way to serve"),
    ),
    "SGLang on eight H200": (
        {"gpus": "8xH200", "engine": EngineKind.SGLANG, "context": 131_072},
        (r"^1 +sglang +bf16 +8xH200 +TP8 EP ",),
        (r"sglang +mxfp8",),
    ),
    "four H200 with a million": (
        {"gpus": "4xH200", "context": MILLION},
        (
            r"^1 +vllm +mxfp8 +4xH200 +TP4 +fp8\+index ",
            r"^engine +vllm >=0\.32$",
            "positions are extrapolated",
        ),
        (),
    ),
    "MXFP4 on eight MI355X": (
        {"gpus": "8xMI355X", "precision": Precision.MXFP4},
        (
            "^checkpoint +amd/MiniMax-M3-MXFP4$",
            "in 4 bits is assumed: the experts only",
            "prefix caching off",
        ),
        (),
    ),
    "NVFP4 on H100": (
        {"gpus": "8xH100", "precision": Precision.NVFP4},
        ("cannot be served", "through Marlin on Hopper", "take MXFP8"),
        (),
    ),
    "TensorRT-LLM on H200": (
        {"gpus": "8xH200", "engine": EngineKind.TRTLLM},
        ("leave out --engine (vllm serves it on 8xH200)", "no way to serve it with trtllm"),
        (),
    ),
    "H800": (
        {"gpus": "8xH800", "gpu_memory": 80},
        (
            "whether M3's kernels run on the H800 is unknown",
            "M3 crashed on H800 NVL",
            "no price of the H800 is known",
        ),
        (),
    ),
    "sixteen sequences of 128K on eight H200": (
        {"gpus": "8xH200", "concurrency": 16, "typical": 131_072},
        (r"^1 +vllm +mxfp8 +8xH200 +TP4 DP2 EP ", "X-data-parallel-rank"),
        ("the others wait",),
    ),
    "the price of B200": (
        {"gpus": "4xB200"},
        (r"^cost +\$[\d.]+ an hour \(on demand, .*price list of",),
        ("unknown",),
    ),
    "forty agents on eight H200": (
        {"gpus": "8xH200", "agents": 40, "repository_tokens": 300_000},
        ("Not enough for 40 agents: 8xH200 keeps the prefixes of 16 sessions", "Add --host-cache 1312"),
        (),
    ),
    "four MI325X": ({"gpus": "4xMI325X"}, (r"^1 +vllm +bf16 +4xMI325X +TP4 +bf16 ",), (r"vllm +mxfp8",)),
    "BF16 on four H200": (
        {"gpus": "4xH200", "precision": Precision.BF16},
        ("cannot be served on 4xH200", "take 8xH200", "BF16: weights of 198.7 GiB a GPU"),
        (),
    ),
    "six H200": (
        {"gpus": "6xH200"},
        (r"^1 +vllm +mxfp8 +4xH200 +TP4 ", "2 of the 6 GPUs stay unused"),
        (),
    ),
    "a rack of GB300": (
        {"gpus": "GB300NVL72"},
        (r"^1 +vllm +mxfp8 +4xGB300 +TP4 ", "18 servers of 4xGB300 behind a router use 72 GPUs"),
        (),
    ),
    "A100 with 40 GB": (
        {"gpus": "8x A100 40GB"},
        ("A100-40 is not a known GPU; did you mean A100-80?",),
        (),
    ),
    "two B200 with NVFP4": (
        {"gpus": "2xB200", "precision": Precision.NVFP4},
        (r"^1 +vllm +nvfp4 +2xB200 +TP2 ", r"^engine +vllm >=0\.25$"),
        (),
    ),
    "eight MI300X with a million": (
        {"gpus": "8xMI300X", "context": MILLION},
        (r"^1 +vllm +bf16 +8xMI300X +TP8 ",),
        (r"vllm +mxfp8",),
    ),
    "a GPU without a known name": (
        {"gpus": "8xV100"},
        ("V100 is not a known GPU", "M3 needs at least "),
        (),
    ),
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_is_answered_right(question: str, capsys: pytest.CaptureFixture[str]) -> None:
    options, right, wrong = QUESTIONS[question]
    try:
        plan(**options)
    except FAILURES as error:
        answer = str(error)
    else:
        answer = capsys.readouterr().out
    flat = "\n".join(line.rstrip() for line in answer.splitlines())
    assert [part for part in right if not (part in flat or re.search(part, flat, re.MULTILINE))] == []
    first = flat.partition("order        ")[0]
    assert [part for part in wrong if part in first or re.search(part, first, re.MULTILINE)] == []
