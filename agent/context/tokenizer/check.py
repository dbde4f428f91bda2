"""Check whether a tokenizer.json is suitable for counting, and convert it.

This runs as a separate program, because the library ends the whole process on some broken files, and because
reading JSON takes ten times the memory of counting. Standard input is the JSON. Standard output is the result
of `PreparedTokenizer.packed`; on failure the exit status is UNSUPPORTED and the reason goes to standard error.
"""

from __future__ import annotations

import contextlib
import json
import re
import resource
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from m3agent.agent.context.tokenizer.files import CPU_SECONDS, UNSUPPORTED, PreparedTokenizer

if TYPE_CHECKING:
    from kitoken import Kitoken

# Ends and starts of chunks that a tokenizer may treat specially; every combination is tried.
_ENDS = (
    *("x\n", "x  \n", "x\t\n", "\n", "\n\n", " \n \n", "}\n", "//\n", "7\n", "'\n", "<\n", "\u3000\n"),
    *("e\u0301\n", "漢\n", "\r\n"),
)
_STARTS = ("<file", "</file", "<outline", "<1", "<'s", "< x", "<\n", "<\u0338", "<<", "<é", "<漢", "<\t")

# The end of the expressions of GPT-4, GPT-4o, Llama 3, Qwen and others. It matches ends of lines with the
# white space before them, then white space up to the last character before a word. Only its second last part
# looks ahead. The library then remembers each character of such a run, a million characters at most.
_SPACES_LAST = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
# Limits that make the two libraries (Oniguruma for Hugging Face, fancy-regex here) read an expression alike:
# no anchors, look-behind, references, flags for the rest, set operations, repeated counts, or classes that
# they define differently.
_ESCAPES = frozenset("pPsSrnt|.*+?()[]{}^$/\\-'")
_DIFFER = re.compile(r"\(\?<|\(\?[a-z]+\)|\[\[|&&|(?<!\\)\$|(?<![\[\\])\^|\{\d[\d,]*\}[+*{]")


class UnsupportedTokenizer(Exception):
    """The file is not suitable for counting; the message gives the reason as the end of a sentence."""


def adds_up(count: Callable[[Sequence[str]], Sequence[int]], *, shifts: int = len(_STARTS)) -> bool:
    """Return whether counts of chunks that start with `<` and end with a newline are additive.

    The test texts are made to break additivity. Each end is tried with `shifts` of the starts.
    """
    for shift in range(shifts):
        starts = [_STARTS[(number + shift) % len(_STARTS)] for number in range(len(_ENDS))]
        chunks = [f"{start}>{end}" for start, end in zip(starts, _ENDS, strict=True)]
        counts = count([*chunks, "".join(chunks)])
        if sum(counts[:-1]) != counts[-1]:
            return False
    return True


def examine(data: bytes) -> PreparedTokenizer:
    """Convert a tokenizer.json and judge it. The library may end the process.

    Raises:
        UnsupportedTokenizer: The file is not suitable for counting.
    """
    described = _parse(data)
    doubts = _doubts(described)
    from kitoken import Kitoken

    try:
        encoder = Kitoken.from_tokenizers(data)
    except ValueError as error:
        raise UnsupportedTokenizer(f"{error}") from None
    if encoder.config()["processing"]:  # truncation and padding, which are for training
        encoder.set_config({**encoder.config(), "processing": []})
    pattern = _pattern(described)
    spaces_last = pattern.endswith(_SPACES_LAST) and not re.search(
        r"\(\?[=!<]", pattern[: -len(_SPACES_LAST)]
    )
    if not spaces_last:
        doubts.append("it splits text in an unusual way")
    if doubtful := _unmerged(described, encoder):
        doubts.append(f"its merges never make the entry {doubtful!r}")
    if not all(adds_up(_counting(each)) for each in (encoder, _joiner(described))):
        doubts.append("it joins the end of a file and the start of the next")
    return PreparedTokenizer(encoder.to_bytes(), "; ".join(doubts), spaces_last=spaces_last)


def _counting(encoder: Kitoken) -> Callable[[Sequence[str]], Sequence[int]]:
    return lambda texts: [len(encoder.encode(text, [])) for text in texts]


