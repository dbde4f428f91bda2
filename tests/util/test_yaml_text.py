"""YAML for people says what the data says, and shows texts of several lines as they are."""

from __future__ import annotations

import yaml  # type: ignore[import-untyped]

from m3agent.util.yaml_text import yaml_text


def test_documents_come_back_as_they_are_in_their_order() -> None:
    labels = {"b": "yes", "a": 1, "number": "8"}
    documents = [
        {"labels": labels, "again": labels, "list": [{"x": []}, "# no comment", "no"]},
        {"text": "a: b\nc\n"},
    ]
    text = yaml_text(*documents, head="What it is\n\nand more")
    assert list(yaml.safe_load_all(text)) == documents
    assert next(yaml.safe_load_all(text))["labels"].keys() == labels.keys()
    assert text.startswith("# What it is\n#\n# and more\n")
    assert "&" not in text
    assert "text: |\n  a: b\n  c\n" in text
