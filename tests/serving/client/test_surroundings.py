"""A company's network: a proxy with a password, a certificate authority of its own, and variables that are wrong."""

from __future__ import annotations

import base64
import json
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from m3agent.serving.client.endpoint import probe
from m3agent.serving.client.http import certificates_for, proxy_variable
from m3agent.serving.errors import EndpointUnreachable
from m3agent.util.errors import EnvironmentFault
from tests.servers.loopback import QuietHandler, ServerThread

HOST = "models.company.example"
URL = f"https://{HOST}/v1"
USER, PASSWORD = "ann", "p@ss:word"


class Models(QuietHandler):
    def do_GET(self) -> None:
        listed = [{"id": "m3", "object": "model", "owned_by": "vllm", "max_model_len": 4096}]
        self.answer(200, json.dumps({"data": listed}).encode(), {"Content-Type": "application/json"})


class Connecting(QuietHandler):
    """A proxy for https that asks for a password, and connects each name to one port of this machine."""

    def do_CONNECT(self) -> None:
        assert isinstance(self.server, Proxy)
        self.close_connection = True
        self.server.asked.append(self.path)
        known = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        if self.headers.get("Proxy-Authorization") != f"Basic {known}":
            self.answer(407, b"", {"Proxy-Authenticate": "Basic"})
            return
        with socket.create_connection(("127.0.0.1", self.server.target)) as server:
            self.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
            answers = threading.Thread(target=_copy, args=(server, self.connection))
            answers.start()
            _copy(self.connection, server)
            answers.join()


class Proxy(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, target: int) -> None:
        super().__init__(("127.0.0.1", 0), Connecting)
        self.target = target
        self.asked: list[str] = []


def _copy(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(1 << 16):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        return  # the other side has hung up


def openssl(*arguments: str, cwd: Path) -> None:
    subprocess.run(["openssl", *arguments], cwd=cwd, check=True, capture_output=True)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a certificate authority, `ca.pem`, and a certificate of it for `HOST`."""
    folder = tmp_path_factory.mktemp("authority")
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=Company", cwd=folder)
    openssl("req", *key, "-keyout", "own.key", "-out", "own.csr", "-subj", f"/CN={HOST}", cwd=folder)
    (folder / "names").write_text(f"subjectAltName=DNS:{HOST}\n")
    signing = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "names", "-out", "own.pem")
    openssl("x509", "-req", "-in", "own.csr", *signing, cwd=folder)
    return folder


@pytest.fixture
def proxy(authority: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """Return the only way to the model server of `URL`."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    monkeypatch.delenv("SSL_CERT_DIR", raising=False)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority / "own.pem", authority / "own.key")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Models)
    server.handle_error = lambda *_: None  # type: ignore[method-assign]  # a client that does not trust it hangs up
    server.daemon_threads = True
    server.socket = context.wrap_socket(server.socket, server_side=True)
    between = Proxy(server.server_port)
    with ServerThread(server), ServerThread(between):
        yield between


def address(proxy: Proxy, password: str = "p%40ss%3Aword") -> str:
    return f"http://{USER}:{password}@127.0.0.1:{proxy.server_port}"


@pytest.mark.integration
async def test_a_proxy_with_a_password_and_an_own_authority(
    proxy: Proxy, authority: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", address(proxy))
    monkeypatch.setenv("SSL_CERT_FILE", str(authority / "ca.pem"))
    found = await probe(URL, api_key=None, model=None, timeout=20)
    assert found.model == "m3"
    assert set(proxy.asked) == {f"{HOST}:443"}


@pytest.mark.integration
async def test_an_authority_that_is_not_trusted(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", address(proxy))
    with pytest.raises(EndpointUnreachable, match=r"certificate verify failed.*SSL_CERT_FILE"):
        await probe(URL, api_key=None, model=None, timeout=20)


@pytest.mark.integration
async def test_a_wrong_password_of_a_proxy(
    proxy: Proxy, authority: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", address(proxy, "secret"))
    monkeypatch.setenv("SSL_CERT_FILE", str(authority / "ca.pem"))
    with pytest.raises(EndpointUnreachable, match=r"407 .*\(through the proxy in HTTPS_PROXY\)") as raised:
        await probe(URL, api_key=None, model=None, timeout=20)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("name", ["HTTPS_PROXY", "all_proxy"])
@pytest.mark.parametrize(
    "value", ["ftp://ann:secret@proxy:1", "http://proxy:port", "http://", "socks9://proxy:1"]
)
def test_a_proxy_that_cannot_be_used(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(EnvironmentFault) as raised:
        certificates_for(URL)
    assert str(raised.value) == f"The proxy in {name} cannot be used: write it as http://HOST:PORT."
    assert certificates_for("http://127.0.0.1:8000/v1") is not True, "no proxy is asked for this machine"


@pytest.mark.parametrize("content", [None, b"", b"no certificate\n"])
def test_a_file_without_certificates(
    content: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "ca.pem"
    if content is not None:
        file.write_bytes(content)
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    with pytest.raises(
        EnvironmentFault, match=r"^SSL_CERT_FILE names .*/ca\.pem, which is no file with certi"
    ):
        certificates_for(URL)


def test_which_variable_names_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    assert proxy_variable(URL) == ""
    monkeypatch.setenv("ALL_PROXY", "http://proxy:1")
    assert (proxy_variable(URL), proxy_variable("http://localhost:1/v1")) == ("ALL_PROXY", "")
    monkeypatch.setenv("no_proxy", "company.example")
    assert proxy_variable(URL) == ""
