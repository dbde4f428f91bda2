"""What models and servers do to right answers, as users of M2, M3 and their servers report it: one row for each kind.

`SlippingServer` plays a model that knows the fix. It applies a row to the first replies of every step, or to every reply.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from typing import Any, Literal

from m3agent.serving import wire
from tests.servers import faults
from tests.servers.dialects import (
    Answer,
    Chunk,
    Dialect,
    LlamaCpp,
    MiniMaxCumulative,
    MiniMaxInline,
    Sglang,
    Vllm,
    arguments,
    frames,
    piece,
)
from tests.servers.misbehaving import MODEL, Cut, Received, Reply, Stream
from tests.servers.whole import whole

When = Literal["once", "always"]
VLLM, SGLANG = Vllm(), Sglang()
EDIT, TEST = 1, 2
"""The steps that change the file and run the tests."""


@dataclass(frozen=True)
class Case:
    """A small repository with a mistake, and how the model mends it."""

    files: Mapping[str, str]
    path: str
    """The file with the mistake."""
    old: str
    """Several lines of it."""
    new: str
    red: str
    """The test that shows the mistake."""

    @property
    def fixed(self) -> str:
        """The file without the mistake."""
        return self.files[self.path].replace(self.old, self.new)

    @property
    def again(self) -> Answer:
        """What the model answers if the tests are red after its change."""
        return Answer("Again.", "", (wire.Call("file_write", {"path": self.path, "content": self.fixed}),))

    @property
    def steps(self) -> list[Answer]:
        """The right answers in order."""
        fixed = wire.Call("file_edit", {"path": self.path, "old": self.old, "new": self.new})
        return [
            Answer("Where is it?", "", (wire.Call("file_read", {"path": self.path}),)),
            Answer("That is wrong.", "", (fixed,)),
            Answer("Does it hold?", "", (wire.Call("test_runner", {"test_file": "."}),)),
            Answer("It does.", f"{self.path} had the wrong sign; all tests pass now."),
        ]


CASES = {
    "calc": Case(
        {
            "calc.py": 'def add(a, b):\n    if a < 0 & b < 0:\n        return "\\n" and -add(-a, -b)\n    return a - b\n',
            "test_calc.py": "from calc import add\n\n\ndef test_add():\n    assert add(2, 3) == 5\n\n\n"
            "def test_nothing():\n    assert add(2, 0) == 2\n",
        },
        "calc.py",
        '    if a < 0 & b < 0:\n        return "\\n" and -add(-a, -b)\n    return a - b',
        "    return a + b",
        "test_calc.py::test_add",
    ),
    "cart": Case(
        {
            "shop/__init__.py": "",
            "shop/cart.py": "class Cart:\n    def __init__(self, rebate=0):\n        self.rebate = rebate\n\n"
            "    def total(self, *prices):\n        if self.rebate > 0:\n"
            "            return sum(prices) + self.rebate  # never '&lt;'\n        return sum(prices)\n",
            "tests/test_cart.py": "from shop.cart import Cart\n\n\ndef test_rebate():\n    assert Cart(2).total(3, 4) == 5\n\n\n"
            "def test_no_rebate():\n    assert Cart().total(3, 4) == 7\n",
            "pytest.ini": "[pytest]\npythonpath = .\n",
        },
        "shop/cart.py",
        "        if self.rebate > 0:\n            return sum(prices) + self.rebate",
        "        if self.rebate > 0:\n            return sum(prices) - self.rebate",
        "tests/test_cart.py::test_rebate",
    ),
}


@dataclass(frozen=True)
class Turn:
    """One reply that the model is about to give."""

    said: Answer
    """The right answer."""
    case: Case
    step: int
    nth: int
    """How many replies this step has had."""
    request: Received


Play = Callable[[Turn], Any]
"""What the server sends instead of the right answer; None where the right answer stays."""


@dataclass(frozen=True)
class Slip:
    """A kind of slip. The server forgets nothing, so the agent wins as soon as one right answer reaches it."""

    name: str
    source: str
    """Who reports it."""
    play: Play
    when: tuple[When, ...] = ("once",)
    replies: int = 1
    """How many replies of a step slip in `once`."""
    first: int = 0
    """The first step that slips. Nothing can be shortened before the model has said anything."""
    last: int = 3
    """The last step that slips."""
    window: int | None = 1048576
    """The context window that the server states."""


# -- building blocks -------------------------------------------------------------------------------------------------


def instead(*answers: Any) -> Play:
    """Send these in turn in place of the answer, the last one for the rest."""
    return lambda turn: answers[min(turn.nth, len(answers) - 1)]


def error(status: int, message: str, **more: Any) -> Reply:
    """A refusal in OpenAI's form."""
    return Reply(status, {"error": {"message": message, "code": status, **more}})


