"""Turn rows of related benchmarks into rows of SWE-bench.

| benchmark | sign | what differs |
|---|---|---|
| SWE-rebench V2 | `install_config`, `image_name` | a date in milliseconds, code in `/NAME` |
| SWE-bench-Live MultiLang | `test_cmds`, `docker_image` | the name of the image |
| SWE-bench Pro | `dockerhub_tag` | `fail_to_pass` and `pass_to_pass` are Python lists as text; code in `/app` |
| Multi-SWE-bench | `fix_patch` | all names of fields; code in `/home/NAME` |

The fields are those that the benchmarks' own runners read (2026-11, see docs/eval.md).
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from m3agent.agent.util.sanitize import printable_line
from m3agent.evals.data.fields import Fields

Row = dict[str, Any]
MULTI = "fix_patch"
"""The field by which a row of Multi-SWE-bench is recognised."""
PRO_IMAGES = "jefzda/sweap-images"


def as_swebench(fields: Fields) -> Fields:
    """Return a row with the fields of SWE-bench. A row of SWE-bench itself is returned as it is.

    Raises:
        DataError: A field that is needed for that is missing, or has another type.
    """
    sign = sign_of(fields)
    if sign is None:
        return fields
    found = DIALECTS[sign][1](fields)
    found["environment"] |= fields.inner("environment").values  # the row's own recipe wins
    return Fields({**fields.values, **found}, fields.where)


def sign_of(fields: Fields) -> str | None:
    """Return the field in `DIALECTS` that shows of which benchmark a row is; None for SWE-bench itself."""
    return next((sign for sign, (other, _) in DIALECTS.items() if sign in fields and other in fields), None)


def id_of(fields: Fields) -> str:
    """Return the id of a row.

    Raises:
        DataError: It is missing.
    """
    number = fields.values.get("number")
    if MULTI in fields and "instance_id" not in fields and isinstance(number, int):
        return f"{fields.text('org')}__{fields.text('repo')}-{number}"
    return fields.text("instance_id", empty=False)


def _rebench(fields: Fields) -> Row:
    name = fields.text("repo", empty=False).rpartition("/")[2]
    return {
        "created_at": _of_milliseconds(fields),
        "environment": {"image": _image(fields, "image_name"), "folder": f"/{name}"},
    }


def _live(fields: Fields) -> Row:
    return {"environment": {"image": _image(fields, "docker_image")}}


def _pro(fields: Fields) -> Row:
    parts = ("problem_statement", "requirements", "interface")
    texts = [text for part in parts if (text := fields.optional(part)) and text.strip()]
    return {
        "FAIL_TO_PASS": _of_literal(fields, "fail_to_pass"),
        "PASS_TO_PASS": _of_literal(fields, "pass_to_pass"),
        "problem_statement": "\n\n".join(texts),
        "environment": {
            "image": f"{PRO_IMAGES}:{fields.text('dockerhub_tag', empty=False)}",
            "folder": "/app",
        },
    }


def _multi(fields: Fields) -> Row:
    org, name = fields.text("org", empty=False), fields.text("repo", empty=False)
    number = fields.values.get("number")
    if not isinstance(number, int) or isinstance(number, bool):
        raise fields.wrong("number", "the number of a pull request is expected")
    issues = fields.values.get("resolved_issues")
    if not isinstance(issues, list) or not all(isinstance(issue, Mapping) for issue in issues):
        raise fields.wrong("resolved_issues", "a list of objects is expected")
    texts = [Fields(issue, fields.where, "resolved_issues.") for issue in issues]
    statement = "\n\n".join(
        f"{issue.optional('title') or ''}\n\n{issue.optional('body') or ''}".strip() for issue in texts
    )
    return {
        "instance_id": id_of(fields),
        "repo": f"{org}/{name}",
        "base_commit": fields.inner("base").text("sha", empty=False),
        "problem_statement": statement,
        "patch": fields.text("fix_patch"),
        "FAIL_TO_PASS": sorted(fields.inner("fixed_tests").values),
        "PASS_TO_PASS": sorted(fields.inner("p2p_tests").values),
        "environment": {
            "image": f"mswebench/{org}_m_{name}:pr-{number}".lower(),
            "folder": f"/home/{name}",
        },
    }


DIALECTS: Mapping[str, tuple[str, Callable[[Fields], Row]]] = {
    "install_config": ("image_name", _rebench),
    "test_cmds": ("docker_image", _live),
    "dockerhub_tag": ("fail_to_pass", _pro),
    MULTI: ("fixed_tests", _multi),
}
"""How to convert a row, by two fields that together only this benchmark has."""


def _image(fields: Fields, name: str) -> str:
    return fields.text(name, empty=False).removeprefix("docker.io/")


def _of_milliseconds(fields: Fields) -> str | None:
    """Return `created_at` as text."""
    value = fields.values.get("created_at")
    if value is None or isinstance(value, str):
        return value
    try:
        return datetime.fromtimestamp(value / 1000, UTC).isoformat()
    except (TypeError, ValueError, OverflowError, OSError):
        raise fields.wrong("created_at", "a time in milliseconds since 1970 is expected") from None


def _of_literal(fields: Fields, name: str) -> list[Any]:
    """Return a field with a Python list, as text or as a list."""
    value = fields.values.get(name)
    if isinstance(value, str):
        try:
            value = ast.literal_eval(value)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            shown = printable_line(str(fields.values[name]), 60)
            raise fields.wrong(name, f"{shown!r} is not a list of test ids") from None
    if not isinstance(value, list):
        raise fields.wrong(name, "a list of test ids is expected")
    return value
