"""Test the report page: no text from a model, repository or issue becomes active, and all of it is visible."""

from __future__ import annotations

import html
import itertools
import json
import os
import re
import shutil
import subprocess
import unicodedata
from collections.abc import Iterator
from datetime import datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from m3agent.agent.context.rules import GENERATED, reason_by_content
from m3agent.agent.report import plot as plot_module
from m3agent.agent.report import text
from m3agent.agent.report.model import SessionReport
from m3agent.agent.report.page import render
from m3agent.agent.report.patch import parse_patch
from m3agent.agent.report.plot import WIDTH, TurnTokens, plot
from m3agent.agent.report.reader import report_of
from m3agent.agent.report.template import LIMITS
from m3agent.agent.session import events
from m3agent.agent.session.log_reader import LOG, SessionLog
from tests.agent.report.test_report_model import (
    PATCH,
    Write,
    a_fix,
    call_finished,
    call_started,
    finished,
    message,
    read,
    started,
    turn_finished,
    turn_started,
    write,
)
from tests.servers.loopback import LoopbackServer, QuietHandler

__all__ = ["write"]  # a fixture

VOID = {"meta", "link"}
TAGS = {
    "html", "head", "meta", "link", "title", "style", "body", "main", "article", "section", "header", "footer", "h1", "h2",
    "h3", "div", "span", "p", "pre", "code", "b", "i", "a", "ul", "li", "dl", "dt", "dd", "details", "summary", "figure",
    "table", "thead", "tbody", "tfoot", "tr", "th", "td", "svg", "g", "rect", "path", "text",
}  # fmt: skip
ATTRIBUTES = {
    "lang", "charset", "http-equiv", "content", "name", "rel", "href", "class", "id", "open", "viewbox", "role",
    "aria-label", "x", "y", "width", "height", "d", "text-anchor",
}  # fmt: skip
HOSTILE = (
    "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
    "</pre></details></style><style>body{display:none}</style>' autofocus onfocus='document.title=1"
    "{{ 7 * 7 }}{% raw %}<!-- --> ]]> \x00 \x1b[2J\x1b]0;owned\x07 \x9b \r \u202egnp.exe\u2066 \u200b \ud83d \udcff \U000e0041 &lt;"
)


