"""The overlay for agent work: what it changes, that applying it twice changes nothing, and that engines accept it."""

from dataclasses import replace
from itertools import product

import pytest

from m3agent.serving.plan.command import LaunchCommand, flag_of
from m3agent.serving.plan.listing import listing, problems
from m3agent.serving.plan.overlay import KEY, KvCacheDtype, RecipeChange, applied, overlay, recipe_json
from m3agent.serving.plan.recipe import MXFP4, RECIPES, Recipe, recipe
from m3agent.util.errors import UsageError

ENGINES_OWN = [
    known for known in RECIPES if known.engine in ("vllm", "sglang") and not known.name.endswith("docker")
]
SET = [*ENGINES_OWN, recipe("trtllm-gb200-2x4")]
IDS = [known.name for known in SET]
ENCODER_FLAGS = ("--mm-encoder-tp-mode", "--mm-encoder-attn-backend", "--mm-processor-cache-type")
"""vLLM's options of the vision encoder."""
Asked = tuple[int | None, bool, bool, KvCacheDtype | None]
DTYPES: tuple[KvCacheDtype | None, ...] = (None, "auto", "fp8")
ASKED: list[Asked] = list(product((None, 131_072, 1_048_576), (False, True), (False, True), DTYPES))


def with_overlay(
    known: Recipe, asked: Asked = (None, False, True, None)
) -> tuple[list[RecipeChange], Recipe]:
    context, vision, loopback, kv_dtype = asked
    if kv_dtype == "fp8" and (known.checkpoint == MXFP4 or known.name == "trtllm-gb200-2x4"):
        kv_dtype = None
    changes = overlay(known, context=context, vision=vision, loopback=loopback, kv_dtype=kv_dtype)
    argv, env = applied(known, changes)
    return changes, replace(known, argv=argv, env=env)


def flags(known: Recipe) -> list[str]:
    return [flag_of(option) for option in LaunchCommand.of(known.argv).options]


def value(known: Recipe, flag: str) -> str | None:
    option = LaunchCommand.of(known.argv).option(flag)
    return None if option is None else " ".join(option[1:])


@pytest.mark.parametrize("asked", ASKED, ids=str)
def test_the_newest_engines_take_every_result(asked: Asked) -> None:
    for known in ENGINES_OWN:
        _, result = with_overlay(known, asked)
        assert problems(result.argv, listing(known.engine)) == [], known.name


NEWER = {"vllm-nvidia-h200-humming": ["`--linear-backend` has no `humming`."]}
"""What vLLM 0.24 says to recipes for newer versions."""


@pytest.mark.parametrize(
    "known", [known for known in ENGINES_OWN if known.engine == "vllm"], ids=lambda r: r.name
)
def test_the_first_vllm_with_m3_takes_the_result(known: Recipe) -> None:
    _, result = with_overlay(known)
    assert problems(result.argv, listing("vllm", "0.24.0")) == NEWER.get(known.name, [])


@pytest.mark.parametrize(
    "known", [known for known in ENGINES_OWN if known.engine == "vllm"], ids=lambda r: r.name
)
def test_with_images_vllm_reserves_no_memory_for_videos(known: Recipe) -> None:
    for version in (None, "0.24.0"):
        result = with_overlay(known, (None, True, True, None))[1]
        assert value(result, "--limit-mm-per-prompt") == '{"video":0}'
        expected = NEWER.get(known.name, []) if version else []
        assert problems(result.argv, listing("vllm", version) if version else listing("vllm")) == expected


def test_verified_is_what_the_listing_accepts() -> None:
    for known in RECIPES:
        accepted = known in ENGINES_OWN and not problems(with_overlay(known)[1].argv, listing(known.engine))
        assert known.verified == (accepted and known.refused is None), known.name


@pytest.mark.parametrize("known", SET, ids=IDS)
def test_a_second_overlay_changes_nothing(known: Recipe) -> None:
    for asked in ASKED:
        _, once = with_overlay(known, asked)
        again, twice = with_overlay(once, asked)
        assert (twice.argv, dict(twice.env)) == (once.argv, dict(once.env))
        for change in again:
            assert not (change.added or change.changed or change.dropped or change.env)