def minimax(code: int, message: str) -> Reply:
    """An error of MiniMax's own, which comes with status 200."""
    return Reply(200, {"base_resp": {"status_code": code, "status_msg": message}})


def streamed(answer: Answer, dialect: Dialect = VLLM, **how: Any) -> Stream:
    return Stream(frames(dialect.say(answer, **how), dialect), done=False)


def model_says(change: Callable[[Turn], Answer | None]) -> Play:
    """The model itself answers this."""

    def play(turn: Turn) -> Any:
        changed = change(turn)
        return None if changed is None else streamed(changed)

    return play


def each_call(change: Callable[[wire.Call], wire.Call]) -> Play:
    """The model makes its calls in another way."""
    return model_says(lambda turn: replace(turn.said, calls=tuple(map(change, turn.said.calls))))


def each_argument(change: Callable[[str, str], str]) -> Callable[[wire.Call], wire.Call]:
    """Change the value of each argument, given its name."""
    return lambda call: wire.Call(
        call.name, {name: change(name, value) for name, value in call.arguments.items()}
    )


def calls_as_text(write: Callable[[Sequence[wire.Call]], str]) -> Play:
    """The calls arrive as text, and the server parses none of them."""
    return model_says(
        lambda turn: (
            Answer(turn.said.reasoning, f"{turn.said.text}{write(turn.said.calls)}")
            if turn.said.calls
            else None
        )
    )


def sent(change: Callable[[list[Chunk], Turn], list[Any]], dialect: Dialect = VLLM) -> Play:
    """The server streams other chunks."""
    return lambda turn: Stream(
        frames(change(copy.deepcopy(dialect.say(turn.said)), turn), dialect), done=False
    )


def each_piece(change: Callable[[dict[str, Any]], object]) -> Play:
    """The server streams other pieces of calls."""
    return sent(lambda chunks, _: faults.changed_calls(chunks, change))


def as_json(call: wire.Call, key: str = "arguments") -> str:
    return json.dumps({"name": call.name, key: call.arguments})


# -- what the model does ---------------------------------------------------------------------------------------------

ANNOUNCED = (
    "Let me look at the file first.",
    "I see the mistake. Now let me correct it:",
    "The change is made. Next, I'll run the tests.",
    "All tests pass. Let me check once more:",
)
ASKED = (
    "Shall I look into the file?",
    "I found the cause. Would you like me to change it?",
    "The change is made. Should I run the tests now?",
    "Everything passes. Do you want me to add anything?",
)
OTHER_NAMES = {
    "file_read": [
        ("Read", {"path": "file_path"}),
        ("read_file", {"path": "path"}),
        ("str_replace_editor", {"path": "path", "command": "=view"}),
    ],
    "file_edit": [
        ("Edit", {"path": "file_path", "old": "old_string", "new": "new_string"}),
        ("replace", {"path": "file_path", "old": "old_string", "new": "new_string"}),
        (
            "str_replace_editor",
            {"path": "path", "old": "old_str", "new": "new_str", "command": "=str_replace"},
        ),
    ],
}
"""How other agents name a tool and its arguments; `=` begins a value that is added."""


def by_other_names(turn: Turn) -> Answer:
    """Call tools by the names of other agents, another one for each case."""
    style = turn.case.path.count("/")

    def renamed(call: wire.Call) -> wire.Call:
        if call.name == "test_runner":
            return wire.Call("bash" if style else "Bash", {"command": "python -m pytest -q"})
        name, keys = OTHER_NAMES[call.name][style]
        given = {keys[key]: value for key, value in call.arguments.items()}
        added = {key: value[1:] for key, value in keys.items() if value.startswith("=")}
        return wire.Call(name, given | added)

    return replace(turn.said, calls=tuple(map(renamed, turn.said.calls)))


def by_editor(turn: Turn) -> Answer:
    """Edit by `str_replace_editor`."""

    def renamed(call: wire.Call) -> wire.Call:
        if call.name not in OTHER_NAMES:
            return call
        name, keys = OTHER_NAMES[call.name][-1]
        given = {keys[key]: value for key, value in call.arguments.items()}
        return wire.Call(name, given | {k: v[1:] for k, v in keys.items() if v.startswith("=")})

    return replace(turn.said, calls=tuple(map(renamed, turn.said.calls)))


