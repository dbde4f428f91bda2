"""Extract a text's terms, the names that it defines and its imports, in any language, with patterns only."""

import re
import struct
import sys
from array import array
from collections import Counter
from dataclasses import dataclass
from itertools import islice
from typing import Self
from zlib import crc32

TERMS_VERSION = 2
"""Increase it when the same text gives different terms, so that stored terms are made again."""

_LONG_WORD = 64
_MAX_DEFINED = 2000
_MAX_IMPORTS = 500
_INDENT = 4
_DEEPEST = 20
_REMEMBERED = 100_000
_MOST = 255

_WORD = re.compile(r"[^\W\d]\w+")
# Every ASCII character that is not part of a word becomes a space; the bytes of other characters remain.
_APART = bytes(c if c > 127 or c == 95 or chr(c).isalnum() else 32 for c in range(256))
_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
# Thai and Lao, kana, Han, Hangul: scripts without spaces, or with words that have many endings
_SPACELESS = re.compile("[\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff]+")


def parts(word: str) -> list[str]:
    """Return the terms of a word.

    They are the word in lower case, and the stems of its parts by case and underscores. For scripts without
    spaces, the terms are all pairs of neighbouring characters.
    """
    if not word.isascii() and _SPACELESS.search(word):
        return [run[i : i + 2] for run in _SPACELESS.findall(word) for i in range(max(1, len(run) - 1))]
    whole = word.strip("_").casefold()
    if not word.isascii():
        return list({whole: None} | dict.fromkeys(part for part in whole.split("_") if len(part) > 1))
    found = _PART.findall(word)
    if len(found) == 1 and len(found[0]) == len(whole):
        return [stem(whole)]
    return [whole, *(stem(part.lower()) for part in found if len(part) > 1)] if whole else []


def stem(term: str) -> str:
    """Return an English word without its plural, past or -ing ending.

    The stem is approximate: it only matters that all forms of a word give the same result.
    """
    if len(term) > 4 and term.isascii():
        for ending in ("ing", "ed", "es", "s"):
            if term.endswith(ending) and len(term) - len(ending) > 2 and not term.endswith("ss"):
                term = term[: -len(ending)]
                if ending in ("ing", "ed") and term[-1] == term[-2] and term[-1] not in "lsz":
                    return term[:-1]  # running, stopped
                break
        return term.removesuffix("e")
    return term


def code(term: str) -> int:
    """Return the 32-bit code of a term for storage; it is the same on every machine."""
    return crc32(term.encode("utf-8", "surrogatepass"))


# Both patterns begin with a newline, which is fast to find; they are applied to "\n" followed by the text.
_NAME = r"[A-Za-z_$][\w$]*"
_DEFINED = re.compile(
    r"\n[ \t]*(?:"
    # a keyword that introduces a name, after words that only qualify it
    r"(?:(?:export|default|pub(?:\([\w:]+\))?|public|private|protected|internal|static|final|abstract|async|open"
    r"|override|sealed|data|inline|unsafe|extern|virtual|partial|suspend|declare|local|constexpr|case)[ \t]+){0,6}"
    r"(?:def[a-z]*|class|function\*?|func|fun|fn|struct|enum(?:[ \t]+class)?|trait|interface|type|module|mod|namespace"
    r"|package|union|protocol|extension|object|record|macro_rules!|sub|proc|const|let|var|val"
    r"|typedef(?:[ \t]+(?:struct|enum|union))?)[ \t]+"
    rf"(?:\([^()\n]{{0,80}}\)[ \t]*)?(?:self\.)?({_NAME})"
    # a constant
    r"|([A-Z][A-Z0-9_]+)[ \t]*(?::[^=\n]{1,60})?="
    # a function in C and similar languages: return type, name, parameters, opening brace
    r"|(?!(?:return|else|case|throw|new)\b)(?:[\w<>\[\],.*&:~@]+[ \t]+){1,6}[*&]{0,3}(?:\w+::)?"
    rf"(?!(?:if|for|while|switch|catch)\b)({_NAME})[ \t]*\([^;{{}}()]{{0,300}}\)[^;{{}}()=]{{0,80}}\{{)"
)

