"""The names of images: they keep them, so that an image that was built is found again."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from m3agent.sandbox.backends.image import Image
from m3agent.sandbox.declared.declared import Declared
from m3agent.sandbox.declared.preparation import Preparation, SuiteNeeds
from m3agent.sandbox.declared.types import DeclaredProject
from m3agent.sandbox.images import repository_layers
from m3agent.sandbox.images.layers import Builder, digest
from m3agent.sandbox.images.repository_layers import (
    environment_layer,
    project_layer,
    suite_job,
    suite_layer,
)
from m3agent.sandbox.store.git import TreeEntry
from tests.sandbox.images.reach import WorkspaceOf

DECLARED = Declared(
    requirements=("a>=1", "b"),
    optional=("b",),
    constraints=("a==1",),
    python=None,
    python_pin=None,
    project=DeclaredProject("own", "1.0", {"console_scripts": {"x": "y:z"}}),
    notices=("a note",),
    django_settings="own.settings",
    test_options=("-W", "x"),
    import_folders=("lib",),
    python_ci=("3.11", "3.12"),
)
PROJECT = {
    "inputs": "hash",
    "version_files": ("src/v.py",),
    "extensions": True,
    "version": "3.4",
    "tag": "v3.4",
    "rust": "1.70",
    "exclude_newer": None,
}
SUITE = SuiteNeeds(
    "own:web",
    "Own",
    "",
    "web",
    Preparation((), (("x", "y"),), (("z",),), ("web/lock",), ("deps", "/opt/c"), {"A": "b"}),
)
BASE = Image("base:1", (), {"PATH": "/bin"}, "sha256:1")
SKELETON = Image("skeleton", ("/usr",), {}, "sha256:2")


@pytest.mark.parametrize(
    ("below", "keys"),
    [
        (BASE, ["1957f9ce0acdd4b1", "1d5bc2fcce93a1b5", "ecc4cb2babffa5c0"]),
        (SKELETON, ["b298d1790c9e047f", "7a0c79fdbc2252e1", "53b4f3b23677940d"]),
    ],
    ids=["an image", "this machine's /usr"],
)
def test_an_image_that_was_built_keeps_its_name(
    below: Image,
    keys: list[str],
    workspace_of: WorkspaceOf,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "m")
    monkeypatch.setattr(repository_layers, "_host_python", lambda: "Python 3")
    monkeypatch.setattr(repository_layers, "_host_programs", lambda _: [("p", 1, 2)])
    monkeypatch.setenv("UV_DEFAULT_INDEX", "https://own.test/simple")  # which does not count
    builder, workspace = Builder(None, tmp_path, print), workspace_of({"a": ""})
    job = suite_job(SUITE, {"web/lock": TreeEntry("web/lock", 0o100644, "abc")})
    made = [
        environment_layer(builder, DECLARED, below, "2024-01-01"),
        project_layer(builder, PROJECT, workspace, below),
        suite_layer(builder, SUITE, job, workspace, below),
    ]
    assert [layer.key for layer in made] == keys
    assert digest([1, "sha256:1", True]) == "2af0dc90bfddb111"
    other = [
        environment_layer(builder, DECLARED, below, None),
        project_layer(builder, {**PROJECT, "tag": "v3.5"}, workspace, below),
        suite_layer(builder, SUITE, {**job, "inputs": []}, workspace, below),
    ]
    assert not {layer.key for layer in other} & set(keys)
