"""The quick import of the OpenAI SDK. Each case runs in a process of its own, where nothing is imported yet."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration


def run(code: str) -> str:
    return subprocess.run(
        [
            sys.executable,
            "-c",
            f"import sys\nfrom m3agent.serving.client.http import defer_unused_types\n{code}",
        ],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    ).stdout.strip()


@pytest.mark.slow
def test_most_types_are_not_imported() -> None:
    counted = "import openai\nprint(sum(name.startswith('openai.types') for name in sys.modules))"
    assert int(run(f"defer_unused_types()\n{counted}")) < int(run(counted)) / 3


@pytest.mark.slow
@pytest.mark.parametrize(
    "code",
    [
        "import openai.types.responses as r; r.Response.model_rebuild(); from openai.types import Batch",
        "from openai.types import *; ChatModel; from openai.types.responses import Response",
        "import openai; openai.OpenAI(api_key='x').responses; openai.types.chat.ChatCompletion.model_validate",
    ],
)
def test_they_are_there_for_others_in_the_process(code: str) -> None:
    assert run(f"defer_unused_types()\n{code}\nprint('done')") == "done"


@pytest.mark.slow
def test_an_imported_sdk_is_left_alone() -> None:
    assert (
        run("import openai\ndefer_unused_types()\nprint(type(sys.modules['openai.types']).__name__)")
        == "module"
    )


@pytest.mark.slow
def test_several_threads_may_ask_first() -> None:
    code = """
import threading
defer_unused_types()
import openai
found = []
threads = [threading.Thread(target=lambda: found.append(openai.types.Batch)) for _ in range(20)]
for thread in threads: thread.start()
for thread in threads: thread.join()
try:
    openai.types.Nothing
except AttributeError as error:
    print(len(set(found)), len(found), error)
"""
    assert run(code) == "1 20 module 'openai.types' has no attribute 'Nothing'"


def test_another_version_of_the_sdk_without_these_packages_is_imported_as_it_is(tmp_path: Path) -> None:
    code = f"""
import os
folder = os.path.join({str(tmp_path)!r}, "openai")
os.mkdir(folder)
open(os.path.join(folder, "__init__.py"), "w").close()
sys.path.insert(0, {str(tmp_path)!r})
defer_unused_types()
import openai
print(openai.__file__.startswith({str(tmp_path)!r}), [name for name in sys.modules if name.startswith("openai.")])
"""
    assert run(code) == "True []"