def _joiner(described: dict[str, Any]) -> Kitoken:
    """Return an encoder that splits text as the tokenizer does, but joins white space and `<` in every word.

    It therefore shows every word that changes where two files meet. The tokenizer itself shows only words
    that are in its vocabulary and in the tested texts.
    """
    from kitoken import Kitoken

    named = {byte: character for character, byte in _BYTES.items()}
    newline, space, tab = (named[ord(character)] for character in "\n \t")
    merges = [
        (newline, "<"),
        (newline, newline),
        (space, newline),
        (tab, newline),
        (space, space),
        (newline, space),
    ]
    entries = [*_BYTES, *("".join(pair) for pair in merges)]
    model = {
        "type": "BPE",
        "vocab": {entry: number for number, entry in enumerate(entries)},
        "merges": merges,
    }
    without = dict.fromkeys(("added_tokens", "decoder", "padding", "post_processor", "truncation"))
    joiner = {**described, **without, "model": model}
    return Kitoken.from_tokenizers(json.dumps(joiner).encode())


def _parse(data: bytes) -> dict[str, Any]:
    """Return the parsed description, after checking that it is a byte-level byte-pair encoding."""
    if not data.strip():
        raise UnsupportedTokenizer("it is empty")
    try:
        described: Any = json.loads(data)
    except (ValueError, RecursionError):
        raise UnsupportedTokenizer("it is not complete JSON") from None
    model = described.get("model") if isinstance(described, dict) else None
    if not isinstance(described, dict) or not isinstance(model, dict):
        raise UnsupportedTokenizer("it is not a tokenizer.json, which describes a model")
    vocabulary, merges = model.get("vocab"), model.get("merges")
    if model.get("type", "BPE") != "BPE" or not isinstance(vocabulary, dict) or not isinstance(merges, list):
        raise UnsupportedTokenizer(
            f"its kind is {model.get('type')}, and m3agent can count only with byte-pair encodings"
        )
    if model.get("dropout"):
        raise UnsupportedTokenizer("it drops merges at random")
    if not any(step.get("type") == "ByteLevel" for step in _steps(described.get("pre_tokenizer"))):
        raise UnsupportedTokenizer("it is not byte-level")
    if not vocabulary or not all(isinstance(index, int) for index in vocabulary.values()):
        raise UnsupportedTokenizer("its vocabulary is empty or has entries without a number")
    model["merges"] = _pairs(vocabulary, merges)
    return described


def _pairs(vocabulary: dict[str, int], merges: list[Any]) -> list[list[str]]:
    """Return the merges as pairs of entries."""
    pairs = [merge.split(" ") if isinstance(merge, str) else merge for merge in merges]
    with contextlib.suppress(TypeError, ValueError):
        if all(vocabulary.keys() >= {left, right, left + right} for left, right in pairs):
            return pairs
    raise UnsupportedTokenizer("its merges are not pairs of entries that form another entry")


def _steps(described: Any) -> list[dict[str, Any]]:
    """Return the steps of a pre-tokenizer or normalizer as a flat list."""
    if not isinstance(described, dict):
        return []
    inner = described.get("pretokenizers") or described.get("normalizers")
    if not isinstance(inner, list):
        return [described]
    return [step for part in inner for step in _steps(part)]


def _pattern(described: dict[str, Any]) -> str:
    """Return the expression that splits the text.

    It is empty if the text is not split by exactly one expression.
    """
    splits = [step for step in _steps(described["pre_tokenizer"]) if step.get("type") == "Split"]
    pattern = splits[0].get("pattern") if len(splits) == 1 else None
    expression = pattern.get("Regex") if isinstance(pattern, dict) else None
    return expression if isinstance(expression, str) else ""


