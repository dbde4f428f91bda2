"""Write docs/certificate.schema.json from the classes that define a certificate: `make docs-pages`."""

from __future__ import annotations

import json
from pathlib import Path

from m3agent.agent.certificate.statement import Statement

SCHEMA = Path(__file__).parents[2] / "docs" / "certificate.schema.json"


def schema() -> str:
    """Return the JSON schema of a certificate."""
    made = Statement.model_json_schema(by_alias=True, mode="serialization")
    return json.dumps({"$schema": "https://json-schema.org/draft/2020-12/schema", **made}, indent=2) + "\n"


if __name__ == "__main__":
    SCHEMA.write_text(schema())
