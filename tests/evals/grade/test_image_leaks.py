"""Plant each kind of leak in the files of an image, and find it; and find none where there is only what is older."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from m3agent.evals.data.instance import Environment, Source, Task
from m3agent.evals.grade.image_leaks import KINDS, read_leaks, script_of, stated

COMMIT = 'git -c user.name=t -c user.email=t@example.invalid commit -q --allow-empty --date "$1" -m "$1"'
REPOSITORY = f"""\
commit() {{ GIT_COMMITTER_DATE="$1" {COMMIT}; }}
git init -q -b main .; printf '.dist-info\\n' > old
git add -A; commit 2020-01-01T00:00:00Z; git tag base; git branch side
"""
"""Shell lines for a repository with one commit; `commit DATE` makes another one."""
SITE = "$ROOT/opt/site-packages"
CACHE = "$ROOT/home/.cache/pip/http-v2/a/b/c/d/e"
PLANTED = {
    "ahead": "for day in 1 2 3; do commit 2020-02-0${day}T00:00:00Z; done",
    "refs": "git checkout -q side; commit 2020-03-01T00:00:00Z; git checkout -q main",
    "reflogs": "commit 2020-03-01T00:00:00Z; git reset -q --hard base",
    "objects": "commit 2020-03-01T00:00:00Z; git reset -q --hard base; rm -rf .git/logs .git/ORIG_HEAD; git repack -qadf --keep-unreachable",
    "packages": "mkdir -p $ROOT/home/wheels; touch $ROOT/home/wheels/My_Calc-2.1-py3-none-any.whl",
    "downloads": f"mkdir -p {CACHE}; printf 'x\\0my_calc-2.1-py3-none-any.whl\\0' > {CACHE}/f",
    "releases": f"mkdir -p {SITE}/my_calc-2.1.dist-info",
}
"""Shell lines that plant each kind of leak; `unread` needs an image without git."""
FORMS = {
    "the project's own name": ("releases", f"mkdir -p {SITE}/Calculator-2.1.dist-info"),
    "a file of distutils": ("releases", f"mkdir -p {SITE}; touch {SITE}/my_calc-2.1.egg-info"),
    "a wheel by its files": (
        "downloads",
        f"mkdir -p {CACHE}; printf 'PKmy_calc-2.1.dist-info/WHEEL' > {CACHE}/f.body",
    ),
    "a source archive": (
        "downloads",
        f"mkdir -p {CACHE} my_calc-2.1; touch my_calc-2.1/setup.py; tar -czf {CACHE}/f.body my_calc-2.1",
    ),
    "pip's cache in another folder": (
        "downloads",
        "mkdir -p $ROOT/c/http/a/b/c/d/e; echo my-calc-2.1.tar.gz > $ROOT/c/http/a/b/c/d/e/f",
    ),
}
"""Other forms of a leak, each with its kind."""
OLDER = f"""\
commit 2020-01-02T00:00:00Z # the set-up
git checkout -q --orphan maintenance; commit 2019-01-01T00:00:00Z; git checkout -q main
mkdir -p {SITE}/my_calc-1.9.dist-info {SITE}/my_calc_tools-7.0.dist-info {SITE}/my_calc-2.0.dist-info $ROOT/home/wheels
printf '{{"dir_info": {{"editable": true}}}}' > {SITE}/my_calc-2.0.dist-info/direct_url.json
touch $ROOT/home/wheels/my_calc-2.0-py3-none-any.whl $ROOT/home/wheels/calc-9.0.tar.gz
"""


def task_of(base: str = "") -> Task:
    return Task(
        instance_id="calc-1",
        repo="someone/my-calc",
        base_commit=base,
        statement="s",
        source=Source(kind="image", location="x"),
        environment=Environment(variables={"SETUPTOOLS_SCM_PRETEND_VERSION": "2.0"}),
    )


pytestmark = pytest.mark.integration


def leaks_after(script: str, root: Path, path: str | None = None) -> list[str]:
    """Return the leaks below a folder in which a script has run; `path` is where the search finds its programs."""
    (root / "testbed").mkdir()
    made = subprocess.run(
        ["bash", "-ec", f"{REPOSITORY}\n{script}\ngit rev-parse base"],
        cwd=root / "testbed", env={"PATH": os.environ["PATH"], "ROOT": str(root)}, capture_output=True, check=True,
    )  # fmt: skip
    task = task_of(made.stdout.decode().strip())
    env = {"PATH": path or os.environ["PATH"]}
    search = ["bash", "-c", script_of(task, "Calculator", str(root))]
    found = subprocess.run(search, env=env, capture_output=True, check=False)
    return list(read_leaks(found.stdout.decode().splitlines(), task, ""))


def what_of(kind: str) -> str:
    return next(each.what for each in KINDS if each.name == kind)


@pytest.mark.parametrize("kind", PLANTED)
def test_each_kind_of_leak_is_found(kind: str, tmp_path: Path) -> None:
    assert [what_of(kind) in leak for leak in leaks_after(PLANTED[kind], tmp_path)] == [True]


@pytest.mark.parametrize(("kind", "script"), FORMS.values(), ids=FORMS)
def test_other_forms_of_a_leak_are_found(kind: str, script: str, tmp_path: Path) -> None:
    assert [what_of(kind) in leak for leak in leaks_after(script, tmp_path)] == [True]


def test_what_is_older_than_the_base_is_no_leak(tmp_path: Path) -> None:
    assert leaks_after(OLDER, tmp_path) == []


def test_a_repository_is_told_if_there_is_no_git_to_search_it(tmp_path: Path) -> None:
    programs, root = tmp_path / "programs", tmp_path / "root"
    programs.mkdir()
    root.mkdir()
    for name in ("find", "grep", "sed", "mktemp", "rm", "cat", "sort", "cut", "tail"):
        (programs / name).symlink_to(str(shutil.which(name)))
    (programs / "bash").symlink_to(str(shutil.which("bash")))
    [leak] = leaks_after("", root, str(programs))
    assert leak.startswith(f"{root}/testbed/.git: a repository, and the image has no git")


@pytest.mark.parametrize(
    ("file", "text", "version"),
    [
        ("pyproject.toml", '[project]\nname = "x"\nversion = "1.2"\n', "1.2"),
        ("setup.cfg", "[metadata]\nname = x\nversion = 3.4\n", "3.4"),
        ("setup.py", "setup(name='x', version='5.6')\n", "5.6"),
        ("setup.cfg", "[metadata]\nname = x\nversion = attr: x.y\n", ""),
    ],
)
def test_the_stated_the_base_is_what_its_files_say(
    file: str, text: str, version: str, tmp_path: Path
) -> None:
    (tmp_path / file).write_text(text)
    assert (stated(tmp_path, "name"), stated(tmp_path, "version")) == ("x", version)
    line = "releases\t/site/my_calc-3.0.dist-info\tmy_calc-3.0.dist-info"
    task = task_of().model_copy(update={"environment": Environment()})
    is_leak = not version or version < "3.0"
    assert bool(list(read_leaks([line, "no leak"], task, version))) is is_leak