def by_patch(turn: Turn) -> Answer:
    """Edit by `apply_patch`."""
    case = turn.case
    minus = "\n".join(f"-{line}" for line in case.old.split("\n"))
    plus = "\n".join(f"+{line}" for line in case.new.split("\n"))
    text = f"*** Begin Patch\n*** Update File: {case.path}\n@@\n{minus}\n{plus}\n*** End Patch"
    made = tuple(
        wire.Call("apply_patch", {"input": text}) if call.name == "file_edit" else call
        for call in turn.said.calls
    )
    return replace(turn.said, calls=made)


def numbered(turn: Turn) -> Answer:
    """Quote the file with the line numbers that it was shown with."""
    case = turn.case
    first = case.files[case.path].partition(case.old)[0].count("\n") + 1

    def change(name: str, value: str) -> str:
        lines = value.split("\n") if name in ("old", "new") else []
        return "\n".join(f"{number}\t{line}" for number, line in enumerate(lines, first)) or value

    return replace(turn.said, calls=tuple(map(each_argument(change), turn.said.calls)))


def one_line(name: str, value: str) -> str:
    """Write an end of a line as two characters."""
    return value.replace("\\", "\\\\").replace("\n", "\\n") if name in ("old", "new") else value


def entities(name: str, value: str) -> str:
    return escape(value, quote=False) if name in ("old", "new") else value


def other_blanks(name: str, value: str) -> str:
    if name not in ("old", "new"):
        return value
    return "\n".join(f"{line}  " for line in value.replace("    ", "\t").split("\n"))


def fenced(name: str, value: str) -> str:
    return f"```python\n{value}\n```" if name in ("old", "new", "content") else value


def rewritten(turn: Turn) -> Answer:
    """Write the whole file between fences."""
    case = turn.case
    written = wire.Call("file_write", {"path": case.path, "content": f"```python\n{case.fixed}```"})
    made = tuple(written if call.name in ("file_edit", "file_write") else call for call in turn.said.calls)
    return replace(turn.said, calls=made)


def below(folder: str) -> Play:
    """Name each file below the folder that another sandbox has."""
    return each_call(
        each_argument(lambda name, value: f"{folder}/{value}".removesuffix("/.") if name in PATHS else value)
    )


PATHS = ("path", "test_file")


# -- what the server does --------------------------------------------------------------------------------------------


def refuses(parameter: str, message: str) -> Play:
    """Refuse every request that has the parameter."""
    return lambda turn: error(400, message) if parameter in turn.request.json else None


def under_new_indexes(chunks: list[Chunk], turn: Turn) -> list[Chunk]:
    """Send each call's name first, then its arguments under the next index, without name and id."""
    if not turn.said.calls:
        return chunks
    rest = VLLM.end(turn.said, turn.said.finish, 20)
    made = []
    for number, call in enumerate(turn.said.calls):
        made.append(VLLM.chunk({"tool_calls": [piece(2 * number, call.name, "", f"call-{number}")]}))
        made.append(VLLM.chunk({"tool_calls": [piece(2 * number + 1, None, arguments(call), None)]}))
    return [*VLLM.begin(), *VLLM.think(turn.said.reasoning, 8), *made, *rest]


def python_literal(made: dict[str, Any]) -> None:
    made["function"]["arguments"] = repr(json.loads(made["function"]["arguments"]))


def encoded_twice(made: dict[str, Any]) -> None:
    made["function"]["arguments"] = json.dumps(made["function"]["arguments"])


def tagged_keys(made: dict[str, Any]) -> None:
    given = json.loads(made["function"]["arguments"])
    made["function"]["arguments"] = json.dumps({f"<{key}>": value for key, value in given.items()})


def as_object(made: dict[str, Any]) -> None:
    made["function"]["arguments"] = json.loads(made["function"]["arguments"])


def chaotic_id(made: dict[str, Any]) -> None:
    made["id"] = made["index"] = 7


def without_id(made: dict[str, Any]) -> None:
    made.pop("id", None)


def blank_name(made: dict[str, Any]) -> None:
    made["function"]["name"] += " \n"


def blank_arguments(made: dict[str, Any]) -> None:
    made["function"]["arguments"] += " \n\n"


def empty_arguments(made: dict[str, Any]) -> None:
    made["function"]["arguments"] = ""


