"""The build of a repository's Dockerfile: what its instructions can reach, and what they can do."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from m3agent.sandbox.backends.engine import connect
from m3agent.sandbox.declared.container import Container
from m3agent.sandbox.errors import EnvironmentBuildFailed
from m3agent.sandbox.images import dockerfile_build, image_build
from m3agent.sandbox.images.environment import find_environment
from m3agent.sandbox.images.image_build import PIDS
from m3agent.sandbox.store.workspace import Workspace
from tests.conftest import docker_here, later
from tests.sandbox.images.reach import FORK, REACH, WorkspaceOf, addresses_here, sandbox_from, service, yes
from tests.servers.dockerd import wait_until_removed
from tests.servers.packages import reachable_index, wheel

pytestmark = [
    pytest.mark.docker,
    pytest.mark.skipif(not docker_here(), reason="no Docker engine answers: environment images need one"),
]
RUNS_AS = (
    FORK
    + r"""
import json, os, pathlib
status = dict(line.split(":\t", 1) for line in pathlib.Path("/proc/self/status").read_text().splitlines())
found = {"uid": os.getuid(), "processes": count_processes()}
found |= {name: status[name] for name in ("CapEff", "CapBnd", "NoNewPrivs")}
pathlib.Path("/runs-as.json").write_text(json.dumps(found))
"""
)


@pytest.fixture(autouse=True)
def nothing_stays(own_images: None, api: Any) -> Iterator[None]:
    """Assert that no test leaves a container, or an image without a name."""
    unnamed = {image["Id"] for image in api.images(filters={"dangling": True})}
    yield
    wait_until_removed(api)
    assert {image["Id"] for image in api.images(filters={"dangling": True})} <= unnamed


async def contents(image: str | None, workspace: Workspace, *paths: str) -> list[str]:
    """Return what files of an image contain."""
    async with sandbox_from(image, workspace) as sandbox:
        return [(await sandbox.exec(["cat", path])).stdout.decode() for path in paths]


@pytest.mark.slow
async def test_an_image_has_no_name_before_it_is_checked(
    python_image: str,
    workspace_of: WorkspaceOf,
    tmp_path: Path,
    said: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Another process, or a later one if this one is killed here, would use the image by its name.
    checked = list[list[str]]()
    check = dockerfile_build._check_python

    def look(api: Any, image: str) -> None:
        checked.append(api.inspect_image(image)["RepoTags"])
        check(api, image)

    monkeypatch.setattr(dockerfile_build, "_check_python", look)
    workspace = workspace_of({"Dockerfile": f"FROM {python_image}\nCOPY a.txt /\n", "a.txt": "named later\n"})
    image = await find_environment(workspace, tmp_path, said.append, may_build=yes)
    assert checked == [[]]
    assert image is not None
    assert await contents(image, workspace, "/a.txt") == ["named later\n"]


def test_the_context_is_bounded_before_it_is_read(
    workspace_of: WorkspaceOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_build, "LARGEST_FILE", 5)
    monkeypatch.setattr(dockerfile_build, "LARGEST_FILE", 5)
    workspace = workspace_of({"Dockerfile": "FR", "a": "1234", "b": "12345", "large": "123456"})
    container = Container("Dockerfile", dockerfile="Dockerfile")
    with dockerfile_build._context(workspace, container) as context, tarfile.open(fileobj=context) as archive:
        assert archive.getnames() == ["Dockerfile", "a", "b"], "no sandbox would get the large one"
    monkeypatch.setattr(dockerfile_build, "MOST_CONTEXT", 10)
    monkeypatch.setattr(dockerfile_build, "packed", None)
    with pytest.raises(EnvironmentBuildFailed, match="context is larger"):
        dockerfile_build._context(workspace, container)


@pytest.mark.slow
async def test_a_command_reaches_nothing_of_this_machine_and_has_limits(
    python_image: str, workspace_of: WorkspaceOf, tmp_path: Path, said: list[str]
) -> None:
    with service() as (port, seen):
        look = REACH.format(hosts=sorted(addresses_here() | {"localhost", "169.254.169.254"}), port=port)
        look += "import json; open('/seen.json', 'w').write(json.dumps(look()))\n" + RUNS_AS
        dockerfile = f"FROM {python_image}\nCOPY look.py /tmp/\nRUN python3 /tmp/look.py\n"
        workspace = workspace_of({"Dockerfile": dockerfile, "look.py": look})
        image = await find_environment(workspace, tmp_path, said.append, may_build=yes)
        answers, found = map(json.loads, await contents(image, workspace, "/seen.json", "/runs-as.json"))
        assert len(answers) > 3
        for host, (direct, proxied) in answers.items():
            assert direct != "reached", host
            assert "not a public address of another machine" in proxied, (host, proxied)
        assert seen == []
    assert found["uid"] == 0
    assert 0 < found["processes"] < PIDS
    assert found["NoNewPrivs"] == "1"
    # chown, dac_override, fowner, fsetid, setgid, setuid (linux/capability.h)
    assert int(found["CapEff"], 16) == int(found["CapBnd"], 16) == 0b11011011


@pytest.mark.slow
@pytest.mark.parametrize(
    "instruction",
    [
        "ADD http://127.0.0.1:{port}/ /file",
        *map(
            later,
            (
                "ARG U=http://127.0.0.1:{port}/\nADD $U /file",
                'ADD ["h\\"\\"ttp://127.0.0.1:{port}/", "/file"]',
                'ADD h"tt"p:"//"127.0.0.1:{port}/ /file',
                "ADD htt\\\\\np://127.0.0.1:{port}/ /file",
            ),
        ),
        "FROM 127.0.0.1:{port}/image",
        later("COPY --from=localhost:{port}/image / /"),
    ],
)
async def test_the_engine_fetches_nothing_from_this_machine(
    instruction: str, python_image: str, workspace_of: WorkspaceOf, tmp_path: Path, said: list[str]
) -> None:
    with service() as (port, seen):
        dockerfile = f"FROM {python_image}\n{instruction.format(port=port)}\n"
        workspace = workspace_of({"Dockerfile": dockerfile})
        assert await find_environment(workspace, tmp_path, said.append, may_build=yes) is None
        assert seen == []
    [line] = [line for line in said if line.startswith("Dockerfile is not used: ")]
    assert "ADD may copy only files" in line or "which is not a public address" in line


@pytest.mark.slow  # quick: declared/test_dockerfile.py and test_a_dockerfile_makes_the_image
async def test_the_instructions_mean_what_they_mean_elsewhere(
    python_image: str, workspace_of: WorkspaceOf, tmp_path: Path, said: list[str]
) -> None:
    dockerfile = f"""
