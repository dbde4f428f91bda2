"""Commands made from plans and recipes."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from m3agent.serving.launch.prepare import LaunchRequest, PreparedJob, image_warnings, prepare, with_options
from m3agent.serving.plan.command import LaunchCommand
from m3agent.serving.plan.gpus import GPUS, Fleet, parse_gpus
from m3agent.serving.plan.kinds import DraftUse, EngineKind
from m3agent.serving.plan.known_issues import Severity, met
from m3agent.serving.plan.listing import listing, problems, versions
from m3agent.serving.plan.plan import PlanRequest
from m3agent.serving.plan.planner import plans
from m3agent.serving.plan.recipe import RECIPES, Recipe, recipe
from m3agent.util.errors import UsageError
from tests.serving.issue_rows import add_issue

KEY = "s3cret"
SYNTHETIC = '{"method":"eagle3","model":"d","rejection_sample_method":"synthetic"}'


def planned(gpus: str, wanted: LaunchRequest = LaunchRequest(), **wish: object) -> PreparedJob:  # noqa: B008  # it is frozen
    plan = plans(parse_gpus(gpus), replace(PlanRequest(), **wish))[0]  # type: ignore[arg-type]
    return prepare(recipe(plan.recipe), wanted, plan)


def test_the_image_follows_the_plan() -> None:
    images = {gpus: planned(gpus).job.image for gpus in ("8xH200", "8xMI300X")}
    assert images == {"8xH200": "vllm/vllm-openai:v0.33.0", "8xMI300X": "vllm/vllm-openai-rocm:v0.33.0"}
    documented = recipe("vllm-nvidia-mxfp8")
    assert prepare(documented, LaunchRequest()).job.image == documented.image


def test_an_image_gets_nothing_that_needs_a_package() -> None:
    inside = planned("8xH200", LaunchRequest(in_image=True))
    assert ("VLLM_USE_FASTOKENS" in inside.job.env, inside.packages) == (False, [])
    assert [change.what for change in inside.left_out] == ["fast tokeniser"]


@pytest.mark.parametrize(
    ("image", "told"),
    [
        ("mirror.example:5000/vllm/vllm-openai:v0.33.0-cu129", True),
        ("vllm/vllm-openai:v0.24.0", False),
        ("vllm/vllm-openai:nightly", False),
        ("our/engine:0.33.0", False),
    ],
)
def test_the_version_of_an_image_is_compared_with_known_issues(
    image: str, told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plans(parse_gpus("4xH200"), PlanRequest())[0]
    prepared = prepare(recipe(plan.recipe), LaunchRequest(in_image=True), plan)
    add_issue(monkeypatch, Severity.WARN, ">=0.32,<0.34")
    told_ = ["vLLM 0.33.0 in the image: answers are slow; wait (a test)"]
    assert image_warnings(prepared, plan, image) == told_ * told
    add_issue(monkeypatch, Severity.REFUSE, ">=0.32,<0.34")
    if told:
        with pytest.raises(UsageError, match=f"^the image {image} has vLLM 0.33.0: answers are slow; wait "):
            image_warnings(prepared, plan, image)


@pytest.mark.parametrize(
    ("engine", "gpus", "image"),
    [
        (EngineKind.SGLANG, "4xB200", "lmsysorg/sglang:v0.5.22.post1-cu130"),
        (EngineKind.SGLANG, "8xMI300X", "mirror.example/lmsysorg/sglang:v0.5.22-rocm720-mi30x"),
        (EngineKind.TRTLLM, "2x4xB200", "nvcr.io/nvidia/tensorrt-llm/release:1.3.0rc19"),
    ],
)
def test_an_image_of_every_engine_that_is_too_old_is_refused(
    engine: EngineKind, gpus: str, image: str
) -> None:
    plan = plans(parse_gpus(gpus), PlanRequest(engine=engine))[0]
    prepared = prepare(recipe(plan.recipe), LaunchRequest(in_image=True), plan)
    with pytest.raises(UsageError, match=f"^the image {image} has .*, and M3 needs >="):
        image_warnings(prepared, plan, image)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--tensor-parallel-size", "3"), "cannot be divided among 3 GPUs"),
        (("-tp=16",), "among 16 GPUs (tensor 16, pipeline 1, data 1), and the plan is for 8"),
        (("-pp", "2"), "among 16 GPUs (tensor 8, pipeline 2, data 1), and the plan is for 8"),
    ],
)
def test_gpus_that_a_plan_does_not_have_are_refused(options: Sequence[str], told: str) -> None:
    with pytest.raises(UsageError, match=re.escape(told)):
        planned("8xH200", LaunchRequest(options=options))


def value(argv: Sequence[str], flag: str) -> tuple[str, ...] | None:
    option = LaunchCommand.of(argv).option(flag)
    return None if option is None else option[1:]


def test_fp8_index_keys_reach_the_command() -> None:
    prepared = planned("4xH200", context=1_048_576)
    assert value(prepared.job.argv, "--attention-config") == ('{"indexer_kv_dtype":"fp8"}',)
    assert prepared.setup is not None
    assert (prepared.setup.index_dtype, prepared.setup.kv_dtype) == ("fp8", "fp8")


def test_a_draft_reaches_the_command() -> None:
    job = planned("4xH200", draft_use=DraftUse.ON).job
    (text,) = value(job.argv, "--speculative-config") or ("",)
    assert json.loads(text) == {
        "method": "eagle3",
        "model": "Inferact/MiniMax-M3-EAGLE3-GQA",
        "num_speculative_tokens": 3,
        "attention_backend": "FLASH_ATTN",
    }
    assert value(job.argv, "--cudagraph-capture-sizes") == ("4", "8", "16", "32")
    assert job.draft == "Inferact/MiniMax-M3-EAGLE3-GQA"


def test_a_host_cache_reaches_the_command_of_each_engine() -> None:
    vllm = planned("4xH200", host_cache=400 * 10**9)
    (text,) = value(vllm.job.argv, "--kv-transfer-config") or ("",)
    assert json.loads(text) == {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"cpu_bytes_to_use": 400 * 10**9, "block_size": 128},
    }
    assert vllm.job.host_cache == 400 * 10**9
    sglang = planned("8xB200", host_cache=400 * 10**9, engine=EngineKind.SGLANG)
    assert value(sglang.job.argv, "--enable-hierarchical-cache") == ()
    assert value(sglang.job.argv, "--hicache-size") == ("50",)
    assert problems(sglang.job.argv, listing("sglang")) == []
    for version in versions("vllm"):
        assert problems(vllm.job.argv, listing("vllm", version)) == []


def test_a_host_cache_that_corrupts_is_refused() -> None:
    environ = {"VLLM_USE_SIMPLE_KV_OFFLOAD": "1", "PATH": "/bin"}
    with pytest.raises(UsageError, match="garbles text under load"):
        planned("4xH200", LaunchRequest(environ=environ), host_cache=10**11)
    assert planned("4xH200", LaunchRequest(environ=environ)).setup is not None
    with pytest.raises(UsageError, match="nothing is found again"):
        planned("4xH200", LaunchRequest(options=("--no-enable-prefix-caching",)), host_cache=10**11)
    options = ("--kv-transfer-config", '{"kv_connector":"SimpleCPUOffloadConnector","kv_role":"kv_both"}')
    with pytest.raises(UsageError, match="garbles text under load"):
        planned("4xH200", LaunchRequest(options=options))
    options = ("--kv-offloading-size", "32")
    setup = planned("4xH200", LaunchRequest(options=options)).setup
    assert setup is not None
    assert setup.offload == "OffloadingConnector"
    with pytest.raises(UsageError, match="radix cache off"):
        planned("8xB200", LaunchRequest(options=("--enable-hisparse",)), engine=EngineKind.SGLANG)


def test_synthetic_acceptance_is_for_random_weights() -> None:
    options = ("--load-format", "dummy", "--speculative-config", SYNTHETIC)
    assert planned("8xH200", LaunchRequest(options=options)).random_weights


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("use", [DraftUse.AUTO, DraftUse.OFF])
def test_a_plan_s_command_is_read_as_the_plan(gpu: str, use: DraftUse) -> None:
    for plan in plans(Fleet(GPUS[gpu], 8), PlanRequest(context=1_048_576, draft_use=use, host_cache=10**11)):
        prepared = prepare(recipe(plan.recipe), LaunchRequest(), plan)
        env = prepared.job.env
        assert prepared.setup == replace(plan.setup, env=env), plan.recipe


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--block-size", "16"), "the cache's blocks must equal"),
        (("--tool-call-parser", "minimax_m2"), "the command line accepts any parser name"),
        (("--hf-overrides", '{"rope_scaling":{"factor":2.0}}'), "passes on only theta"),
        (("--speculative-config", '{"method":"minimax_m3_mtp"}'), "no layers for multi-token"),
        (("-sc", SYNTHETIC), "the text is wrong"),
        (("--speculative-config", '{"method":"eagle3","model":"Inferact/MiniMax-M3-EAGLE3"}'), "16 times"),
    ],
)
def test_a_trap_in_a_person_s_options_is_refused(options: tuple[str, ...], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        planned("8xH200", LaunchRequest(options=options))


@pytest.mark.parametrize(
    "options",
    [
        ("--attention-config", '{"indexer_kv_dtype":"fp8"}'),
        ("-ac", '{"indexer_kv_dtype":"fp8"}'),
        ("--attention_config.indexer_kv_dtype", "fp8"),
        ("--attention-config.indexer_kv_dtype=fp8",),
    ],
)
def test_fp8_index_keys_are_found_under_each_spelling(options: tuple[str, ...]) -> None:
    setup = planned("8xH200", LaunchRequest(options=options)).setup
    assert setup is not None
    assert setup.index_dtype == "fp8"
    assert met(replace(setup, version="0.24.0"), Severity.REFUSE)
    assert not met(replace(setup, version="0.32.0"), Severity.REFUSE)


def test_a_million_tokens_on_four_h200() -> None:
    job = planned("4xH200", context=1_048_576, version="0.24.0").job
    assert job.argv[:3] == ("vllm", "serve", "MiniMaxAI/MiniMax-M3-MXFP8")
    expected = {
        "--tensor-parallel-size": ("4",),
        "--kv-cache-dtype": ("fp8",),
        "--max-model-len": ("1048576",),
        "--gpu-memory-utilization": ("0.965",),
        "--max-num-batched-tokens": ("4096",),
        "--max-num-seqs": ("2",),
        "--cudagraph-capture-sizes": ("1", "2"),
        "--hf-overrides": ('{"text_config":{"max_position_embeddings":1048576}}',),
        "--language-model-only": (),
        "--enable-prefix-caching": (),
        "--host": ("127.0.0.1",),
        "--port": ("8000",),
        "--served-model-name": ("minimax-m3",),
    }
    assert {flag: value(job.argv, flag) for flag in expected} == expected
    assert job.env["VLLM_USE_FASTOKENS"] == "1"
    assert (job.gpus, job.nodes, job.model) == (4, 1, "MiniMaxAI/MiniMax-M3-MXFP8")


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("context", [131_072, 1_048_576])
def test_every_plan_s_command_is_taken_by_the_engine_s_parser(gpu: str, context: int) -> None:
    found = plans(Fleet(GPUS[gpu], 8, 2), PlanRequest(context=context, draft_use=DraftUse.AUTO))
    assert found
    for plan in found:
        job = prepare(recipe(plan.recipe), LaunchRequest(), plan).job
        for version in versions(plan.engine):
            assert problems(job.argv, listing(plan.engine, version)) == []
        if plan.engine == "vllm":
            assert value(job.argv, "--tensor-parallel-size") == (str(plan.tp),)
            assert value(job.argv, "--data-parallel-size") == ((str(plan.dp),) if plan.dp > 1 else None)
            assert (value(job.argv, "--enable-expert-parallel") == ()) is plan.ep


@pytest.mark.parametrize("known", RECIPES, ids=lambda known: known.name)
def test_every_recipe_gives_a_job_or_says_why_not(known: Recipe) -> None:
    if known.refused:
        with pytest.raises(UsageError, match="cannot be started"):
            prepare(known, LaunchRequest())
        return
    job = prepare(known, LaunchRequest(port=8123)).job
    assert job.argv
    own = known.engine in ("vllm", "sglang", "trtllm") and known.argv[0] != "docker"
    assert ("8123" in " ".join(job.argv)) is own


def test_key_is_required_if_reachable_and_on_no_command_line() -> None:
    for engine in (EngineKind.VLLM, EngineKind.SGLANG):
        job = planned("8xB200", LaunchRequest(host="0.0.0.0", key=KEY), engine=engine).job
        assert value(job.argv, "--host") == ("0.0.0.0",)
        assert KEY not in " ".join(job.argv)
        assert KEY in " ".join([*job.env.values(), *job.files.values()])
        local = planned("8xB200", engine=engine).job
        assert "KEY" not in " ".join([*local.env, *local.env.values(), *local.files.values()])


def test_a_checkpoint_takes_the_place_of_the_recipe_s() -> None:
    job = planned("8xH200", LaunchRequest(model="/models/m3")).job
    assert (job.argv[2], job.model) == ("/models/m3", "/models/m3")
    sglang = planned("8xB200", LaunchRequest(model="/models/m3"), engine=EngineKind.SGLANG).job
    assert value(sglang.argv, "--model-path") == ("/models/m3",)
    slurm = prepare(recipe("trtllm-gb200-2x4"), LaunchRequest(model="/models/m3")).job
    assert slurm.env["MODEL"] == "/models/m3"
    assert "/models/m3" in slurm.files["serve.sh"]


def test_a_person_s_options_replace_ours_under_any_of_their_names() -> None:
    options = ("--load-format", "dummy", "-tp", "2", "--no-enable-prefix-caching", "--port", "1")
    prepared = planned("8xH200", LaunchRequest(options=options, port=8001))
    argv = prepared.job.argv
    assert prepared.random_weights
    assert value(argv, "-tp") == ("2",)
    assert value(argv, "--tensor-parallel-size") is None
    assert value(argv, "--enable-prefix-caching") is None
    assert argv.count("--port") == 1
    assert not planned("8xH200").random_weights
    assert with_options(("vllm", "serve", "m", "--a", "1"), ("--a=2",), "trtllm")[3:] == ("--a=2",)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("dummy",), "'dummy' after -- is not an option"),
        (("--tool-call-parser", "minimax_m4"), "has no `minimax_m4`; did you mean `minimax_m3`"),
        (("--lod-format", "dummy"), "has no option `--lod-format`"),
        (("--max-num-seqs", "many"), "takes a whole number"),
    ],
)
def test_options_that_the_engine_would_refuse_are_refused_before_it_starts(
    options: tuple[str, ...], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        planned("8xH200", LaunchRequest(options=options))


def test_a_recipe_of_its_own_files_takes_no_options() -> None:
    with pytest.raises(UsageError, match="dynamo-vllm-agg has no options to set"):
        prepare(recipe("dynamo-vllm-agg"), LaunchRequest(options=("--max-num-seqs", "4")))
    assert prepare(recipe("dynamo-vllm-agg"), LaunchRequest()).job.argv == ("bash", "agg.sh")


def test_stores_of_the_page_are_options_that_the_engine_takes() -> None:
    page = (Path(__file__).parents[3] / "docs" / "engines" / "vllm.md").read_text()
    configs = re.findall(r'`(\{"kv_connector":.*?\})` \|', page)
    assert len(configs) == 2
    for config in configs:
        setup = planned("8xH200", LaunchRequest(options=("--kv-transfer-config", config))).setup
        assert setup is not None
        assert setup.offload == json.loads(config)["kv_connector"]
        assert not {"host-cache-load-failure"} & {trap.name for trap in met(setup)}