class Page(HTMLParser):
    """Parses a page strictly: every element is closed in order, and contains only what it may."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.text = ""
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in TAGS
        given = dict(attrs)
        assert len(given) == len(attrs)
        assert set(given) <= ATTRIBUTES, tag
        self.ids += [str(given["id"])] if "id" in given else []
        self.links += [str(given["href"])] if "href" in given else []
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.text += data

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment: {data}")


def report(*written: events.Event, patch: str = "") -> SessionReport:
    lines = tuple(json.loads(json.dumps({"v": 1, "type": e.type, **vars(e)})) for e in written)
    made = report_of(SessionLog(Path("x.jsonl"), lines, ()), None)
    made.patch = parse_patch(patch)
    return made


def with_everywhere(value: Any, planted: str) -> Any:
    """Return the structure with `planted` appended to each string, and used as a key in each free-form object."""
    if isinstance(value, str):
        return value + planted
    if isinstance(value, list):
        return [with_everywhere(item, planted) for item in value]
    if isinstance(value, dict):
        return {key: with_everywhere(item, planted) for key, item in value.items()}
    return value


def hostile(planted: str) -> SessionReport:
    """Return a fix with `planted` in every field except those that give the kind of an event."""
    kept = ("type", "v", "where", "verdict")
    lines = []
    for event in a_fix():
        fields = json.loads(json.dumps(vars(event)))
        line = {
            name: value if name in kept else with_everywhere(value, planted) for name, value in fields.items()
        }
        if event.type == "call.started":
            line["arguments"] |= {planted: planted, "deep": [planted]}
        if event.type == "session.started":
            line["settings"] |= {planted: planted}
        lines.append({"v": 1, "type": event.type, "ts": planted, **line})
    made = report_of(SessionLog(Path("x.jsonl"), (*lines, {"v": 1, "type": planted}), (planted,)), None)
    made.patch = parse_patch(PATCH.replace("self.free", f"self.free{planted}"))
    made.id = planted
    return made


def test_a_page_holds_all_of_a_fix(write: Write) -> None:
    page = render([read(write(*a_fix()))])
    found = Page(page)
    assert [name for name in found.ids if name.startswith("turn-")] == [f"turn-{n}" for n in range(1, 7)]
    assert "https://github.com/example/ferry/issues/12" in found.links
    assert {link[1:] for link in found.links if link.startswith("#")} <= set(found.ids)
    for said in (
        "verified", "1 test red before, green after", "2 tests with and without the patch, in fresh sandboxes",
        "✓ run print(Lane(24).fill", "✗ test everything 1 passed, 1 failed", "The manifest shows 6.0 m free", "I look at how a lane is filled.", "print(Lane(24)", "with 6 m free.",
        "asking again in 2 s: the server cut the stream off after 1,204 characters", "not done yet: no test was run since the last edit",
        "no progress: code_exec was called 3 times with the same result (the model was told)",
        "refused: CONNECT pypi.example:443 · not listed · 2 times", "applied to the work tree: src/deck.py",
        "return vehicle.length <= self.free", "m3agent-env:3f1c (3.2 s)", "$0.0731", "83.1%", "61",
    ):  # fmt: skip
        assert said in found.text, said
    policy = (
        "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
    )
    assert f'<meta http-equiv="Content-Security-Policy" content="{policy}">' in page
    assert page.index("Content-Security-Policy") < page.index("<style>")


def test_a_patch_is_coloured_line_by_line(write: Write) -> None:
    page = render([read(write(*a_fix()))])
    spans = re.findall(
        r'<span class="(added|removed|hunk|context|meta|header)">(?:<i>(\d+)</i>)?(.*?)</span>', page
    )
    assert [(kind, number, html.unescape(line).strip()) for kind, number, line in spans] == [
        ("hunk", "", "@@ -36,3 +36,3 @@ class Lane:"),
        ("context", "36", "return False"),
        ("removed", "37", "-        return vehicle.length < self.free"),
        ("added", "37", "+        return vehicle.length <= self.free"),
    ]


def test_hostile_texts_are_shown_and_do_nothing() -> None:
    page = render([hostile(HOSTILE)])
    found = Page(page)
    assert found.text.count("<img src=x onerror=") > 50
    assert (
        "{{ 7 * 7 }}{% raw %}<!-- --> ]]> NUL ESC[2JESC]0;ownedBEL U+009B CR U+202Egnp.exeU+2066 U+200B U+D83D U+DCFF U+E0041 &lt;"
        in found.text
    )
    assert {link for link in found.links if not link.startswith("#")} == {"data:,"}, (
        "no address of theirs is a link"
    )
    assert not text.INVISIBLE.search(page)
    page.encode()


@given(st.text(max_size=60) | st.text(alphabet="<>&\"'/={}%#-! \n\x00\u202e\ud800ascript", max_size=60))
def test_no_text_becomes_markup(planted: str) -> None:
    page = render([hostile(planted)])
    Page(page)
    page.encode()
    assert not {unicodedata.category(char) for char in set(page)} & {"Cs", "Zl", "Zp"}
    assert not [char for char in set(page) if unicodedata.category(char) == "Cc" and char not in "\t\n"]
    assert not [
        char
        for char in set(page)
        if unicodedata.bidirectional(char) in {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
    ]


@pytest.mark.parametrize(
    "source",
    [
        "javascript:alert(1)",
        'https://a.example/" onclick="x',
        "http://a.example/",
        "data:text/html,x",
        "https://a.example/\u202e",
    ],
)
def test_only_plain_https_addresses_are_links(source: str) -> None:
    issue = {"title": "t", "source": source, "text": ""}
    found = Page(render([report(started(issue=issue))]))
    assert found.links == ["data:,"]


def test_several_sessions_begin_with_a_table_failures_first() -> None:
    made = []
    for number, status in enumerate(
        ["verified", "failed", "unverified", "limit", "verified", "error", "of-tomorrow"]
    ):
        one = report(
            started(f"Issue {number}"), turn_started(1), message(1), turn_finished(1), finished(status)
        )
        one.id = f"2026010{number}"
        made.append(one)
    page = render(made)
    found = Page(page)
    statuses = re.findall(r'<td><span class="status \w+">([\w-]+)</span>', page)
    assert statuses == ["of-tomorrow", "error", "failed", "limit", "unverified", "verified", "verified"]
    table = page[: page.index("</table>")]
    assert re.findall(r"Issue \d", table)[-2:] == ["Issue 4", "Issue 0"], "newest first among equals"
    assert [name for name in found.ids if "turn" in name] == [f"s{n}-turn-1" for n in range(1, 8)]
    assert {link[1:] for link in found.links if link.startswith("#")} <= set(found.ids)
    assert len(set(found.ids)) == len(found.ids)


def test_long_texts_are_cut_and_say_where_the_whole_is(write: Write) -> None:
    code = "a" * LIMITS["arguments"] * 3
    output = "<" * 40_000 + "the end"
    folder = write(
        started(), turn_started(1), message(1, reasoning="r" * 50_000, text="w" * 50_000), turn_finished(1),
        call_started(1, 1, "code_exec", {"code": code}),
        call_finished(1, 1, output, truncated=True, full_path="/state/calls/0001.log"),
        finished(),
        patch=PATCH + "+" + "p" * 30_000 + "\n",
    )  # fmt: skip
    found = Page(render([read(folder)]))
    assert (
        f"{len(code) - LIMITS['arguments']:,} characters are left out here; the full text is in {LOG}, line 5"
        in found.text
    )
    assert (
        f"{len(output) - LIMITS['result']:,} characters are left out here; the full text is in {LOG}, line 6"
        in found.text
    )
    assert "the whole output is in /state/calls/0001.log" in found.text
    assert (
        found.text.count(
            f"{50_000 - LIMITS['words']:,} characters are left out here; the full text is in {LOG}, line 3"
        )
        == 2
    )
    assert "characters are left out here; the full text is in the patch file" in found.text
    assert "<the end" in found.text, "the end of a text is kept"


@pytest.mark.slow
def test_two_hundred_turns_and_five_megabytes_make_a_page_one_can_open(write: Write) -> None:
    many: list[events.Event] = [started()]
    for turn in range(1, 201):
        many += [turn_started(turn), message(turn, reasoning="why? " * 40), turn_finished(turn)]
        many += [call_started(turn, turn, "code_exec", {"code": f"print({turn})"})]
        many += [call_finished(turn, turn, "exit code: 0\nstdout:\n" + "x & y < z\n" * 2500)]
    page = render([read(write(*many, finished(turns=200)))])
    found = Page(page)
    assert "turn-200" in found.ids
    assert len(page) < 6_000_000
    assert page.count('<rect class="completion"') == 200


def test_unknown_values_are_dashes_and_not_drawn() -> None:
    unknown: Any = dict.fromkeys(
        ("prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens", "cached_share", "tokens_per_second",
         "first_token_seconds", "price")
    )  # fmt: skip
    page = render([report(started(), turn_started(1), message(1), turn_finished(1, **unknown))])
    assert "<svg" not in page
    assert "The server did not report token counts." in page
    row = page[page.index("<tbody>") : page.index("</tbody>")]
    assert row.count(f">{text.UNKNOWN}<") == 8


def bars(drawn: str, name: str) -> list[float]:
    return [float(height) for height in re.findall(rf'<rect class="{name}"[^>]*height="([\d.]+)"', drawn)]


def test_a_plot_s_bars_are_in_proportion() -> None:
    turns = [
        TurnTokens("1", "turn-1", 400_000, 0, 1000),
        TurnTokens("2", "turn-2", 400_000, 300_000, 500),
        TurnTokens("3", "turn-3", 200_000, None, None, "stall"),
    ]
    drawn = str(plot(turns))
    (cached,) = bars(drawn, "cached")
    fresh = bars(drawn, "fresh")
    assert fresh[0] == pytest.approx(cached * 4 / 3, abs=0.2)
    assert fresh[1] == pytest.approx(cached / 3, abs=0.2)
    assert bars(drawn, "unknown") == [pytest.approx(fresh[0] / 2, abs=0.2)]
    long, short = bars(drawn, "completion")
    assert long == pytest.approx(2 * short, abs=0.2)
    assert drawn.count('class="mark"') == 1
    assert "<title>turn 3: 200,000 prompt; stall</title>" in drawn


@given(
    st.lists(
        st.builds(TurnTokens, st.just("1"), st.just("t"), *[st.none() | st.integers(0, 2**62)] * 3),
        max_size=300,
    )
)
def test_a_plot_stays_in_its_frame(turns: list[TurnTokens]) -> None:
    drawn = str(plot(turns))
    for y, height in re.findall(
        r'<rect class="\w+" x="[\d.]+" y="([\d.-]+)" width="[\d.]+" height="([\d.]+)"', drawn
    ):
        assert float(y) >= 39
        assert float(y) + float(height) <= 313
    assert len(re.findall(r'<path class="grid"', drawn)) <= 12
    assert "nan" not in drawn


@pytest.mark.parametrize("largest", [1, 7, 99, 2_500, 41_000, 163_683, 999_999, 12_345_678])
def test_on_a_phone_the_chart_fits_and_its_numbers_do_not_overlap(largest: int) -> None:
    css = (Path(plot_module.__file__).parent / "style.css").read_text()
    [phone] = re.findall(r"@media \(max-width: 40rem\) \{.*?\n\}", css, re.DOTALL)
    [size] = re.findall(r"\.plot \{ min-width: 0; font-size: (\d+)px; \}", phone)
    assert int(size) * 345 / WIDTH >= 9, "pixels, in 345 pixels of room"
    drawn = str(plot([TurnTokens("1", "t1", largest, 0, largest)]))
    ticks = re.findall(r'<text x="54" y="([\d.]+)" text-anchor="end">([^<]+)</text>', drawn)
    heights = sorted(float(y) for y, _ in ticks)
    assert min(after - before for before, after in itertools.pairwise(heights)) >= int(size)
    assert max(len(label) for _, label in ticks) <= 4, "0.6 em each, in 54 units of room"


def test_patch_lines_of_every_kind_are_distinguished() -> None:
    patch = (
        "diff --git a/old name b/new name\nsimilarity index 90%\nrename from old name\nrename to new name\n"
        "diff --git a/gone b/gone\ndeleted file mode 100644\nindex 1..0\n--- a/gone\n+++ /dev/null\n@@ -1,2 +0,0 @@\n"
        "--- a comment of SQL\n-diff --git a/x b/x\n"
        "diff --git a/picture b/picture\nnew file mode 100644\nindex 0..1\nGIT binary patch\nliteral 3\nKcmZ\n\n"
        "diff --git a/last b/last\n--- a/last\n+++ b/last\n@@ -1 +1 @@ f()\n-x\n\\ No newline at end of file\n+++ y\n"
    )
    files = parse_patch(patch)
    assert [(file.path, file.added, file.removed) for file in files] == [
        ("new name", 0, 0), ("gone", 0, 2), ("picture", 0, 0), ("last", 1, 1),
    ]  # fmt: skip
    assert "\n".join(line.text for file in files for line in file.lines) + "\n" == patch
    assert [(line.kind, line.number) for line in files[-1].lines[3:]] == [
        ("hunk", None), ("removed", 1), ("meta", None), ("added", 1),
    ]  # fmt: skip


@given(st.text() | st.text(alphabet="@-+ ,0123456789\ndifg/ab"))
def test_any_text_is_split_without_loss(patch: str) -> None:
    files = parse_patch(patch)
    assert "\n".join(line.text for file in files for line in file.lines) == patch.removesuffix("\n")


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (text.duration(0.038), "38 ms"), (text.duration(9.96), "10.0 s"), (text.duration(59.6), "1 min 0 s"),
        (text.duration(3725), "1 h 2 min"), (text.price(0), "$0"), (text.price(0.0012), "$0.0012"), (text.price(12.5), "$12.50"),
        (text.size(999_600), "1,000 kB"), (text.size(1_250_000), "1.25 MB"), (text.size(12), "12 B"),
        (text.short_count(600_000), "600k"), (text.short_count(1_500_000), "1.5M"),
        (text.short_count(999_600), "1M"), (text.short_count(13_654), "13.7k"), (text.speed(8.25), "8.2"),
        (text.share(0.9984), "99.8%"), (text.count(None), text.UNKNOWN), (text.moment("yesterday"), "yesterday"),
        (text.moment("2026-01-31T12:00:00.000Z"), "2026-01-31 12:00:00 UTC"), (text.one_line(" a\n b ", 9), "a b"),
        (text.one_line("abcdef", 4), "abc…"),
    ],
)  # fmt: skip
def test_numbers_and_times_as_people_read_them(shown: str, expected: str) -> None:
    assert shown == expected


@pytest.mark.parametrize(
    ("now", "shown"),
    [
        ("2026-01-31T11:59:00Z", "just now"), ("2026-01-31T12:00:59Z", "just now"), ("2026-01-31T12:01:00Z", "1 min ago"),
        ("2026-01-31T12:59:59Z", "59 min ago"), ("2026-01-31T14:30:00Z", "2 h ago"), ("2026-02-02T11:59:59Z", "47 h ago"),
        ("2026-02-02T12:00:00Z", "2 days ago"), ("2026-03-02T12:00:00Z", "30 days ago"), ("2026-03-03T12:00:00Z", "2026-01-31"),
    ],
)  # fmt: skip
def test_how_long_ago(now: str, shown: str) -> None:
    assert text.ago("2026-01-31T12:00:00.000Z", datetime.fromisoformat(now)) == shown


def test_an_unknown_time_was_at_no_time() -> None:
    assert text.ago("", datetime.fromisoformat("2026-01-31T12:00:00Z")) == text.UNKNOWN


CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))),
    None,
)


@pytest.fixture
def asked() -> Iterator[tuple[str, list[str]]]:
    """Yield the address of a server, and the list of paths requested from it."""
    paths: list[str] = []

    class Asked(QuietHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            self.answer(204, b"")

    with LoopbackServer(Asked) as server:
        yield f"http://{server.host}", paths


def browse(page: Path, profile: Path) -> tuple[str, str]:
    """Return the page's elements after all scripts ran, and the browser's console messages."""
    command = [
        str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run",
        f"--user-data-dir={profile}", "--enable-logging=stderr", "--v=0", "--virtual-time-budget=4000", "--dump-dom", page.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(
        command, capture_output=True, check=True, timeout=100, env=os.environ | {"HOME": str(profile)}
    )
    return done.stdout.decode(), "\n".join(
        line for line in done.stderr.decode().splitlines() if "CONSOLE" in line
    )


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
def test_a_browser_runs_nothing_of_it_and_asks_for_nothing(
    tmp_path: Path, asked: tuple[str, list[str]]
) -> None:
    url, paths = asked
    live = (
        f"<img src='{url}/img'><script src='{url}/script'></script><script>document.title='owned'; console.error('ran')</script>"
        f"<link rel=stylesheet href='{url}/link'><iframe src='{url}/frame'></iframe><style>@import '{url}/import';</style>"
        f"<meta http-equiv=refresh content='0;url={url}/refresh'>"
    )
    control = tmp_path / "control.html"
    control.write_text(f"<!doctype html><title>t</title>{live}")
    _, logged = browse(control, tmp_path / "profile")
    assert "ran" in logged, "or what follows proves nothing"
    assert {"/img", "/script", "/link", "/frame"} <= set(paths)
    paths.clear()

    page = tmp_path / "report.html"
    page.write_bytes(render([hostile(live), hostile(HOSTILE)]).encode())
    elements, logged = browse(page, tmp_path / "profile")
    assert logged == "", "neither an error nor a refused request"
    assert paths == []
    assert "<title>2 sessions</title>" in elements
    assert not re.search(r"<(img|script|iframe|object|embed|form|input|video|audio)\b", elements)
    assert html.escape(live, quote=False) in elements, "the markup is there, as text"


def test_a_page_in_the_repository_is_left_out_of_the_next_prompt(write: Write) -> None:
    assert reason_by_content(render([read(write(*a_fix()))]).encode()) is GENERATED


@pytest.mark.parametrize("embedded", [True, False])
def test_only_a_language_model_has_tokens(embedded: bool, write: Write) -> None:
    endpoint = {"url": "", "description": "", "source": "embedded" if embedded else "named"}
    used = turn_finished(1)
    page = render([read(write(started(endpoint=endpoint), turn_started(1), message(1), used, finished()))])
    assert ["Tokens" in page, "% cached)" in page] == [not embedded] * 2
