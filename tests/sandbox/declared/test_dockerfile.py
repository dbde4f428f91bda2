"""Dockerfiles as data: their instructions, their stages, and what they name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from m3agent.sandbox.declared.dockerfile import (
    Instruction,
    Named,
    expand,
    read_instructions,
    read_named,
    read_stages,
)

FULL = """\
# syntax=docker/dockerfile:1
ARG VERSION=3.9
FROM --platform=linux/amd64 python:${VERSION}-slim AS Builder
RUN apt-get update \\
 # a comment
 && apt-get install -y --no-install-recommends -o A=b libpq-dev gcc $MORE && pip3 install -r requirements.txt cython

FROM other:1 AS unrelated
RUN pip install no
FROM builder
copy --from=unrelated --chown=1:1 a b
RUN ["pip", "install", "--index-url", "http://a.test/simple", "flask[async]>=2", "./folder", "evil @ http://b.test/c.whl"]
RUN echo "pip install nothing" ; python -m pip install 'six'
"""


def test_instructions() -> None:
    found = read_instructions(FULL)
    assert [one.name for one in found] == [
        *("ARG", "FROM", "RUN", "FROM", "RUN", "FROM", "COPY", "RUN", "RUN")
    ]
    assert found[1] == Instruction("FROM", ("--platform=linux/amd64",), "python:${VERSION}-slim AS Builder")
    assert found[2].text.startswith("apt-get update   && apt-get install")
    assert str(found[6]) == "COPY --from=unrelated --chown=1:1 a b"
    assert read_instructions("\n  \n# only\n") == []
    assert read_instructions("RUN a \\") == [Instruction("RUN", (), "a")]


def test_stages_and_their_arguments() -> None:
    stages = read_stages(read_instructions(FULL), None, {"VERSION": "3.12", "UNKNOWN": "x"})
    assert [(one.base, one.name) for one in stages] == [
        *(("python:3.12-slim", "builder"), ("other:1", "unrelated"), ("builder", ""))
    ]
    assert [one.name for one in read_stages(read_instructions(FULL), "Builder", {})] == ["builder"]


def test_what_it_names() -> None:
    assert read_named(FULL, None, {}) == Named(
        "python:3.9-slim", ("flask[async]>=2", "six", "cython"), ("libpq-dev", "gcc")
    )
    assert read_named("FROM scratch\n", None, {}) == Named(None, (), ())


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no instruction FROM"),
        ("RUN true\n", "begins with RUN"),
        ("FROM a b\n", "'FROM a b'"),
        ("FROM\n", "'FROM '"),
        ("# escape=`\nFROM a\n", "escape"),
        ("FROM a\nRUN cat <<EOF\nEOF\n", "here-document"),
        ("FROM a\n{}\n", "the line '{}'"),
    ],
)
def test_what_cannot_be_read_is_a_phrase(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        read_named(text, None, {})


def test_a_missing_stage_is_a_phrase() -> None:
    with pytest.raises(ValueError, match="no stage gone"):
        read_named("FROM a AS b\n", "gone", {})


def test_variables() -> None:
    values = {"A": "1", "EMPTY": ""}
    text = r"$A ${A} ${B:-2} ${EMPTY:-$A} ${A:+3} ${B:+4} \$A $B"
    assert expand(text, values) == "1 1 2 $A 3  $A "


@given(st.text("FROM RUN=[]\"'\\\n$#{}:-<&;aé\t", max_size=80))
def test_no_text_is_an_error_other_than_a_phrase(text: str) -> None:
    try:
        read_named(f"FROM a\n{text}", None, {})
    except ValueError as error:
        assert str(error).strip()