_LOADS = "from|import|require|require_relative|load|include|include_once|require_once|use|forward|autoload|import_module"
_IMPORT = re.compile(
    r"\n[ \t]*(?:"
    # Python
    r"from[ \t]+(?P<source>[.\w]+)[ \t]+import[ \t]+(?:\((?P<names>[^()]{0,4000})\)|(?P<line>[^\n(]{0,400}))"
    # C, Objective-C
    r"|\#[ \t]*(?:include|import)[ \t]*[<\"](?P<header>[^>\"\n]{1,200})"
    # JavaScript, Ruby, Lua, Go, PHP, Sass: a quoted name after a keyword that loads something
    r"|@?(?:(?:\}|\w+[ \t]*=|(?:import|export|const|let|var|local|return|await)\b)[^\n'\"]{0,200}?)??"
    r"\b(?P<loads>" + _LOADS + r")[ \t]*(?:\([ \t]*|:\w+,[ \t]*)?"
    r"['\"](?P<quoted>[^'\"\n]{1,200})['\"]"
    # Go's lists of imports
    r"|(?:[\w.]+[ \t]+)?\"(?P<listed>[\w.-]+(?:/[\w.-]+)+)\"[ \t]*(?=\n)"
    # Java, Kotlin, Scala, C#, Rust, PHP, Perl, Haskell, Swift, Elixir, D and Python's plain imports
    r"|(?:(?:pub(?:\([\w:]+\))?|public|global|export)[ \t]+)?(?P<word>import|using|use|open|alias|require|mod)[ \t]+"
    r"(?:(?:static|qualified|type|typeof|safe|function|const)[ \t]+)?(?P<plain>[\w.:\\]+)(?P<group>\{[^{}]{0,1000})?)"
)
_SEPARATOR = re.compile(r"::|[.\\]")
_LISTED = re.compile(r"[\w:]+")


@dataclass(frozen=True, slots=True)
class Terms:
    """The terms, definitions and imports of a text."""

    length: int
    """Number of all occurrences of terms."""
    terms: "array[int]"
    """Code of each different term."""
    counts: bytes
    """Number of occurrences of each, at most 255."""
    defined: "array[int]"
    """Codes of the names that the text defines, in lower case."""
    imports: tuple[str, ...]
    """Imported modules, with parts separated by `/`. A module that begins with `./` or `../` is relative to
    the text's own folder; one that begins with `~` may be.
    """

    def pack(self) -> bytes:
        """Return these terms as bytes for `unpack`."""
        head = struct.pack("<III", self.length, len(self.terms), len(self.defined))
        imports = "\n".join(self.imports).encode("utf-8", "surrogatepass")
        return b"".join((head, self.counts, _bytes(self.terms), _bytes(self.defined), imports))

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        """Return the terms that `pack` stored.

        Raises:
            ValueError: The bytes are damaged.
        """
        if len(data) < 12:
            raise ValueError("cut short")
        length, terms, defined = struct.unpack_from("<III", data)
        start = 12 + terms
        middle = start + 4 * terms
        end = middle + 4 * defined
        if end > len(data):
            raise ValueError("cut short")
        imports = data[end:].decode("utf-8", "surrogatepass")
        return cls(
            length,
            _array(data[start:middle]),
            data[12:start],
            _array(data[middle:end]),
            tuple(imports.split("\n")) if imports else (),
        )


def _bytes(numbers: "array[int]") -> bytes:
    if sys.byteorder != "little":
        numbers = numbers[:]
        numbers.byteswap()
    return numbers.tobytes()


def _array(data: bytes) -> "array[int]":
    numbers = array("I", data)
    if sys.byteorder != "little":
        numbers.byteswap()
    return numbers


_codes: dict[str, tuple[int, ...]] = {}


def codes(word: str) -> tuple[int, ...]:
    """Return the codes of a word's terms."""
    found = _codes.get(word)
    if found is None:
        found = tuple(code(part) for part in parts(word))
        if len(_codes) >= _REMEMBERED:
            _codes.clear()
        _codes[word] = found
    return found


def words(text: str) -> Counter[str]:
    """Return the number of occurrences of each word.

    Words have at least two characters, do not begin with a digit, and are not extremely long.
    """
    found: Counter[str] = Counter()
    rough = Counter(text.encode("utf-8", "surrogatepass").translate(_APART).split())
    for data, number in rough.items():
        if data.isascii():
            if 1 < len(data) <= _LONG_WORD and data[0] > 57:  # after the digits
                found[data.decode()] += number
        else:
            for word in _WORD.findall(data.decode("utf-8", "replace")):
                if len(word) <= _LONG_WORD or not word.isascii():
                    found[word] += number
    return found


