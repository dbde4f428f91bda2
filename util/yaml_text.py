"""Write YAML for people: in blocks, keys in their order, texts of several lines as they are."""

from __future__ import annotations

from typing import Any


def yaml_text(*documents: object, head: str = "") -> str:
    """Return documents as YAML."""
    import yaml  # type: ignore[import-untyped]

    class Dumper(yaml.SafeDumper):  # type: ignore[misc]
        def ignore_aliases(self, data: object) -> bool:
            return True

        def increase_indent(self, flow: bool = False, indentless: bool = False) -> Any:
            return super().increase_indent(flow, False)

    def text(dumper: Any, value: str) -> Any:
        style = "|" if "\n" in value else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)

    Dumper.add_representer(str, text)
    comment = "".join(f"# {line}".rstrip() + "\n" for line in head.splitlines())
    body = yaml.dump_all(documents, Dumper=Dumper, sort_keys=False, width=10_000, allow_unicode=True)
    return f"{comment}{body}"
