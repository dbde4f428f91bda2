"""The image builder with a fake engine: which calls it makes, and what remains after a failure."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from docker.errors import APIError, NotFound
from requests.exceptions import ConnectionError as RequestsConnectionError

from m3agent.sandbox.backends.image import SKELETON_LABEL, Image
from m3agent.sandbox.errors import EngineFailed, EnvironmentBuildFailed
from m3agent.sandbox.images import image_build
from m3agent.sandbox.images.image_build import MOST_FILES, Build, build_files, build_image, files_as_tar

TAG = "m3agent-env:0123"
BUILD = Build(
    what="the layer",
    base=Image("base:1", env={"PATH": "/bin"}),
    command=("sh", "install"),
    user="0:0",
    folder="/work",
    env={"CERT": "/ca"},
    capabilities=("CHOWN",),
    image_env={"NAME": "value"},
    image_command="/bin/sh",
)


class Engine:
    """A fake `docker.APIClient` with the calls of a build. status, output: of the container."""

    def __init__(self, status: int = 0, output: bytes = b"", size: int = 0) -> None:
        self.status = status
        self.output = output
        self.size = size
        self.ended = threading.Event()
        self.calls: list[tuple[str, Any]] = []
        self.left = b""

    def create_host_config(self, **options: Any) -> dict[str, Any]:
        return options

    def create_container(self, image: str, **options: Any) -> dict[str, str]:
        self.calls.append(("create", {"image": image, **options}))
        return {"Id": "c1"}

    def put_archive(self, container: str, path: str, data: bytes) -> None:
        self.calls.append(("put", data))

    def attach(self, container: str, **_: Any) -> Iterator[bytes]:
        yield self.output
        if self.status < 0:  # a negative status: it never ends by itself
            self.ended.wait()

    def start(self, container: str) -> None:
        self.calls.append(("start", container))

    def containers(self, **_: Any) -> list[dict[str, int]]:
        return [{"SizeRw": self.size}]

    def wait(self, container: str, timeout: float) -> dict[str, int]:
        return {"StatusCode": self.status}

    def commit(self, container: str, **options: Any) -> dict[str, str]:
        self.calls.append(("commit", options))
        return {"Id": "i1"}

    def get_archive(self, container: str, path: str) -> tuple[Iterator[bytes], dict[str, int]]:
        assert path == "/left"
        return iter([self.left[:100], self.left[100:]]), {}

    def remove_container(self, container: str, **_: Any) -> None:
        self.ended.set()
        self.calls.append(("remove", container))

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.calls]

    def of(self, name: str) -> Any:
        [found] = [value for called, value in self.calls if called == name]
        return found


@pytest.fixture(autouse=True)
def no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_build, "ensure_reaper", lambda _: None)
    monkeypatch.setattr(image_build, "socket_of", lambda _: "")
    monkeypatch.setattr(image_build, "our_labels", lambda: {"m3agent": "1", "m3agent.host": "here"})


def run(engine: Engine, tmp_path: Path, build: Build = BUILD, *, stop: bool = False) -> list[str]:
    """Build, and return the messages for the user."""
    said: list[str] = []
    stopped = threading.Event()
    if stop:
        stopped.set()
    build_image(engine, build, TAG, [b"one", b"two"], log=tmp_path / "log", say=said.append, stop=stopped)
    return said


def test_an_image_is_made_of_the_container(tmp_path: Path) -> None:
    engine = Engine(output=b"collecting\nnotice: no lock file\n")
    assert run(engine, tmp_path) == ["no lock file"]
    assert engine.names == ["create", "put", "put", "start", "commit", "remove"]
    created = engine.of("create")
    assert (created["image"], created["user"]) == ("base:1", "0:0")
    assert created["command"] == ["/usr/bin/env", "CERT=/ca", "sh", "install"]
    assert created["environment"] == {"PATH": "/bin"}, "what only the command needs became part of the image"
    host = created["host_config"]
    assert (host["cap_drop"], host["cap_add"], host["binds"]) == (["ALL"], ["CHOWN"], [])
    assert host["mem_limit"] == host["memswap_limit"]
    committed = engine.of("commit")
    assert (committed["repository"], committed["tag"]) == ("m3agent-env", "0123")
    conf = committed["conf"]
    assert (conf["Env"], conf["Cmd"]) == (["NAME=value"], ["/bin/sh"])
    assert conf["Labels"]["m3agent.environment"] == "0123"
    assert conf["Labels"]["m3agent.host"] == "", "whose container it was is not the image's"
    assert SKELETON_LABEL not in conf["Labels"]
    assert (tmp_path / "log").read_bytes() == engine.output


def test_an_image_over_the_skeleton_says_so(tmp_path: Path) -> None:
    engine = Engine()
    over = Build(**{**vars(BUILD), "base": Image("skeleton", binds=("/usr", "/not/here"))})
    run(engine, tmp_path, over)
    assert engine.of("create")["host_config"]["binds"] == ["/usr:/usr:ro"]
    assert engine.of("commit")["conf"]["Labels"][SKELETON_LABEL] == "1"


def test_a_command_that_fails_leaves_nothing(tmp_path: Path) -> None:
    engine = Engine(status=1, output=b"error: no such package\nended\n")
    with pytest.raises(EnvironmentBuildFailed) as caught:
        run(engine, tmp_path)
    log = tmp_path / "log"
    assert str(caught.value) == f"the layer could not be built: ended (no such package); the log is {log}"
    assert engine.names[-2:] == ["start", "remove"]


@pytest.mark.parametrize(
    ("output", "server"),
    [
        (
            "fatal: unable to access 'https://a.example/b.git/': Could not resolve host: a.example\nfatal: clone failed",
            "fatal: unable to access 'https://a.example/b.git/': Could not resolve host: a.example",
        ),
        (
            f"[ERROR] {'x' * 100} Could not transfer artifact b from central",
            "Could not transfer artifact b from central",
        ),
        (
            'Net::HTTPFatalError 502 "cannot connect to a.example:443"',
            'Net::HTTPFatalError 502 "cannot connect to a.example:443"',
        ),
        (
            "  curl error 56 while downloading https://a.example/packages.json: C\n  ONNECT tunnel failed",
            "curl error 56 while downloading https://a.example/packages.json: C",
        ),
        (
            "[cause]: Error: getaddrinfo EAI_AGAIN a.example",
            "[cause]: Error: getaddrinfo EAI_AGAIN a.example",
        ),
    ],
    ids=["git", "Maven", "Bundler", "Composer", "Node.js"],
)
def test_a_server_that_is_not_reached_is_the_reason(tmp_path: Path, output: str, server: str) -> None:
    engine = Engine(status=1, output=f"{output}\nsee the help\n".encode())
    with pytest.raises(EnvironmentBuildFailed) as caught:
        run(engine, tmp_path)
    why = f"the layer could not be built: a server was not reached: {server} (the last line is: see the help)"
    assert str(caught.value).startswith(why)


def test_a_build_that_is_stopped_leaves_nothing(tmp_path: Path) -> None:
    engine = Engine(status=-1)
    with pytest.raises(EnvironmentBuildFailed, match="the layer could not be built: interrupted; the log is"):
        run(engine, tmp_path, stop=True)
    assert engine.names[-1] == "remove"


@pytest.mark.parametrize(
    ("limit", "size", "why"),
    [
        ("BUILD_SECONDS", 0, "it took more than 0 minutes"),
        ("SIZE_EVERY", image_build.MOST_DISK + 1, "it takes more than 12 GiB of disk"),
    ],
)
def test_a_build_has_limits(tmp_path: Path, limit: str, size: int, why: str) -> None:
    engine = Engine(status=-1, size=size)
    with (
        mock.patch.object(image_build, "LOOK", 0.001),
        mock.patch.object(image_build, limit, 0.0),
        pytest.raises(EnvironmentBuildFailed, match=why),
    ):
        run(engine, tmp_path)
    assert engine.names[-1] == "remove"


def test_progress_is_reported(tmp_path: Path) -> None:
    engine = Engine(status=-1, output=b"unpacking\n")
    said: list[str] = []
    stop = threading.Event()

    def say(text: str) -> None:
        said.append(text)
        if text.endswith("unpacking"):
            stop.set()

    with (
        mock.patch.object(image_build, "LOOK", 0.001),
        mock.patch.object(image_build, "TELL_AFTER", 0.0),
        pytest.raises(EnvironmentBuildFailed, match="interrupted"),
    ):
        build_image(engine, BUILD, TAG, [], log=tmp_path / "log", say=say, stop=stop)
    assert said[-1].startswith("still building the environment (0 s): ")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (APIError("x", explanation="write /x: no space left on device"), EngineFailed),
        (NotFound("x", explanation="No such container: 1e28"), EngineFailed),
        (RequestsConnectionError("aborted"), EngineFailed),
        (APIError("x", explanation="bash: executable file not found"), EnvironmentBuildFailed),
    ],
)
def test_the_engine_s_own_error_is_one_sentence(
    error: Exception, kind: type[EnvironmentBuildFailed], tmp_path: Path
) -> None:
    engine = Engine()
    said = re.escape(str(getattr(error, "explanation", None) or error))
    with (
        mock.patch.object(engine, "put_archive", side_effect=error),
        pytest.raises(EnvironmentBuildFailed, match=f"^the engine cannot build the layer: {said}$") as caught,
    ):
        run(engine, tmp_path)
    assert type(caught.value) is kind
    assert engine.names == ["create", "remove"]


def files(engine: Engine, folder: Path) -> dict[str, bytes]:
    log = folder / "build.log"
    return build_files(engine, BUILD, [], "/left", log=log, say=print, stop=threading.Event())


def test_files_that_a_build_leaves_are_handed_back_without_an_image(tmp_path: Path) -> None:
    engine = Engine()
    engine.left = files_as_tar({"a.txt": b"1", "b": b""}, "left", folders=["left", "left/empty"])
    assert files(engine, tmp_path) == {"a.txt": b"1", "b": b""}
    assert "commit" not in engine.names and engine.names[-1] == "remove"


def test_too_large_files_and_failed_builds_hand_back_nothing(tmp_path: Path) -> None:
    engine = Engine()
    engine.left = bytes(MOST_FILES + 1)
    with pytest.raises(EnvironmentBuildFailed, match="the layer left more than 4 MiB of files"):
        files(engine, tmp_path)
    failed = Engine(status=1, output=b"error: no\n")
    with pytest.raises(EnvironmentBuildFailed, match="error: no"):
        files(failed, tmp_path)
    assert engine.names[-1] == failed.names[-1] == "remove"
