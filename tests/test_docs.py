"""Documents that are contracts list exactly what the code has."""

import os
import re
import subprocess
import sys
from dataclasses import fields
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import get_args

import pytest
import yaml  # type: ignore[import-untyped]

from m3agent.agent.session import events
from m3agent.serving.client.endpoint import Flavour
from m3agent.util.errors import EXIT_CODES, Status
from scripts.docs import commands_page, licences_page, rooms, rules_table, settings_page

ROOT = Path(__file__).parent.parent
PAPERS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
EVENTS = {event.type: event for event in events.Event.__subclasses__()}


def sections() -> dict[str, str]:
    """Return the text of each event type's section."""
    parts = re.split(r"^### (.+)$", (ROOT / "docs" / "events.md").read_text(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_every_event_type_has_its_section() -> None:
    assert set(sections()) == set(EVENTS)


@pytest.mark.parametrize("name", sorted(EVENTS))
def test_every_field_of_an_event_is_described(name: str) -> None:
    described = set(re.findall(r"`([a-z_0-9]+)`", sections()[name]))
    assert {field.name for field in fields(EVENTS[name])} - described == set()


def test_every_kind_of_server_is_listed() -> None:
    section = sections()["endpoint.probed"]
    assert [kind for kind in get_args(Flavour) if f"`{kind}`" not in section] == []


@pytest.mark.parametrize("path", settings_page.MADE, ids=lambda path: path.name)
def test_parts_made_from_the_settings_are_current(path: Path) -> None:
    text = path.read_text()
    current = settings_page.renewed(text, settings_page.MADE[path]())
    assert current == text, "stale: write it again with `make docs-pages`"


def test_the_rules_of_the_verdict_are_current() -> None:
    text = rules_table.PAGE.read_text()
    assert settings_page.renewed(text, rules_table.table()) == text, (
        "stale: write it again with `make docs-pages`"
    )


@pytest.mark.slow
def test_the_picture_of_the_rooms_is_current() -> None:
    text = rooms.PAGE.read_text()
    assert settings_page.renewed(text, rooms.picture()) == text, (
        "stale: write it again with `make docs-pages`"
    )
    for package in rooms.PACKAGES:
        listed = {f"{package}.{name}" for layer in rooms.layers(package) for name in layer}
        assert {name for name in rooms.rooms() if name.startswith(f"{package}.")} == listed


def test_the_picture_of_the_rooms_has_a_line_for_each_folder(tmp_path: Path) -> None:
    for package in rooms.PACKAGES:
        (tmp_path / package / "room").mkdir(parents=True)
        for folder, purpose in (
            (package, f"The {package}. More."),
            (f"{package}/room", "A room, which\nis large."),
        ):
            (tmp_path / folder / "__init__.py").write_text(f'"""{purpose}"""\n')
        (tmp_path / package / "alone.py").write_text('"""A module."""\n')
    contract = '{ containers = ["m3agent.agent"], layers = ["alone", "room"] }'
    (tmp_path / "pyproject.toml").write_text(f"tool.importlinter.contracts = [{contract}]\n")
    lines = rooms.picture(tmp_path).splitlines()
    assert lines[0] == "```text" == lines[-1] + "text"
    assert lines[1:3] == [
        "integrations/       The integrations.",
        "└ room              A room, which is large.",
    ]
    at = lines.index("agent/              The agent.")
    assert lines[at + 1 : at + 3] == ["├ alone", "└ room              A room, which is large."]
    assert sum("alone" in line for line in lines) == 1, "only where it is a layer"


def test_public_names_are_those_that_other_rooms_import() -> None:
    room = rooms.rooms()["agent.repo"]
    assert {
        "sandbox.store",
        "util.counted",
        "util.errors",
        "util.plain_file",
        "util.private_file",
        "util.record",
        "util.xdg",
    } == room.imports
    assert "repository.open_repository" in room.public
    assert "git_config.no_git" not in room.public, "only this room uses it"


@pytest.mark.parametrize("paper", ["README.md", "docs/fix.md"])
def test_the_tables_have_every_status_and_exit_code(paper: str) -> None:
    text = (ROOT / paper).read_text()
    for status, code in EXIT_CODES.items():
        if status is not Status.ERROR:  # the exit code of an error depends on its kind
            assert re.search(rf"^\| {code} \|.*`{status}`", text, re.MULTILINE), status


@pytest.mark.parametrize("paper", PAPERS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_between_papers_lead_somewhere(paper: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)", paper.read_text()):
        if "://" not in target:
            assert (paper.parent / target).exists(), target


def test_commands_of_the_readme_are_targets() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    papers = "".join(paper.read_text() for paper in PAPERS)
    assert set(re.findall(r"(?:^|[`\s])make ([a-z][a-z-]*)(?=`|$|\s{2,})", papers, re.MULTILINE)) <= targets


@pytest.mark.integration
def test_the_reference_of_commands_is_current() -> None:
    """The page is generated twice, with different terminal settings."""
    program = "from scripts.docs.commands_page import page; print(page(), end='')"
    for terminal in ({"COLUMNS": "40", "FORCE_COLOR": "1"}, {"COLUMNS": "300", "NO_COLOR": "1"}):
        done = subprocess.run(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env={**os.environ, **terminal},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout == commands_page.PAGE.read_text(), "stale: write it again with `make docs-pages`"


def test_the_page_of_licences_is_current() -> None:
    """Packages of extras that are not installed must be on the page; their licences are taken from the page itself."""
    text = licences_page.PAGE.read_text()
    try:
        current = licences_page.page(licences_page.written(text))
    except PackageNotFoundError as missing:
        pytest.fail(f"stale: {missing} is not on it; write it again with `make docs-pages`")
    assert current == text, "stale: write it again with `make docs-pages`"


def test_the_workflow_has_the_steps_of_ci() -> None:
    run, workflow = ((ROOT / name).read_text() for name in (".ci/run", ".github/workflows/ci.yml"))
    steps = re.findall(r"^make (.+)$", run, re.MULTILINE)
    assert steps
    assert set(steps) == set(re.findall(r"\bmake (.+)$", workflow, re.MULTILINE))


@pytest.mark.parametrize(("length", "passes"), [(1, True), (72, True), (73, False), (0, False)])
def test_the_subject_of_a_commit_has_72_characters_at_most(length: int, passes: bool) -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    [hook] = [hook for hook in hooks if "commit-msg" in hook.get("stages", [])]
    message = "x" * length + "\n\n" + "A body may have longer lines. " * 10
    assert bool(re.search(hook["entry"], message, re.MULTILINE)) == passes
    assert "--negate" in hook["args"]


def test_every_package_has_a_licence_and_those_of_the_base_are_looked_up() -> None:
    base = licences_page.sections()[""]
    assert {"openai", "pydantic", "typer", "pytest"} <= set(base)
    assert len(licences_page.rows(base)) == len(base), "all are installed here"
    assert licences_page.UNKNOWN not in licences_page.written(licences_page.PAGE.read_text()).values()