def doubled(chunks: list[Chunk], _: Turn) -> list[Chunk]:
    """Send each chunk with a call twice."""
    return [
        chunk
        for given in chunks
        for chunk in [given] * (2 if any("tool_calls" in c["delta"] for c in given["choices"]) else 1)
    ]


def empty_choices(chunks: list[Chunk], _: Turn) -> list[Chunk]:
    return [chunk for given in chunks for chunk in ({"choices": []}, {"choices": None}, given)]


def in_reasoning(turn: Turn) -> Any:
    """The calls are in the reasoning, in M3's own markup."""
    if not turn.said.calls:
        return None
    markup = wire.write("", "", turn.said.calls).removeprefix("</mm:think>")
    return Stream(
        frames(VLLM.say(Answer(turn.said.reasoning + markup), finish="tool_calls"), VLLM), done=False
    )


def no_calls(turn: Turn) -> Any:
    """The finish reason promises calls, and there are none."""
    if not turn.said.calls:
        return None
    return Stream(frames(VLLM.say(replace(turn.said, calls=()), finish="tool_calls"), VLLM), done=False)


def leaked_end(turn: Turn) -> Any:
    return streamed(replace(turn.said, text=f"</think>\n\n{turn.said.text}"))


def mirrored(turn: Turn) -> Any:
    """The reasoning comes as reasoning and again in the text."""
    said = turn.said
    return streamed(replace(said, text=f"<think>\n{said.reasoning}\n</think>\n\n{said.text}"))


def crlf(turn: Turn) -> Any:
    chunks = [{**chunk, "system_fingerprint": None, "error": None} for chunk in SGLANG.say(turn.said)]
    return Stream(frames(chunks, SGLANG, newline="\r\n")[:-1], done=False)


def long_line(turn: Turn) -> Any:
    """One event of three megabytes."""
    chunk = VLLM.chunk({"content": ""})
    chunk["padding"] = "x" * 3_000_000
    return Stream([*frames([chunk], VLLM)[:1], *frames(VLLM.say(turn.said), VLLM)], done=False)