# a comment
ARG BASE={python_image}
FROM $BASE AS first
ARG WORD=built
RUN echo "$WORD" > /made && \\
    # a comment inside
    echo kept > /tmp/kept

FROM ${{BASE}}
ARG BASE
ARG NUMBER=7
ENV OWN="a b" MORE=${{NUMBER:-8}}
SHELL ["/bin/sh", "-e", "-c"]
COPY --from=first /made /tmp/kept /from/
WORKDIR /place
ADD data.tar .
USER 1000:1000
RUN ["sh", "-c", "echo $OWN $MORE $NUMBER $(id -u) > /tmp/own"]
USER 0
RUN false || echo "$BASE" > told; cat /tmp/own /from/made /from/kept >> told
LABEL a=b
ENTRYPOINT ["false"]
CMD ["false"]
"""
    workspace = workspace_of({"Dockerfile": dockerfile, "data.tar": b""})
    image = await find_environment(workspace, tmp_path, said.append, may_build=yes)
    assert image is not None, said
    [told] = await contents(image, workspace, "/place/told")
    assert told == f"{python_image}\na b 7 7 1000\nbuilt\nkept\n"
    api = connect()
    config = api.inspect_image(image)["Config"]
    api.close()
    assert {line.split("=")[0] for line in config["Env"]} == {"PATH", "OWN", "MORE"}, (
        "arguments became variables"
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ("RUN touch /a && exit 3\n", "its step 'RUN touch /a && exit 3' could not be built"),
        later("RUN --mount=type=secret,id=a true\n", "it mounts files into a command"),
        later("RUN <<EOF\ntrue\nEOF\n", "here-document"),
        later("COPY gone /gone\n", "it cannot be built"),
        later("NONSENSE\n", "unknown instruction NONSENSE"),
        later("FROM scratch\nRUN true\n", "empty image"),
    ],
)
async def test_a_failure_is_one_sentence_and_leaves_nothing(
    lines: str, why: str, python_image: str, workspace_of: WorkspaceOf, tmp_path: Path, said: list[str]
) -> None:
    dockerfile = f"FROM {python_image}\nRUN touch /made\n{lines}"
    workspace = workspace_of({"Dockerfile": dockerfile})
    assert await find_environment(workspace, tmp_path, said.append, may_build=yes) is None
    [line] = [line for line in said if line.startswith("Dockerfile is not used: ")]
    assert why in line
    assert "\n" not in line


@pytest.mark.slow  # quick: test_without_consent_nothing_of_it_runs
async def test_without_consent_its_packages_are_installed(
    python_image: str,
    workspace_of: WorkspaceOf,
    tmp_path: Path,
    said: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dockerfile = (
        f"FROM {python_image}\nRUN pip install alpha==1.0 gone && touch /made && apt-get install -y none\n"
    )
    with reachable_index(monkeypatch) as index:
        index.add(wheel("alpha", "1.0"), wheel("alpha", "1.1"), wheel("beta", "1.0"))
        workspace = workspace_of({"Dockerfile": dockerfile, "requirements.txt": "beta\n"})
        image = await find_environment(workspace, tmp_path, said.append)
    async with sandbox_from(image, workspace) as sandbox:
        done = await sandbox.exec(["python3", "-c", "import alpha, beta; print(alpha.VERSION)"])
        assert done.stdout == b"1.0\n", done.stderr
        assert (await sandbox.exec(["cat", "/made"])).exit != 0
    assert "without gone, which cannot be installed here" in said
    assert any("the image has no apt-get to install packages with" in line for line in said)


async def test_without_consent_nothing_of_it_runs(
    python_image: str, workspace_of: WorkspaceOf, tmp_path: Path, said: list[str]
) -> None:
    asked: list[Any] = []

    def no(container: Any, text: str) -> bool:
        asked.append((container.dockerfile, text))
        return False

    dockerfile = f"FROM {python_image}\nRUN touch /made\n"
    workspace = workspace_of({"Dockerfile": dockerfile})
    image = await find_environment(workspace, tmp_path, said.append, may_build=no)
    assert image == python_image, "the image that it names is not used"
    assert asked == [("Dockerfile", dockerfile)]
    assert not [line for line in said if line.startswith("building")]
    assert await find_environment(workspace, tmp_path, said.append) == python_image, "consent is the default"