def tally_of(found: Counter[str]) -> Counter[int]:
    """Return the number of occurrences of each term, by its code, from those of the words."""
    tally: Counter[int] = Counter()
    for word, number in found.items():
        for term in codes(word):
            tally[term] += number
    return tally


def analyse(text: str) -> Terms:
    """Return the terms of a text. The time is linear in its length, whatever the content."""
    tally = tally_of(words(text))
    return Terms(
        tally.total(),
        array("I", tally),
        bytes([min(number, _MOST) for number in tally.values()]),
        array("I", sorted({code(name.strip("_").casefold()) for name in defined(text)})),
        tuple(imports(text)),
    )


def defined(text: str) -> list[str]:
    """Return the names that a text seems to define: functions, classes, types and constants, up to 2,000."""
    matches = islice(_DEFINED.finditer(f"\n{text}"), _MAX_DEFINED)
    return [match[match.lastindex or 0] for match in matches]


def definition_lines(text: str) -> list[tuple[int, int, str]]:
    """Return the lines that seem to define a name, up to 2,000: number, depth of indentation, and text."""
    found: list[tuple[int, int, str]] = []
    number, position = 1, 0
    for match in _DEFINED.finditer(f"\n{text}"):
        start = match.start(match.lastindex or 0) - 1  # without the newline before the text
        number += text.count("\n", position, start)
        position = start
        if found and found[-1][0] == number:
            continue
        begin, end = text.rfind("\n", 0, start) + 1, text.find("\n", start)
        line = text[begin : end if end >= 0 else len(text)].expandtabs(_INDENT)
        depth = (len(line) - len(line.lstrip())) // _INDENT
        found.append((number, min(depth, _DEEPEST), line.strip().rstrip(" {:")))
        if len(found) == _MAX_DEFINED:
            break
    return found


def imports(text: str) -> list[str]:
    """Return what the text seems to import, at most 500 items, in the notation of `Terms.imports`."""
    found: dict[str, None] = {}
    for match in _IMPORT.finditer(f"\n{text}\n"):
        for spec in _specs(match):
            found[spec] = None
        if len(found) >= _MAX_IMPORTS:
            break
    return [spec for spec in found if "\n" not in spec][:_MAX_IMPORTS]


def _specs(match: re.Match[str]) -> list[str]:
    if match["source"]:
        return [_of_python(match)]
    if header := match["header"]:
        return [f"~{_without_suffix(header)}"]
    if quoted := match["quoted"]:
        if match["loads"] == "require_relative" and not quoted.startswith("."):
            quoted = f"./{quoted}"
        return [_without_suffix(quoted) if quoted.startswith(".") else f"~{_without_suffix(quoted)}"]
    return [match["listed"]] if match["listed"] else _of_word(match)


def _of_python(match: re.Match[str]) -> str:
    path = match["source"].lstrip(".").replace(".", "/")
    dots = len(match["source"]) - len(match["source"].lstrip("."))
    base = ("", "./")[dots] if dots < 2 else "../" * (dots - 1)
    lines = (match["names"] or match["line"] or "").split("\n")
    names = [part.split() for line in lines for part in line.partition("#")[0].split(",")]
    return _with_names(base + path, [name[0] for name in names if name])


def _of_word(match: re.Match[str]) -> list[str]:
    """Return what a keyword without quotes imports."""
    path = _SEPARATOR.sub("/", match["plain"]).strip("/")
    first, _, rest = path.partition("/")
    if first in ("crate", "self", "super"):
        path = rest if first == "crate" else f"./{rest}"
    elif match["word"] == "mod":
        path = f"./{path}"
    if match["group"]:
        return [_with_names(path, [_SEPARATOR.sub("/", name) for name in _LISTED.findall(match["group"])])]
    return [path] if path else []


def _with_names(path: str, names: list[str]) -> str:
    return f"{path}:{','.join(names[:_MAX_IMPORTS])}" if names and names != ["*"] else path


def _without_suffix(name: str) -> str:
    folder, slash, last = name.rpartition("/")
    stem_, dot, suffix = last.rpartition(".")
    return f"{folder}{slash}{stem_}" if dot and stem_ and suffix.isalnum() and len(suffix) < 5 else name
