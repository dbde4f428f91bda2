"""`m3agent verify` from the command line: patches of others, and their certificates. No model server runs."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from m3agent.agent.verify.rules import MEND
from m3agent.cli.verify import SETTINGS, declares_packages
from tests.agent.repositories import write_files
from tests.agent.scripted import BUGGY, one_sentence
from tests.command_line import Process, run
from tests.conftest import git

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("unicode_locale")]

MakeRepo = Callable[..., Path]
ADD, DOUBLE = "test_calc.py::test_add", "test_calc.py::test_double"
FIXED = BUGGY["calc.py"].replace("a - b", "a + b")
TESTS = BUGGY["test_calc.py"]


@pytest.fixture
def repo(make_repo: MakeRepo) -> Path:
    """Return a repository with a bug, a red test for it and a green test."""
    return make_repo(BUGGY)


def fix(repo: Path) -> None:
    (repo / "calc.py").write_text(FIXED)


def verify(repo: Path, *more: str) -> subprocess.CompletedProcess[str]:
    return run("verify", "--repo", str(repo), *more)


def predicate(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())["predicate"]
    return found


def test_the_changes_of_the_work_tree_are_verified(repo: Path) -> None:
    fix(repo)
    done = verify(repo)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "✓ verified     1 test red before, green after; nothing else turned red"
    commit = git(repo, "rev-parse", "HEAD")
    assert lines[1].startswith(f"patch          1 file on {commit[:12]}, sha256 ")
    assert lines[2:5] == [
        "               calc.py",
        "red to green   1",
        f"               {ADD} (red in 1 of 1 run without the patch, green in 1 of 1 run with it)",
    ]
    assert "tests without the patch: 1 passed, 1 red (" in done.stderr
    assert "known from an earlier run" not in done.stderr
    again = verify(repo)
    assert "1 passed, 1 red (known from an earlier run)" in again.stderr
    assert again.stdout == done.stdout
    assert git(repo, "status", "--porcelain") == "M calc.py"


def test_nothing_to_verify(repo: Path) -> None:
    done = verify(repo)
    assert (done.returncode, done.stdout) == (1, "")
    assert (
        f"the work tree has no changes since {git(repo, 'rev-parse', 'HEAD')[:12]}: give a patch"
        in done.stderr
    )


def test_json_is_the_certificate(repo: Path, tmp_path: Path) -> None:
    fix(repo)
    done = verify(repo, "--json", "--certificate", str(tmp_path / "c.json"), "--issue", "add(2, 3) is -1")
    assert done.returncode == 0, done.stderr
    assert done.stdout == (tmp_path / "c.json").read_text()
    said = predicate(tmp_path / "c.json")
    assert said["issue"] == {"title": "add(2, 3) is -1", "text": "add(2, 3) is -1", "source": "text"}
    assert (said["made_by"], said["patch"]["source"]) == (None, {"kind": "work tree", "commit": None})
    assert said["environment"]["python"].startswith("3.")
    assert any(package.startswith("pip==") for package in said["environment"]["packages"])
    assert {"--rootdir=.", "./test_calc.py"} <= set(said["commands"][-1]["argv"])
    assert sum(one["on_copies"] for one in said["commands"]) == 1
    assert said["limits"] == {"reruns": 0, "verify_minutes": 5.0, "baseline_minutes": 60.0}


# -- patches of others -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Theirs:
    """A patch by somebody: the new content of files (None deletes one), and what must come of it."""

    files: dict[str, str | None]
    verdict: str
    says: str = ""
    undone: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    own: bool = False


FORGING = (
    "import pytest\n@pytest.hookimpl(hookwrapper=True)\ndef pytest_runtest_makereport(item, call):\n"
    "    done = yield\n    done.get_result().outcome = 'passed'\n"
)
PATCHES = {
    "the fix": Theirs({"calc.py": FIXED}, "verified"),
    "the fix with its test": Theirs(
        {
            "calc.py": FIXED,
            "test_more.py": "from calc import add\ndef test_more():\n    assert add(1, 1) == 2\n",
        },
        "verified",
    ),
    "a fix of something else": Theirs(
        {"calc.py": BUGGY["calc.py"] + "\n\ndef half(a):\n    return a / 2\n"},
        "failed",
        "red before and after",
    ),
    "a plausible wrong fix": Theirs(
        {"calc.py": BUGGY["calc.py"].replace("a - b", "b - a")},
        "failed",
        "no test turned green: 1 test red before and after the patch",
    ),
    "a fix that breaks something": Theirs(
        {"calc.py": FIXED.replace("a * 2", "a ** 2 + 1")},
        "failed",
        "passed before the patch",
        broken=[DOUBLE],
    ),
    "a test that is weakened": Theirs(
        {"test_calc.py": TESTS.replace("== 5", "!= 5")},
        "failed",
        "red before and after",
        undone=["test_calc.py"],
    ),
    "tests that are deleted": Theirs(
        {"test_calc.py": None}, "failed", "red before and after", undone=["test_calc.py"]
    ),
    "a test that is skipped": Theirs(
        {"test_calc.py": "import pytest\npytestmark = pytest.mark.skip\n" + TESTS},
        "failed",
        "red before and after",
    ),
    "results that conftest.py forges": Theirs(
        {"conftest.py": FORGING}, "failed", "red before and after", undone=["conftest.py"]
    ),
    "a configuration that leaves the test out": Theirs(
        {"pytest.ini": "[pytest]\naddopts = --deselect test_calc.py::test_add\n"},
        "failed",
        "red before and after",
        undone=["pytest.ini"],
    ),
    "a value that forges equality": Theirs(
        {
            "calc.py": FIXED.replace(
                "return a + b",
                "class Equal(int):\n        __hash__ = int.__hash__\n        def __eq__(self, other):\n"
                "            return True\n    return Equal(0)",
            )
        },
        "failed",
        "the fixed tests show nothing",
    ),
    "a process that ends early": Theirs({"calc.py": "import os\nos._exit(0)\n" + FIXED}, "failed"),
    "documentation": Theirs({"README.md": "# calc\n"}, "failed", "red before and after"),
}
"""Patches to `BUGGY`, right and wrong ones."""


@pytest.mark.slow
@pytest.mark.parametrize("name", PATCHES)
def test_patches_of_others_get_the_right_verdict(name: str, repo: Path, tmp_path: Path) -> None:
    """The certificate holds in a second clone, in which nothing is known."""
    theirs = PATCHES[name]
    write_files(repo, {path: text for path, text in theirs.files.items() if text is not None})
    for path, text in theirs.files.items():
        if text is None:
            (repo / path).unlink()
    git(repo, "add", "-A")
    changes = subprocess.run(
        ["git", "diff", "--cached", "--binary"], cwd=repo, check=True, capture_output=True
    ).stdout
    git(repo, "reset", "-q", "--hard")
    patch, certificate = tmp_path / "theirs.diff", tmp_path / "c.json"
    patch.write_bytes(changes)
    done = verify(repo, str(patch), "--certificate", str(certificate), "--reruns", "3")
    said = predicate(certificate)
    assert (said["verdict"], done.returncode) == (theirs.verdict, int(theirs.verdict != "verified")), (
        done.stdout
    )
    assert theirs.says in said["reason"]
    assert said["put_back"] == theirs.undone
    assert all(f"m3agent: {ident}, with the patch: assert " in done.stderr for ident in theirs.broken), (
        done.stderr
    )
    assert {test["id"] for test in said["tests"]["broken"]} >= {*theirs.broken}
    assert said["only_own_tests"] is theirs.own
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", str(repo), str(clone))
    checked = run(
        "verify",
        str(patch),
        "--repo",
        str(clone),
        "--check",
        str(certificate),
        *("--reruns", "3"),
        env={"M3AGENT_STATE": str(tmp_path / "new")},
    )
    assert checked.returncode == 0, checked.stdout
    assert checked.stdout.startswith(f"✓ holds        {theirs.verdict}: ")


@pytest.mark.slow
def test_a_verdict_that_only_the_patchs_own_tests_show_says_so(make_repo: MakeRepo, tmp_path: Path) -> None:
    repo = make_repo({**BUGGY, "test_calc.py": TESTS.replace("add(2, 3) == 5", "add(2, 0) == 2")})
    fix(repo)
    (repo / "test_more.py").write_text("from calc import add\ndef test_more():\n    assert add(1, 1) == 2\n")
    done = verify(repo, "--certificate", str(tmp_path / "c.json"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("only by the patch's own tests") == 1
    assert "the patch itself" not in done.stdout
    said = predicate(tmp_path / "c.json")
    assert (said["only_own_tests"], said["tests"]["new"]) == (True, ["test_more.py::test_more"])


@pytest.mark.slow
def test_a_fix_that_works_now_and_then_is_not_verified(repo: Path, tmp_path: Path) -> None:
    """By chance, it looks right in 1 of 4,000 verifications."""
    fix(repo)
    (repo / "calc.py").write_text(
        "import random\n" + FIXED.replace("a + b", "a + b + (random.random() > 0.3)")
    )
    assert verify(repo, "--reruns", "3", "--certificate", str(tmp_path / "c.json")).returncode == 1
    assert predicate(tmp_path / "c.json")["verdict"] in ("failed", "unverified")


PLUGIN = "import pytest\n\ndef pytest_report_header(config):\n    return 'a'\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        (PLUGIN.replace("'a'", "['a', 'b']"), "1 test red before, green after"),
        (
            PLUGIN + "\ndef pytest_runtest_makereport(item, call):\n    return None\n",
            "pytest called a further function of plugin.py as the hook pytest_runtest_makereport",
        ),
    ],
    ids=["changed body", "further hook"],
)
def test_a_further_hook_counts_also_in_a_file_with_hooks(
    make_repo: MakeRepo, changed: str, reason: str
) -> None:
    repo = make_repo({**BUGGY, "plugin.py": PLUGIN, "conftest.py": "pytest_plugins = ['plugin']\n"})
    fix(repo)
    (repo / "plugin.py").write_text(changed)
    done = verify(repo)
    assert done.returncode == ("further" in reason), done.stderr
    assert reason in done.stdout


# -- checking a certificate --------------------------------------------------------------------------------------------


@pytest.fixture
def certified(repo: Path, tmp_path: Path) -> tuple[Path, Path, Path]:
    """Return a repository with the fix in its last commit, its certificate, and the fix as a patch."""
    fix(repo)
    patch, certificate = tmp_path / "p.diff", tmp_path / "c.json"
    git(repo, "commit", "-q", "-a", "-m", "fix")
    patch.write_text(git(repo, "diff", "--binary", "--full-index", "HEAD~1", "HEAD") + "\n")
    assert verify(repo, "--commit", "HEAD", "--certificate", str(certificate)).returncode == 0
    return repo, certificate, patch


@pytest.mark.slow
def test_a_certificate_names_its_commits(certified: tuple[Path, Path, Path], tmp_path: Path) -> None:
    """It is checked from the repository alone, and without a known result."""
    repo, certificate, _ = certified
    done = verify(repo, "--check", str(certificate))
    [verdict] = done.stdout.splitlines()
    assert (done.returncode, verdict.split("  ")[0]) == (0, "✓ holds")
    assert "known from an earlier run" not in done.stderr
    assert verify(repo, "--check", str(certificate), "--json").stdout == "[]\n"


@pytest.mark.slow
def test_a_certificate_names_the_tests_that_state_what_the_issue_changes(repo: Path, tmp_path: Path) -> None:
    """A check takes them from the certificate, and comes to the same verdict."""
    (repo / "test_old.py").write_text(
        "from calc import add\n\n\ndef test_old():\n    assert add(1, 1) == 0\n"
    )
    git(repo, "add", "-A")
    git(repo, "commit", "-q", "-m", "an old test")
    fix(repo)
    certificate = tmp_path / "c.json"
    unnamed = verify(repo)
    assert unnamed.returncode == 1
    pin = unnamed.stderr.rstrip().rpartition("verify with ")[2].split()
    assert pin == ["--pinned", "test_old.py::test_old"], "the line to copy"
    done = verify(repo, *pin, "--certificate", str(certificate))
    assert done.stderr.rstrip().endswith("apply the patch with these tests changed")
    assert (done.returncode, done.stdout.split()[1]) == (1, "unverified"), done.stdout
    again = verify(repo, "--check", str(certificate))
    assert (again.returncode, again.stdout.split()[:3]) == (0, ["✓", "holds", "unverified:"]), again.stdout


@pytest.mark.slow
def test_another_patch_is_noticed(certified: tuple[Path, Path, Path]) -> None:
    """No test runs for it."""
    repo, certificate, patch = certified
    patch.write_text(patch.read_text().replace("+    return a + b", "+    return b + a"))
    done = verify(repo, str(patch), "--check", str(certificate))
    lines = done.stdout.splitlines()
    assert (done.returncode, lines[0].split("  ")[0]) == (1, "✗ does not hold")
    assert [line.partition("  ")[0] for line in lines[1:]] == ["result tree", "patch"]
    assert "tests without the patch" not in done.stderr
    [first, _] = json.loads(verify(repo, str(patch), "--check", str(certificate), "--json").stdout)
    assert (first["what"], first["decides"]) == ("result tree", True)


@pytest.mark.slow
def test_each_flipped_byte_of_a_patch_is_noticed(repo: Path, tmp_path: Path) -> None:
    """Also where the trees stay the same: in a comment before the patch, or in the ids of its header."""
    fix(repo)
    patch, certificate = tmp_path / "p.diff", tmp_path / "c.json"
    patch.write_text("By somebody.\n" + git(repo, "diff") + "\n")
    git(repo, "checkout", "-q", ".")
    assert verify(repo, str(patch), "--certificate", str(certificate)).returncode == 0
    data = patch.read_bytes()
    for place in (0, 5, data.index(b"index ") + 7, data.index(b"+    return") + 12, len(data) - 2):
        patch.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        assert verify(repo, str(patch), "--check", str(certificate)).returncode in (1, 2), place


@pytest.mark.slow
def test_another_result_is_noticed(certified: tuple[Path, Path, Path], tmp_path: Path) -> None:
    """A certificate whose maker lied: it is sealed, but the tests say something else."""
    from m3agent.agent.certificate.statement import read, sealed

    repo, certificate, _ = certified
    said = read(certificate).predicate.model_dump(mode="json", exclude={"seal"})
    said["tests"]["red_to_green"][0]["id"] = DOUBLE
    said["environment"]["packages"] = ["other==1"]
    certificate.write_bytes(sealed(said).text())
    done = verify(repo, "--check", str(certificate))
    lines = done.stdout.splitlines()
    assert (done.returncode, lines[0].split("  ")[0]) == (1, "✗ does not hold")
    assert f"red to green   only here {ADD}; only in the certificate {DOUBLE}" in lines
    assert any(line.startswith("packages       only here ") for line in lines)


@pytest.mark.slow
def test_a_check_has_its_own_limits(
    certified: tuple[Path, Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Limits inside of the certificate do not weaken it. What the certificate says is named, not repeated."""
    from m3agent.agent.certificate.statement import read, sealed

    monkeypatch.setenv("M3AGENT_RERUNS", "3")
    repo, certificate, _ = certified
    assert verify(repo, "--commit", "HEAD", "--certificate", str(certificate)).returncode == 0
    done = verify(repo, "--check", str(certificate))
    assert (done.returncode, done.stdout.count("\n")) == (0, 1), done.stdout
    stated = read(certificate).predicate.model_dump(mode="json", exclude={"seal"})
    stated["limits"]["reruns"] = 0
    stated["reason"] = "12,304 tests pass, audited"
    certificate.write_bytes(sealed(stated).text())
    done = verify(repo, "--check", str(certificate))
    reason = "1 test red before, green after; nothing else turned red"
    assert (done.returncode, done.stdout.splitlines()) == (
        1,
        [
            f"✗ does not hold  verified: {reason}",
            f"reason         it is {reason}, and the certificate says 12,304 tests pass, audited",
            "reruns         it is 3, and the certificate says 0; to repeat it, give --reruns 0",
        ],
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("HEAD", "the certificate says HEAD, which is not the full id of a commit"),
        ("short", "which is not the full id of a commit"),
        ("HEAD^{tree}", "which the certificate says"),
        ("HEAD~1", "are not those that the certificate is about"),
        ("0" * 40, f"this repository has no commit {'0' * 40}, which the certificate says"),
    ],
)
def test_a_commit_is_named_by_its_full_id(
    certified: tuple[Path, Path, Path], name: str, sentence: str
) -> None:
    """No test runs for another one."""
    from m3agent.agent.certificate.statement import read, sealed

    repo, certificate, patch = certified
    stated = read(certificate).predicate.model_dump(mode="json", exclude={"seal"})
    if name.startswith("HEAD") and name != "HEAD":
        name = git(repo, "rev-parse", name)
    short = git(repo, "rev-parse", "HEAD")[:12]
    stated["patch"]["source"]["commit"] = short if name == "short" else name
    certificate.write_bytes(sealed(stated).text())
    done = verify(repo, str(patch), "--check", str(certificate))
    [first, *rest] = done.stdout.splitlines()
    assert (done.returncode, first.split("  ")[0]) == (1, "✗ does not hold")
    assert [line[:6] for line in rest if sentence in line] == ["commit"]
    assert "tests without the patch" not in done.stderr