@pytest.mark.parametrize("known", SET, ids=IDS)
def test_unchanged_options_keep_their_place(known: Recipe) -> None:
    before = (known.argv, dict(known.env))
    for asked in ASKED:
        changes, result = with_overlay(known, asked)
        renamed = {flag_of(old): flag_of(new) for change in changes for old, new in change.changed}
        dropped = {flag_of(option) for change in changes for option in change.dropped}
        left = [renamed.get(flag, flag) for flag in flags(known) if flag not in dropped]
        assert flags(result)[: len(left)] == left
        assert len(set(flags(result))) == len(flags(result))
        assert LaunchCommand.of(result.argv).program == LaunchCommand.of(known.argv).program
        assert LaunchCommand.of(result.argv).positional == LaunchCommand.of(known.argv).positional
    assert (known.argv, dict(known.env)) == before


@pytest.mark.parametrize("known", SET, ids=IDS)
def test_no_two_options_exclude_each_other(known: Recipe) -> None:
    for asked in ASKED:
        there = set(flags(with_overlay(known, asked)[1]))
        if "--language-model-only" in there:
            assert not there & {*ENCODER_FLAGS, "--enable-multimodal", "--mm-attention-backend"}
        for flag in there:
            assert f"--no-{flag[2:]}" not in there
            assert flag.replace("--enable-", "--disable-") not in there - {flag}


def test_every_change_says_why_in_one_sentence() -> None:
    for known, asked in product(SET, ASKED):
        for change in with_overlay(known, asked)[0]:
            assert change.reason.endswith(".")
            assert ". " not in change.reason
            assert change.source


def test_vllm_gets_what_agents_need() -> None:
    _, result = with_overlay(recipe("vllm-nvidia-128k"))
    assert flags(result)[3:] == [
        "--enable-prefix-caching",
        "--tool-call-parser",
        "--reasoning-parser",
        "--enable-auto-tool-choice",
        "--default-chat-template-kwargs",
        "--enable-prompt-tokens-details",
        "--language-model-only",
        "--host",
    ]
    assert dict(result.env) == {"VLLM_USE_FASTOKENS": "1"}


def test_a_recipe_without_prefix_cache_gets_it_back() -> None:
    changes, result = with_overlay(recipe("vllm-amd-mxfp4-aiter"))
    assert "--no-enable-prefix-caching" not in flags(result)
    assert "--enable-prefix-caching" in flags(result)
    assert [change.what for change in changes if change.dropped] == ["prefix cache"]
    assert result.env["VLLM_USE_BREAKABLE_CUDAGRAPH"] == "0"


def test_block_size_is_kept_with_a_note() -> None:
    changes, result = with_overlay(recipe("vllm-nvidia-tp8"))
    assert changes[0].kept == (("--block-size", "128"),)
    assert value(result, "--block-size") == "128"
    assert value(with_overlay(recipe("vllm-cloud-2gpu"))[1], "--block-size") == "128"


def test_remote_code_runs_only_where_an_engine_needs_it() -> None:
    for known in ENGINES_OWN:
        assert "--trust-remote-code" not in flags(with_overlay(known)[1])
    changes, result = with_overlay(recipe("trtllm-gb200-2x4"))
    assert "--trust_remote_code" in flags(result)
    assert [change.kept for change in changes if change.what == "remote code"] == [
        (("--trust_remote_code",),)
    ]


def test_sglang_gets_names_that_exist() -> None:
    _, result = with_overlay(recipe("sglang-8gpu"))
    assert value(result, "--tool-call-parser") == "minimax-m3"
    assert {"--enable-cache-report", "--enable-metrics"} <= set(flags(result))
    assert value(result, "--tokenizer-backend") == "fastokens"
    _, small = with_overlay(recipe("sglang-cloud-2gpu"))
    assert flags(small)[:4] == ["--model-path", "--tp-size", "--quantization", "--ep-size"]
    assert value(small, "--ep-size") == "2"


@pytest.mark.parametrize(
    ("name", "fp8"), [("vllm-nvidia-mxfp8", "fp8"), ("vllm-amd-tp8", "fp8"), ("sglang-8gpu", "fp8_e4m3")]
)
def test_fp8_is_called_as_the_engine_calls_it(name: str, fp8: str) -> None:
    assert value(with_overlay(recipe(name), (None, False, True, "fp8"))[1], "--kv-cache-dtype") == fp8


