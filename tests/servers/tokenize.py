"""A real HTTP server on loopback that tokenizes as model servers do, or fails to."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any, Literal

from tests.servers.loopback import LoopbackServer, QuietHandler


class TokenizeServer(LoopbackServer):
    """Answers POST /tokenize by `encode`, in the format of `dialect`; each of `faults` first replaces one answer.

    A fault is (status, body, headers); for status 0 the server hangs up. vLLM serves only /tokenize, SGLang also
    /v1/tokenize.
    """

    def __init__(
        self,
        encode: Callable[[str], list[int]],
        *,
        dialect: Literal["vllm", "sglang", "none"] = "vllm",
        model: str = "m3",
    ) -> None:
        self.encode = encode
        self.dialect = dialect
        self.model = model
        self.faults: list[tuple[int, bytes, dict[str, str]]] = []
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.connections = 0
        self.most_at_once = 0
        self._at_once = 0
        self._lock = threading.Lock()
        server = self

        class Handler(QuietHandler):
            def setup(self) -> None:
                super().setup()
                with server._lock:
                    server.connections += 1

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with server._lock:
                    server._at_once += 1
                    server.most_at_once = max(server.most_at_once, server._at_once)
                    server.bodies.append(body)
                    server.headers.append({name.lower(): value for name, value in self.headers.items()})
                    fault = server.faults.pop(0) if server.faults else None
                try:
                    status, answer, headers = fault or server._answer(self.path, body)
                finally:
                    with server._lock:
                        server._at_once -= 1
                if status == 0:
                    self.close_connection = True
                    return
                self.answer(status, answer, headers)

        super().__init__(Handler)

    @property
    def url(self) -> str:
        return f"http://{self.host}/v1"

    def _answer(self, path: str, body: dict[str, Any]) -> tuple[int, bytes, dict[str, str]]:
        paths = {"vllm": ["/tokenize"], "sglang": ["/tokenize", "/v1/tokenize"], "none": []}[self.dialect]
        if path not in paths:
            return _json(404, {"detail": "Not Found"})
        if body.get("model", self.model) != self.model and self.dialect == "vllm":
            message = f"The model `{body['model']}` does not exist."
            error = {"message": message, "type": "NotFoundError", "param": "model", "code": 404}
            return _json(404, {"error": error})
        ids = self.encode(body["prompt"])
        if body.get("add_special_tokens", True):
            ids = [0, *ids]
        answer = {"tokens": ids, "count": len(ids), "max_model_len": 524288}
        return _json(200, answer | ({"token_strs": None} if self.dialect == "vllm" else {}))


def _json(status: int, body: object) -> tuple[int, bytes, dict[str, str]]:
    return status, json.dumps(body).encode(), {"Content-Type": "application/json"}
