"""Commands checked against the engines' real options: mistakes of the recipes' documents, and misspellings."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from m3agent.serving.plan.command import LaunchCommand, flag_of
from m3agent.serving.plan.listing import OptionListing, listing, problems, versions
from m3agent.serving.plan.overlay import applied, overlay
from m3agent.serving.plan.recipe import RECIPES, recipe

ROOT = Path(__file__).parents[3]
RAW = ROOT.parent / "shared" / "m3kit" / "cli"
LISTINGS = [listing(engine, version) for engine in ("vllm", "sglang") for version in versions(engine)]
NEWEST = {"vllm": listing("vllm"), "sglang": listing("sglang")}

# Documented commands that the engine does not accept unchanged, and why.
DOCKER = "the recipe starts a container, in which another one is run"
KNOWN = {
    "vllm-nvidia-docker": (DOCKER, ["`docker` does not start vLLM {}; the command is `vllm serve`."]),
    "vllm-amd-docker": (DOCKER, ["`docker` does not start vLLM {}; the command is `vllm serve`."]),
    "sglang-8gpu": (
        "written for a build before the release, with a parser that was renamed",
        ["`--tool-call-parser` has no `minimax-m3-nom`; did you mean `minimax-m3`?"],
    ),
    "sglang-cloud-2gpu": (
        "an abbreviation, and an option of releases long before M3",
        [
            "`--tp` is short for `--tp-size` only in this version: write it in full.",
            "SGLang {} has no option `--enable-moe-ep`; did you mean `--enable-eplb`?",
        ],
    ),
}

SHORT = "`--tp` is short for `--tp-size` only in this version: write it in full."
KNOWN |= {
    known.name: ("an abbreviation", [SHORT]) for known in RECIPES if known.argv[:2] == ("sglang", "serve")
}
NEWER = {("vllm-nvidia-h200-humming", "0.24.0"): ["`--linear-backend` has no `humming`."]}


def test_there_are_the_listings_that_the_planner_counts_on() -> None:
    assert versions("vllm") == ["0.24.0", "0.33.0"]
    assert versions("sglang") == ["0.5.23"]
    assert versions("trtllm") == []
    assert listing("vllm").version == "0.33.0"


@pytest.mark.parametrize(("engine", "version"), [("vllm", "0.23.0"), ("trtllm", None)])
def test_unknown_listing_is_refused(engine: str, version: str | None) -> None:
    with pytest.raises(ValueError, match=f"There is no option list of {engine}"):
        listing(engine, version)


@pytest.mark.parametrize("known", LISTINGS, ids=lambda known: known.name)
def test_recipes_are_taken_but_for_known_exceptions(known: OptionListing) -> None:
    for each in RECIPES:
        if each.engine == known.engine:
            _, expected = KNOWN.get(each.name, ("", []))
            expected = NEWER.get((each.name, known.version), expected)
            found = problems(each.argv, known)
            assert found == [sentence.format(known.version) for sentence in expected], each.name


GOOD = ["vllm", "serve", "M", "--block-size", "128"]


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (
            "--tool-call-parser minimax-m3",
            "`--tool-call-parser` has no `minimax-m3`; did you mean `minimax_m3`?",
        ),
        (
            "--reasoning-parser minimax_m",
            "`--reasoning-parser` has no `minimax_m`; did you mean `minimax_m3`?",
        ),
        (
            "--attention-backend TRITON_ATN",
            "`--attention-backend` has no `TRITON_ATN`; did you mean `TRITON_ATTN`?",
        ),
        (
            "--mm-encoder-attn-backend FLASHINFR",
            "`--mm-encoder-attn-backend` has no `FLASHINFR`; did you mean `FLASHINFER`?",
        ),
        ("--quantization mxpf8", "`--quantization` has no `mxpf8`; did you mean `mxfp8`?"),
        ("-q mxpf8", "`-q` has no `mxpf8`; did you mean `mxfp8`?"),
        ("--moe-backend emulate", "`--moe-backend` has no `emulate`; did you mean `emulation`?"),
        (
            "--attention_config.backend FLASHINFR",
            "`--attention_config.backend` has no `FLASHINFR`; did you mean `FLASHINFER`?",
        ),
        (
            '--attention-config {"backend":"FLASHINFR"}',
            "`--attention-config.backend` has no `FLASHINFR`; did you mean `FLASHINFER`?",
        ),
        (
            "--enable-prefix-cache",
            "vLLM 0.33.0 has no option `--enable-prefix-cache`; did you mean `--enable-prefix-c",
        ),
        ("--tensor-parallel", "`--tensor-parallel` is short for `--tensor-parallel-size`"),
        (
            "--tensor-paralel-size 8",
            "vLLM 0.33.0 has no option `--tensor-paralel-size`; did you mean `--tensor-",
        ),
        ("-tpp 8", "vLLM 0.33.0 has no option `-tpp`"),
        ("--tensor-parallel-size", "`--tensor-parallel-size` needs a value."),
        ("--tensor-parallel-size eight", "`--tensor-parallel-size` takes a whole number, not `eight`."),
        ("--tensor-parallel-size 8 4", "`--tensor-parallel-size` takes one value, but `4` follows `8`."),
        (
            "--enable-expert-parallel true",
            "`--enable-expert-parallel` is a switch and takes no value, but `true` ",
        ),
        (
            "--enable-expert-parallel=true",
            "`--enable-expert-parallel` is a switch and takes no value, but `true` ",
        ),
        ("--gpu-memory-utilization 92%", "`--gpu-memory-utilization` takes a number, not `92%`."),
        ("--max-model-len 128KB", "`--max-model-len` takes a whole number such as 131072 or 128K, or auto"),
        (
            "--max-num-batched-tokens 1.5K",
            "`--max-num-batched-tokens` takes a whole number such as 8192 or 8k",
        ),
        ("--served-model-name", "`--served-model-name` needs a value."),
        ('--hf-overrides {"a":1', "`--hf-overrides` takes JSON that is complete"),
        ("--compilation-config mode", "`--compilation-config` takes JSON, not `mode`."),
        ("--block-size.x 1", "`--block-size.x`: --block-size is not a group of settings"),
        ("-O4", "`-O4`: -O takes 0, 1, 2 or 3."),
        ("-O", "`-O`: -O takes 0, 1, 2 or 3."),
        ("--block_size 64", "`--block_size` is given twice"),
        ("--enable-prefix-caching --no-enable-prefix-caching", "`--no-enable-prefix-caching` is given twice"),
    ],
)
def test_wrong_options_are_named(more: str, sentence: str) -> None:
    assert problems(GOOD, NEWEST["vllm"]) == []
    found = problems([*GOOD, *more.split()], NEWEST["vllm"])
    assert len(found) == 1
    assert found[0].startswith(sentence)


@pytest.mark.parametrize(
    "more",
    [
        "--tensor_parallel_size 8",
        "--tensor-parallel-size=8",
        "-tp 8",
        "-O3",
        "-O=2",
        "-O 1",
        "--attention_config.indexer_kv_dtype fp8",
        "--attention-config.backend=FLASHINFER",
        '--attention-config {"backend":"FLASHINFER","use_trtllm_attention":true}',
        "--no-enable-prefix-caching",
        "--disable-prefix-caching",
        "--max-model-len 1M",
        "--max-model-len -1",
        "--max-num-batched-tokens 25.6k",
        "--seed -1",
        "--served-model-name one two",
        "--middleware a --middleware b",
        '--hf-overrides {"text_config":{"max_position_embeddings":1048576}}',
    ],
)
def test_every_spelling_that_the_engine_takes_is_taken(more: str) -> None:
    assert problems([*GOOD, *more.split()], NEWEST["vllm"]) == []


def test_the_old_vllm_has_other_switches() -> None:
    old = listing("vllm", "0.24.0")
    assert problems([*GOOD, "--no-enable-prefix-caching"], old) == []
    assert len(problems([*GOOD, "--disable-prefix-caching"], old)) == 1


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        ("vllm serve --block-size 128", "No model is named"),
        ("vllm serve M N", "`N` belongs to no option."),
        ("python -m sglang.launch_server --tp-size 8", "No model is named"),
        ("python -m sglang.launch_server M --model-path M", "`M` belongs to no option."),
        (
            "python -m sglang.launch_server --model-path M --tp_size 8",
            "SGLang 0.5.23 has no option `--tp_size`",
        ),
        (
            "python -m sglang.launch_server --model-path M --kv-cache-dtype fp8",
            "`--kv-cache-dtype` has no `fp8`; ",
        ),
        ("python -m sglang.launch_server --model-path M --tp-size x", "`--tp-size` takes a number, not `x`."),
        ("ollama serve M", "`ollama serve` does not start SGLang 0.5.23"),
    ],
)
def test_programs_and_models(argv: str, sentence: str) -> None:
    known = NEWEST["vllm" if "vllm" in argv else "sglang"]
    found = problems(argv.split(), known)
    assert len(found) == 1
    assert found[0].startswith(sentence)


@pytest.mark.parametrize(
    "start", ["vllm serve M", "/opt/bin/vllm serve M", "python3 -m vllm.entrypoints.cli.main serve M"]
)
def test_every_way_to_start_vllm_is_known(start: str) -> None:
    assert problems(start.split(), NEWEST["vllm"]) == []


RESULTS = {
    known.name: applied(known, overlay(known))[0]
    for known in RECIPES
    if known.engine in NEWEST and not known.name.endswith("docker")
}


@st.composite
def misspelt(draw: st.DrawFn, word: str, start: int) -> str:
    """Draw the word with one character from `start` on removed or replaced."""
    place = draw(st.integers(start, len(word) - 1))
    instead = draw(st.one_of(st.just(""), st.characters(codec="ascii", exclude_categories=("Cc", "Zs"))))
    return word[:place] + instead + word[place + 1 :]


@given(data=st.data(), name=st.sampled_from(sorted(RESULTS)))
def test_a_misspelt_flag_is_always_caught(data: st.DataObject, name: str) -> None:
    argv, known = RESULTS[name], NEWEST[recipe(name).engine]
    assert problems(argv, known) == []
    place = data.draw(
        st.sampled_from([i for i, word in enumerate(argv) if word in known.options and word[:2] == "--"])
    )
    wrong = data.draw(misspelt(argv[place], 2))
    assume(known.spelt(wrong) not in known.options)
    assert problems([*argv[:place], wrong, *argv[place + 1 :]], known)


@given(data=st.data(), name=st.sampled_from(sorted(RESULTS)))
def test_a_misspelt_name_is_always_caught(data: st.DataObject, name: str) -> None:
    argv, known = RESULTS[name], NEWEST[recipe(name).engine]
    named = [
        i + 1
        for i, word in enumerate(argv[:-1])
        if word in known.options and known.options[word].names and not argv[i + 1].startswith("-")
    ]
    place = data.draw(st.sampled_from(named))
    wrong = data.draw(misspelt(argv[place], 0))
    assume(wrong not in known.options[argv[place - 1]].names and wrong != argv[place])
    assert problems([*argv[:place], wrong, *argv[place + 1 :]], known)


WORDS = st.one_of(
    st.text(max_size=12),
    st.sampled_from(
        ["-m", "serve", "--", "-", "-c", "--a.b", "-O", "--=", "--block-size", "{", "--hf-overrides", "-1"]
    ),
)


@given(
    head=st.sampled_from([[], ["vllm", "serve"], ["python", "-m", "sglang.launch_server"]]),
    words=st.lists(WORDS),
)
def test_any_command_line_gets_complete_sentences(head: list[str], words: list[str]) -> None:
    argv = (*head, *words)
    for known in NEWEST.values():
        assert all(sentence.endswith((".", "?")) for sentence in problems(argv, known))
    command = LaunchCommand.of(argv)
    if not command.launcher:
        assert command.words == argv
        assert all(flag_of(option).startswith("-") for option in command.options)


def test_deeply_nested_json_does_not_crash() -> None:
    assert len(problems([*GOOD, "--compilation-config", "[" * 200_000], NEWEST["vllm"])) == 1


raw_listings = pytest.mark.skipif(
    not RAW.is_dir(), reason="the engines' full option listings are not beside this checkout"
)


@raw_listings
@pytest.mark.parametrize("known", LISTINGS, ids=lambda known: known.name)
def test_a_condensed_listing_is_that_of_the_engine(known: OptionListing) -> None:
    raw = json.loads((RAW / f"{known.engine}-{known.version}.json").read_text())
    flags = {flag for option in raw["options"] for flag in option.get("flags", ())}
    extra = set(known.options) - flags
    assert flags <= set(known.options)
    assert all(
        flag.startswith("--no-") or flag.endswith("-config.backend") or flag == "-ac.backend"
        for flag in extra
    )
    for option in raw["options"]:
        for flag in option.get("flags", ()):
            condensed = known.options[flag]
            takes = {"none": 0, "one": None, "maybe": "?", "some": "+", "any": "*"}[condensed.takes]
            assert takes == option["nargs"]
            if option["choices"]:
                assert list(condensed.names) == option["choices"]


@raw_listings
@pytest.mark.parametrize(
    "known", [known for known in LISTINGS if known.engine == "vllm"], ids=lambda known: known.name
)
def test_the_engines_own_parser_agrees(known: OptionListing) -> None:
    """The full listings contain commands with the verdicts of the real parser."""
    raw = json.loads((RAW / f"vllm-{known.version}.json").read_text())
    for checked in raw["checked"]:
        if "--attention_config.minimax_m3_msa_decode_backend" in checked["cmd"]:
            continue  # a setting inside a group, which no parser lists
        assert (not problems(["vllm", "serve", *checked["cmd"]], known)) == checked["ok"], checked["cmd"]


@pytest.mark.integration
@raw_listings
def test_the_script_writes_what_is_committed(tmp_path: Path) -> None:
    copy = tmp_path / "scripts" / "condense_listing.py"
    copy.parent.mkdir()
    copy.write_bytes((ROOT / "scripts" / "condense_listing.py").read_bytes())
    folder = tmp_path / "serving" / "plan" / "listings"
    folder.mkdir(parents=True)
    subprocess.run([sys.executable, copy, *sorted(RAW.glob("*.json"))], check=True)
    committed = ROOT / "serving" / "plan" / "listings"
    assert {file.name: file.read_text() for file in folder.iterdir()} == {
        file.name: file.read_text() for file in committed.iterdir()
    }