def _doubts(described: dict[str, Any]) -> list[str]:
    """Return the parts of the description that the library may read differently from Hugging Face."""
    model = described["model"]
    marks = ("unk_token", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback")
    *splits, last = _steps(described["pre_tokenizer"])
    plain = (
        last.get("type") == "ByteLevel"
        and not last.get("add_prefix_space")
        and last.get("use_regex") is False
    )
    whole = [(step.get("type"), step.get("behavior"), bool(step.get("invert"))) for step in splits]
    is_one_step = plain and whole in ([("Split", "Isolated", False)], [("Split", "Removed", True)])
    pattern, reserved = _pattern(described), _reserved(described)
    differs = _DIFFER.search(pattern) or not _ESCAPES.issuperset(re.findall(r"\\(.)", pattern))
    changes = any(step.get("type") != "NFC" for step in _steps(described.get("normalizer")))
    doubts = {
        "its words have marks or substitutes": any(map(model.get, marks)),
        "it changes text before it counts": changes,
        "it splits text in more than one step": not is_one_step,
        "it splits text by an expression that libraries interpret differently": differs,
        f"it reserves {reserved!r}, which files may contain": reserved,
    }
    return [doubt for doubt, applies in doubts.items() if applies]


def _reserved(described: dict[str, Any]) -> str | None:
    """Return a string that the tokenizer reserves but that `harmless` leaves in files; None if there is no such string."""
    from m3agent.agent.context.neutralise import harmless

    for token in described.get("added_tokens") or ():
        content = token.get("content") if isinstance(token, dict) else None
        if isinstance(content, str) and content and harmless(content) == content:
            return content
    return None


def _unmerged(described: dict[str, Any], encoder: Kitoken) -> str | None:
    """Return an entry for which merging by rank differs from merging by the list, or None if both agree.

    The library forgets which pair makes an entry, and joins any two neighbours that spell one. Both methods
    agree exactly if, for each entry, merges of lower rank turn its bytes into a pair on the list: merges
    within an entry do not depend on the text around it. To check this, the merges next to the pair's seam are
    undone, latest first, as long as no join across the seam would have come earlier.
    """
    vocabulary: dict[str, int] = described["model"]["vocab"]
    merges: list[list[str]] = described["model"]["merges"]
    rank: dict[str, int] = {}
    halves: dict[str, tuple[str, str]] = {}
    for number, (left, right) in enumerate(merges):
        whole = left + right
        if (
            rank.setdefault(whole, number) != number
            and merges[number - 1][0] + merges[number - 1][1] != whole
        ):
            return whole  # separate pairs for one entry: their order is lost
        if whole not in halves and _meets(left, right, rank, halves):
            halves[whole] = left, right
    added = {token.get("content") for token in described.get("added_tokens") or () if isinstance(token, dict)}
    for entry in sorted(vocabulary.keys() - halves.keys() - _BYTES.keys() - added):
        if entry in rank:
            return entry
        # No merge makes this entry, so the encoder must not produce it: the text must be split within it.
        try:
            text = bytes(_BYTES[character] for character in entry).decode()
        except (KeyError, UnicodeDecodeError):
            return entry
        if encoder.encode(text, []) == [vocabulary[entry]]:
            return entry
    return None


def _meets(left: str, right: str, rank: dict[str, int], halves: dict[str, tuple[str, str]]) -> bool:
    """Return whether merging the bytes of both parts by rank gives these two parts before it joins them."""
    limit = rank[left + right]
    of_left, of_right = rank.get(left, -1), rank.get(right, -1)
    if of_left >= limit or of_right >= limit:
        return False
    while of_left >= 0 or of_right >= 0:
        if of_right >= of_left:  # among equal merges, the leftmost comes first
            if right not in halves:
                return False
            limit, right = of_right, halves[right][0]
            of_right = rank.get(right, -1)
            if rank.get(left + right, limit + 1) <= limit:
                return False
        else:
            if left not in halves:
                return False
            limit, left = of_left, halves[left][1]
            of_left = rank.get(left, -1)
            if rank.get(left + right, limit) < limit:
                return False
    return True


def _byte_characters() -> dict[str, int]:
    """Return the printable characters that stand for bytes in byte-level vocabularies (GPT-2's table)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(256 + number): byte for number, byte in enumerate(others)
    }


_BYTES = _byte_characters()


def _main() -> int:
    with contextlib.suppress(ValueError):  # this process has a lower limit already
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, resource.getrlimit(resource.RLIMIT_CPU)[1]))
    try:
        packed = examine(sys.stdin.buffer.read()).packed()
    except UnsupportedTokenizer as error:
        sys.stderr.write(f"{error}\n")
        return UNSUPPORTED
    sys.stdout.buffer.write(packed)
    return 0


if __name__ == "__main__":
    sys.exit(_main())