def test_auto_takes_a_recipes_fp8_away() -> None:
    assert "--kv-cache-dtype" in flags(with_overlay(recipe("vllm-amd-1m"))[1])
    assert "--kv-cache-dtype" not in flags(
        with_overlay(recipe("vllm-amd-1m"), (None, False, True, "auto"))[1]
    )


@pytest.mark.parametrize("context", [0, -1, 1_048_577])
def test_a_window_that_m3_does_not_have_is_refused(context: int) -> None:
    with pytest.raises(UsageError, match="M3 has no window of"):
        overlay(recipe("vllm-nvidia-tp8"), context=context)


@pytest.mark.parametrize("name", ["vllm-nvidia-docker", "dynamo-vllm-agg"])
def test_recipe_without_options_is_not_changed(name: str) -> None:
    assert overlay(recipe(name)) == []
    with pytest.raises(UsageError, match=f"{name} has no options to set"):
        overlay(recipe(name), context=1000)


def test_a_million_tokens_go_another_way_on_each_vendor() -> None:
    asked: Asked = (1_048_576, False, True, None)
    nvidia, amd = (with_overlay(recipe(f"vllm-{vendor}-tp8"), asked)[1] for vendor in ("nvidia", "amd"))
    assert value(nvidia, "--hf-overrides") == '{"text_config":{"max_position_embeddings":1048576}}'
    assert "VLLM_ALLOW_LONG_MAX_MODEL_LEN" not in nvidia.env
    assert value(amd, "--hf-overrides") == value(recipe("vllm-amd-1m"), "--hf-overrides")
    assert amd.env["VLLM_ALLOW_LONG_MAX_MODEL_LEN"] == "1"


def test_a_short_window_needs_no_stretching() -> None:
    _, result = with_overlay(recipe("vllm-amd-1m"), (524_288, False, True, None))
    assert value(result, "--max-model-len") == "524288"
    assert "--hf-overrides" not in flags(result)
    assert "VLLM_ALLOW_LONG_MAX_MODEL_LEN" not in result.env


def test_images_keep_the_encoder() -> None:
    asked: Asked = (None, True, True, None)
    assert set(ENCODER_FLAGS[:2]) <= set(flags(with_overlay(recipe("vllm-amd-tp8"), asked)[1]))
    assert "--language-model-only" not in flags(with_overlay(recipe("vllm-amd-mxfp4-aiter"), asked)[1])
    assert "--enable-multimodal" in flags(with_overlay(recipe("sglang-8gpu"), asked)[1])


def test_key_is_required_and_never_in_the_command() -> None:
    for known in ENGINES_OWN:
        assert value(with_overlay(known)[1], "--host") == "127.0.0.1"
        changes, result = with_overlay(known, (None, False, False, None))
        assert value(result, "--host") == "0.0.0.0"
        assert KEY not in " ".join(result.argv)
        files = {name: text for change in changes for name, text in change.files.items()}
        if known.engine == "vllm":
            assert result.env["VLLM_API_KEY"] == KEY
        else:
            assert files == {value(result, "--config"): f"api-key: {KEY}\n"}


def test_json_has_the_result_beside_the_documented_command() -> None:
    shown = recipe_json("sglang-8gpu")
    assert shown["problems"] == ["`--tool-call-parser` has no `minimax-m3-nom`; did you mean `minimax-m3`?"]
    assert shown["checked_with"] == "SGLang 0.5.23"
    assert "minimax-m3-nom" in shown["argv"]
    assert "minimax-m3-nom" not in shown["result"]["argv"]
    assert shown["result"]["packages"] == ["fastokens>=0.3.2"]
    parsers = next(change for change in shown["overlay"] if change["what"] == "parsers")
    assert parsers["changed"] == (
        (("--tool-call-parser", "minimax-m3-nom"), ("--tool-call-parser", "minimax-m3")),
    )


def test_a_request_without_a_thinking_mode_thinks() -> None:
    for known in ENGINES_OWN:
        _, result = with_overlay(known)
        assert value(result, "--default-chat-template-kwargs") == '{"thinking_mode":"enabled"}', known.name