def broken_off(turn: Turn) -> Any:
    whole_stream = frames(VLLM.say(turn.said), VLLM)
    return faults.cut_inside(whole_stream, len(whole_stream) // 2)


def failing(turn: Turn) -> Any:
    return Stream([VLLM.chunk({"role": "assistant"}), {"error": {"message": "engine trouble", "code": 500}}])


def in_fence(calls: Sequence[wire.Call]) -> str:
    return "\n```json\n" + json.dumps([json.loads(as_json(call)) for call in calls]) + "\n```"


def as_lines(calls: Sequence[wire.Call]) -> str:
    return "\n```json\n" + "\n".join(map(as_json, calls)) + "\n```"


LLAMA_OVERFLOW = "the request exceeds the available context size, try increasing it"
LLAMA_SIZE = {"type": "exceed_context_size_error", "n_prompt_tokens": 5000, "n_ctx": 4096}
BOTH: tuple[When, ...] = ("once", "always")
A_MINUTE = 8
"""With the client's waits of 1, 2, 4, 8, 16, 30 and 30 s, so many refusals take more than a minute."""

SLIPS = (
    # the model
    Slip(
        "announces a step and stops", "MiniMax-M2#37", model_says(lambda t: Answer("Hm.", ANNOUNCED[t.step]))
    ),
    Slip(
        "announces three times in a row",
        "MiniMax-M2#39",
        model_says(lambda t: Answer("Hm.", ANNOUNCED[(t.step + t.nth) % 3])),
        replies=3,
        last=1,
    ),
    Slip("asks nobody", "brother of M2#37", model_says(lambda t: Answer("Hm.", ASKED[t.step]))),
    Slip("says nothing", "openclaw", model_says(lambda _: Answer())),
    Slip("only thinks", "brother of the empty reply", model_says(lambda t: Answer(t.said.reasoning))),
    Slip(
        "writes a call as code",
        "brother of M2#14",
        calls_as_text(lambda made: "\n".join(f"{call.name}({call.arguments})" for call in made)),
    ),
    Slip("uses the names of other agents", "issue 47", model_says(by_other_names), BOTH),
    Slip("edits by str_replace_editor", "issue 47", model_says(by_editor), BOTH),
    Slip("edits by apply_patch", "issue 47", model_says(by_patch), BOTH),
    *(
        Slip(f"names files below {folder}", "issue 47", below(folder), BOTH)
        for folder in ("/testbed", "/workspace", "/repo")
    ),
    Slip("edits with line numbers", "issue 47", model_says(numbered), BOTH),
    Slip("edits with escapes", "issue 47", each_call(each_argument(one_line)), BOTH),
    Slip("edits with entities", "issue 47", each_call(each_argument(entities)), BOTH),
    Slip("edits with other blanks", "issue 47", each_call(each_argument(other_blanks)), BOTH),
    Slip("edits with fences", "issue 47", each_call(each_argument(fenced)), BOTH),
    Slip("writes with fences", "issue 47", model_says(rewritten), BOTH),
    # calls as text
    Slip(
        "JSON in <tool_call>",
        "M2#14",
        calls_as_text(lambda made: "".join(f"<tool_call>\n{as_json(c)}\n</tool_call>" for c in made)),
        BOTH,
    ),
    Slip(
        "JSON in <tool_calls>",
        "M2#14",
        calls_as_text(lambda made: "<tool_calls>\n" + "\n".join(map(as_json, made)) + "\n</tool_calls>"),
        BOTH,
    ),
    Slip(
        "JSON in [TOOL_CALL]",
        "lmstudio#1177",
        calls_as_text(lambda made: "".join(f"[TOOL_CALL]\n{as_json(c)}\n[/TOOL_CALL]" for c in made)),
        BOTH,
    ),
    Slip("a JSON list in a block", "M2#14", calls_as_text(in_fence), BOTH),
    Slip("JSON lines in a block", "lmstudio#1177", calls_as_text(as_lines), BOTH),
    # what the server mangles
    Slip("arguments encoded twice", "forgecode#2764", each_piece(encoded_twice), BOTH),
    Slip("arguments as a Python literal", "mlx-openai-server#124", each_piece(python_literal), BOTH),
    Slip("arguments as an object", "openclaw#39366", each_piece(as_object), BOTH),
    Slip("keys as tags", "oh-my-pi#2759", each_piece(tagged_keys), BOTH),
    Slip("a piece without name under a new index", "sglang#23071", sent(under_new_indexes), BOTH),
    Slip("empty arguments", "vllm#54964", each_piece(empty_arguments)),
    Slip("chaotic ids", "vllm", each_piece(chaotic_id), BOTH),
    Slip("calls without id", "brother of chaotic ids", each_piece(without_id), BOTH),
    Slip("blanks after arguments", "vllm", each_piece(blank_arguments), BOTH),
    Slip("blanks after names", "brother of blanks after arguments", each_piece(blank_name), BOTH),
    Slip("calls sent twice", "sglang", sent(doubled), BOTH),
    Slip("a call in the reasoning", "frontend-crates#133", in_reasoning, BOTH),
    Slip("promised calls are missing", "vllm", no_calls),
    Slip("leaked end of reasoning", "vllm", leaked_end, BOTH),
    Slip("mirrored reasoning", "MiniMax", mirrored, BOTH),
    Slip("cumulative snapshots", "MiniMax", lambda t: streamed(t.said, MiniMaxCumulative()), BOTH),
    Slip("reasoning in tags and beside", "MiniMax", lambda t: streamed(t.said, MiniMaxInline()), BOTH),
    Slip("no finish reason", "ollama", sent(lambda chunks, _: faults.without_finish(chunks))),
    Slip("CR LF, nulls and no end mark", "issue 47", crlf, BOTH),
    Slip("a line of 3 MB", "issue 47", long_line, BOTH),
    Slip("choices empty or null", "issue 47", sent(empty_choices), BOTH),
    Slip("llama.cpp's pieces", "brother of CR LF", lambda t: streamed(t.said, LlamaCpp()), BOTH),
    Slip("nothing streams", "brother of null finish", lambda t: whole(t.said), BOTH),
    # what the server refuses
    Slip(
        "refuses chat_template_kwargs",
        "oh-my-pi#955",
        refuses("chat_template_kwargs", "Unrecognized request argument supplied: chat_template_kwargs"),
        ("always",),
    ),
    Slip(
        "refuses top_k",
        "aimee#761",
        refuses("top_k", "1 validation error: top_k: Extra inputs are not permitted"),
        ("always",),
    ),
    Slip("429 for 65 s", "issue 47", instead(error(429, "rate limit reached")), replies=A_MINUTE),
    Slip("1002 for 65 s", "MiniMax", instead(minimax(1002, "rate limit")), replies=A_MINUTE),
    Slip("529 for 65 s", "MiniMax", instead(error(529, "overloaded")), replies=A_MINUTE),
    Slip(
        "mixed 529, 502 and 503",
        "MiniMax",
        instead(error(529, "overloaded"), Reply(502, "<html>Bad Gateway</html>"), error(503, "loading")),
        replies=3,
    ),
    Slip(
        "429 with a date",
        "issue 47",
        instead(Reply(429, {"error": {"message": "slow"}}, {"retry-after": "Wed, 01 Jan 2020 00:00:00 GMT"})),
    ),
    Slip("200 with an empty body", "cline#60", instead(Reply(200, ""))),
    Slip("200 with a web page", "cline#60", instead(Reply(200, "<html><body>Please wait</body></html>"))),
    Slip("200 without choices", "brother of cline#60", instead(Reply(200, {"id": "x"}))),
    Slip("an error in the stream", "issue 47", failing),
    Slip("connection reset", "issue 47", instead(Stream([Cut()], done=False))),
    Slip("connection lost inside an event", "issue 47", broken_off),
    Slip("500 while it parses", "llama.cpp", instead(error(500, "Failed to parse input at pos 12"))),
    Slip(
        "llama.cpp's overflow",
        "oh-my-pi#3752",
        instead(error(400, LLAMA_OVERFLOW, **LLAMA_SIZE)),
        first=2,
        last=2,
        window=None,
    ),
    Slip(
        "OpenRouter's overflow",
        "issue 47",
        instead(
            error(
                400,
                "This endpoint's maximum context length is 4096 tokens. However, you requested about 5000 tokens",
            )
        ),
        first=2,
        last=2,
        window=None,
    ),
    Slip(
        "MiniMax's overflow",
        "issue 47",
        instead(minimax(2013, "invalid params, context window exceeds limit")),
        first=2,
        last=2,
        window=4096,
    ),
    Slip(
        "413 as a web page",
        "issue 47",
        instead(Reply(413, "<html>Too Large</html>")),
        first=2,
        last=2,
        window=4096,
    ),
)
"""Where a row says `always`, the agent can still win if every reply slips."""

NONE = Slip("nothing", "the reference", lambda _: None, BOTH)


# -- the server ------------------------------------------------------------------------------------------------------


@dataclass
class SlippingServer:
    """Answers the requests of one fix: give it to `MisbehavingServer.answers`.

    It finds out from the results of calls which step is next, and remembers it, because a summary may take results out.
    """

    case: Case
    slip: Slip
    when: When
    step: int = 0
    nth: int = 0
    faults: list[str] = field(default_factory=list)
    """What was wrong with the requests themselves."""

    def __call__(self, request: Received) -> Any:
        messages = request.json["messages"]
        if any(map(is_empty, messages)):
            self.faults.append("an assistant message without text and calls")
            return minimax(2013, "invalid params, chat content is empty (2013)")
        if request.json.get("tool_choice") == "none":
            return streamed(Answer("", "The sign is wrong."))
        self._advance(messages)
        said = self.case.again if self.step == TEST and self.nth % 2 else self.case.steps[self.step]
        turn = Turn(said, self.case, self.step, self.nth, request)
        self.nth += 1
        slips = self.slip.first <= self.step <= self.slip.last
        if slips and (self.when == "always" or turn.nth < self.slip.replies):
            answer = self.slip.play(turn)
            if answer is not None:
                return answer
        return streamed(turn.said)

    def _advance(self, messages: Sequence[Mapping[str, Any]]) -> None:
        """Go on to the first step whose call has had no good result."""
        results = [str(message["content"]) for message in messages if message["role"] == "tool"]
        marks = (self.case.old.rpartition("\n")[2], self.case.path, "2 passed")
        while self.step < len(marks) and any(self._shows(marks[self.step], text) for text in results):
            self.step, self.nth = self.step + 1, 0

    def _shows(self, mark: str, result: str) -> bool:
        """Return whether a result shows that the present step is done."""
        changed = re.match(r"(?:\[.*\n)?(?:edited|wrote|patched|changed) ", result) is not None
        return mark in result and (changed or self.step != EDIT)

    @property
    def pages(self) -> dict[str, Any]:
        """What the server says about itself."""
        entry: dict[str, Any] = {"id": MODEL, "owned_by": "vllm"}
        if self.slip.window is not None:
            entry["max_model_len"] = self.slip.window
        return {"/v1/models": {"object": "list", "data": [entry]}, "/version": {"version": "0.24.0"}}


def is_empty(message: Mapping[str, Any]) -> bool:
    """Return whether an assistant's message has neither text nor a call, which MiniMax refuses."""
    return message["role"] == "assistant" and not message.get("content") and not message.get("tool_calls")
