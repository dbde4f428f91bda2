"""Leaks that are planted in a real image: a run names each of them, and the card's page shows them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from m3agent.evals.card.config import Adapter, Budget, CardConfig, Server
from m3agent.evals.card.model import report_on
from m3agent.evals.card.page import render
from m3agent.evals.card.run import agents_of, make_card, open_runs
from m3agent.evals.data.load import load
from m3agent.evals.environments.environments import Environments
from m3agent.evals.grade.image_leaks import KINDS
from m3agent.evals.run.parts import AttemptParts, standard_parts
from tests.evals.bases import needs_docker
from tests.evals.calc_instance import small_instance
from tests.evals.grade.test_image_leaks import PLANTED, REPOSITORY
from tests.evals.harbor_task import FAULTY, write_task

pytestmark = [
    pytest.mark.slow,  # quick: tests/evals/grade/test_image_leaks.py
    pytest.mark.docker,
    pytest.mark.usefixtures("own_images"),
    pytest.mark.timeout(1200),
    needs_docker,
]
TOML = 'version = "1.0"\n[metadata]\nrepo = "someone/my-calc"\n'
INDEX = """\
import functools, http.server, subprocess, sys, threading, zipfile

name = "my_calc-2.1"
wheel = f"{name}-py3-none-any.whl"
with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as packed:
    packed.writestr(f"{name}.dist-info/METADATA", "Metadata-Version: 2.1\\nName: my-calc\\nVersion: 2.1\\n")
    packed.writestr(f"{name}.dist-info/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
    packed.writestr(f"{name}.dist-info/RECORD", "")


class Files(http.server.SimpleHTTPRequestHandler):
    def end_headers(self):
        self.send_header("Cache-Control", "max-age=600")
        super().end_headers()


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Files)
threading.Thread(target=server.serve_forever, daemon=True).start()
link = f"http://127.0.0.1:{server.server_port}/{wheel}"
pip = [sys.executable, "-m", "pip", "--isolated", "--trusted-host", "127.0.0.1", "--cache-dir", "/root/.cache/pip"]
subprocess.run([*pip, "install", "-q", "--no-deps", link], check=True)
"""
"""Installs a later release of the project with pip, from a server on this machine; pip keeps what a trusted host sent."""
LEAKS = ("refs", "reflogs", "objects", "packages", "downloads", "releases")
PLANT = "".join(
    f"mkdir -p /srv/{kind} && cd /srv/{kind}\n{REPOSITORY}\n{PLANTED[kind]}\n"
    for kind in ("refs", "reflogs", "objects", "packages")
)
"""Makes a repository for each kind of leak in git, and leaves a package file."""


def leaky_dockerfile(image: str) -> str:
    return (
        f"FROM {image}\nWORKDIR /app\nCOPY calc.py .\nCOPY plant.sh index.py /plant/\n"
        "RUN ROOT= bash -e /plant/plant.sh && cd /plant && python index.py && cd / && rm -r /plant\n"
    )


def test_each_planted_leak_is_on_the_page(tmp_path: Path) -> None:
    given = small_instance(tmp_path / "instance").task
    image = asyncio.run(Environments(tmp_path / "state", print).whole_image(given))
    files = {"environment/calc.py": FAULTY, "environment/plant.sh": PLANT, "environment/index.py": INDEX}
    clean = f"FROM {image}\nWORKDIR /app\nCOPY calc.py .\n"
    for name, dockerfile in {"clean": clean, "leaky": leaky_dockerfile(image)}.items():
        write_task(tmp_path / "tasks" / name, TOML, **files, **{"environment/Dockerfile": dockerfile})
    server = Server(endpoint="http://127.0.0.1:9/v1", model="m")
    idle = Adapter(name="idle", command=("true", "{issue}"))
    config = CardConfig(data="tasks", server=server, budget=Budget(), agents=(idle,))
    instances, agents = load(str(tmp_path / "tasks")), agents_of([idle], config, None, None)
    folders = open_runs(tmp_path / "card", config, [idle], instances, "digest")

    def parts(name: str, note: object) -> AttemptParts:
        limits = {"environment": 900.0, "tests": 60.0}
        return standard_parts(agents[name], limits, print)

    make_card(folders, instances, parts, print, asyncio.run, 1)
    card = report_on(folders)
    assert (list(card.leaks), card.agents[0].leaks, card.left_out) == (["leaky"], 1, {})
    page = render(card)
    for kind in (each for each in KINDS if each.name in LEAKS):
        assert any(kind.what in leak for leak in card.leaks["leaky"]), (kind.name, card.leaks)
        assert kind.what in page