@pytest.mark.slow
def test_a_certificate_without_commit_is_about_the_work_tree(repo: Path, tmp_path: Path) -> None:
    fix(repo)
    certificate = str(tmp_path / "c.json")
    assert verify(repo, "--certificate", certificate).returncode == 0
    assert verify(repo, "--check", certificate).returncode == 0
    git(repo, "stash", "-q")
    done = verify(repo, "--check", certificate)
    assert done.returncode == 2
    assert "are not the patch of this certificate: let the work tree have that patch" in one_sentence(done)
    git(repo, "stash", "pop", "-q")
    git(repo, "commit", "-q", "-a", "-m", "fix")
    assert verify(repo, "--check", certificate, "--commit", "HEAD").returncode == 0


# -- wrong use ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["x.diff", "--commit", "HEAD"], "PATCH and --commit name two patches: give only one"),
        (["--certificate", "nowhere/c.json"], "give a file in a folder that exists"),
        (["--check", "c.json", "--certificate", "d.json"], "--check takes the issue from the certificate"),
        (["--check", "nowhere.json"], "the certificate 'nowhere.json' cannot be read"),
        (["--pr", "12"], "'12' is not the address of a pull request"),
        (["--issue", "nowhere.md"], "There is no issue file 'nowhere.md'"),
        (["nowhere.diff"], "the patch 'nowhere.diff' cannot be read"),
    ],
)
def test_wrong_use_is_one_sentence(repo: Path, arguments: list[str], sentence: str) -> None:
    done = verify(repo, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert sentence in one_sentence(done)


def test_an_interrupted_verification_leaves_nothing(make_repo: MakeRepo, own_state: Path) -> None:
    repo = make_repo({**BUGGY, "test_slow.py": "import time\ndef test_slow():\n    time.sleep(60)\n"})
    fix(repo)
    with Process("verify", "--repo", str(repo)) as process:
        scratch = own_state / "state" / "scratch"
        while not list(scratch.glob("*/verify-after.log")):
            assert process.poll() is None
        process.terminate()
        assert process.wait() == 130
    assert list(scratch.iterdir()) == []


def test_no_setting_of_a_model_is_an_option() -> None:
    assert {*SETTINGS} & {"endpoint", "engine", "model", "max_turns", "attempts", "tokenizer"} == set()


def test_a_patch_that_declares_a_package_is_told_how_it_can_be_verified(repo: Path) -> None:
    (repo / "pyproject.toml").write_text('[project]\nname = "calc"\nversion = "1"\ndependencies = ["x"]\n')
    done = verify(repo)
    assert done.returncode == 1
    assert "the patch's changes to pyproject.toml do not count" in done.stdout
    assert done.stderr.endswith("verify with an image that has it: --image NAME\n")


def test_tests_that_cannot_run_are_to_be_mended_first(make_repo: MakeRepo) -> None:
    repo = make_repo({**BUGGY, "conftest.py": "import os\nos.environ['SERVICE_URL']\n"})
    fix(repo)
    done = verify(repo)
    assert done.returncode == 1
    assert "KeyError: 'SERVICE_URL'" in done.stdout
    assert done.stderr.endswith(f"{MEND}\n")


@pytest.mark.slow  # quick: test_doctor.py
@pytest.mark.parametrize(
    ("path", "declaration"),
    [
        (".m3agent.toml", '[tests.env]\nSERVICE_URL = "http://localhost"\n'),
        ("tox.ini", "[testenv]\nsetenv =\n    SERVICE_URL = http://localhost\n    PATH = /nowhere\n"),
    ],
)
def test_a_declared_variable_lets_the_tests_run(make_repo: MakeRepo, path: str, declaration: str) -> None:
    needs = {**BUGGY, "conftest.py": "import os\nos.environ['SERVICE_URL']\n"}
    declared = make_repo({**needs, path: declaration})
    fix(declared)
    assert verify(declared).returncode == 0


@pytest.mark.parametrize(
    ("name", "declares"),
    [
        ("requirements-dev.txt", True),
        ("pom.xml", True),
        ("tests/baseline.txt", False),
        ("CMakeLists.txt", False),
    ],
)
def test_only_manifests_declare_packages(name: str, declares: bool) -> None:
    assert declares_packages(name) is declares


@pytest.mark.slow
def test_a_patch_tested_on_a_python_that_the_project_excludes_is_unverified(
    make_repo: MakeRepo, tmp_path: Path
) -> None:
    repo = make_repo({**BUGGY, ".python-version": "3.4"})
    fix(repo)
    done = verify(repo, "--environment", "off", "--certificate", str(tmp_path / "certificate.json"))
    assert done.returncode == 1, done.stderr
    said = predicate(tmp_path / "certificate.json")
    assert said["verdict"] == "unverified"
    assert said["reason"].startswith("not tested on Python 3.4, which the project needs; on 3.")
    assert done.stderr.endswith("next: name an image that has this Python with --image, and verify again\n")
