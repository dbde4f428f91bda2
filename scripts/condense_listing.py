"""Condense an engine's options to what `serving/plan/listing.py` checks: flags, values, types, names.

    python scripts/condense_listing.py RAW.json...

It writes `serving/plan/listings/ENGINE-VERSION.json` for each RAW. RAW is a dump of the engine's own argument parser.
Make it where the engine is installed; no GPU is needed:

    # vLLM                                                           # SGLang
    from vllm.entrypoints.openai.cli_args import make_arg_parser     from sglang.srt.server_args import ServerArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser     import argparse
    parser = make_arg_parser(FlexibleArgumentParser())               parser = argparse.ArgumentParser()
                                                                     ServerArgs.add_cli_args(parser)

as `{"vllm": VERSION, "options": [{"flags": action.option_strings, "nargs": action.nargs, "type": action.type's name,
"action": the class's name, "choices": ..., "default": ...} for action in parser._actions], "extra": {"tool_parsers":
[...], "reasoning_parsers": [...], "attention_backends": [...], "quantization_methods": [...]}}`. `extra` has the names
that vLLM registers outside of its parser: in ToolParserManager, ReasoningParserManager, AttentionBackendEnum and
QUANTIZATION_METHODS.
"""

import json
import sys
from pathlib import Path
from typing import Any

LISTINGS = Path(__file__).parent.parent / "serving" / "plan" / "listings"
TAKES = {0: "none", "?": "maybe", "+": "some", "*": "any"}
TYPES = {
    "int": "int",
    "float": "float",
    "human_readable_int": "size",
    "human_readable_int_or_auto": "size or auto",
    "loads": "json",
    "parse_dataclass": "json",
    "_parse_type": "json",
    "union_dict_and_str": "json or text",
}
REGISTRIES = {
    "--tool-call-parser": "tool_parsers",
    "--reasoning-parser": "reasoning_parsers",
    "--attention-backend": "attention_backends",
    "--mm-encoder-attn-backend": "attention_backends",
    "--attention-config.backend": "attention_backends",
    "--quantization": "quantization_methods",
}


def typed(option: dict[str, Any]) -> str | None:
    """Return the type of an option's value, or None if any text is allowed or the type is unknown."""
    if "type" not in option:
        # SGLang's dump has no types, so a number's default shows the type; the default of a float may be an int
        default = option["default"]
        if isinstance(default, (int, float)) and not isinstance(default, bool):
            return "number"
        return "json" if default == "{}" else None
    if option["type"] == "_optional_type" and option["flags"][0].endswith(("-config", "-kwargs")):
        return "json"
    return TYPES.get(option["type"])


def condensed(option: dict[str, Any], registries: dict[str, list[str]]) -> dict[str, Any]:
    """Return the properties of an option that differ from the default, which is to take one text."""
    flags, row = list(option["flags"]), dict[str, Any]()
    if option.get("action") == "EnableDisableAction" and not flags[0].startswith("--no-"):
        # vLLM 0.33 lists --disable-x beside --enable-x, but still accepts --no-enable-x, which recipes use
        flags += [old] if (old := f"--no-{flags[0][2:]}") not in flags else []
    row["flags"] = flags
    if option["nargs"] is not None:
        row["takes"] = TAKES[option["nargs"]]
    if option.get("action") == "_AppendAction":
        row["repeats"] = True
    if option["nargs"] != 0 and (kind := typed(option)):
        row["type"] = kind
    if option["choices"]:
        row["names"] = option["choices"]
    elif REGISTRIES.get(flags[0]) in registries:
        row["registry"] = REGISTRIES[flags[0]]
    return row


def listing(raw: dict[str, Any]) -> str:
    """Return the condensed listing as JSON, one option per line."""
    engine = "vllm" if "vllm" in raw else "sglang"
    registries = raw.get("extra", {})
    rows = [condensed(option, registries) for option in raw["options"] if option.get("flags")]
    if registries:
        group = ["--attention-config.backend", "-ac.backend"]
        rows.append({"flags": group, "registry": "attention_backends"})
    head = json.dumps({"engine": engine, "version": raw[engine], "registries": registries})
    return head[:-1] + ', "options": [\n' + ",\n".join(json.dumps(row) for row in rows) + "\n]}\n"


if __name__ == "__main__":
    for name in sys.argv[1:]:
        text = listing(json.loads(Path(name).read_text()))
        about = json.loads(text)
        (LISTINGS / f"{about['engine']}-{about['version']}.json").write_text(text)
