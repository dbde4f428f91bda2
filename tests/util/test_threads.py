"""What an interrupted command waits for."""

from __future__ import annotations

import asyncio
import os
import signal
import threading

import pytest

from m3agent.cli.common import run
from m3agent.util.threads import uninterrupted


def interrupted(*, whole: bool) -> bool:
    """Interrupt a command while a thread works; return whether the command waited for the thread."""
    release, ended = threading.Event(), threading.Event()

    def work() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        release.wait(0.2 if whole else 20)
        ended.set()

    async def command() -> None:
        await (uninterrupted(work) if whole else asyncio.to_thread(work))

    try:
        with pytest.raises(KeyboardInterrupt):
            run(command())
        return ended.is_set()
    finally:
        release.set()


def test_ctrl_c_does_not_wait_for_a_thread_that_reads() -> None:
    assert not interrupted(whole=False)


def test_ctrl_c_waits_for_work_that_must_not_stop_in_the_middle() -> None:
    assert interrupted(whole=True)


def test_an_uninterrupted_command_waits_for_its_threads() -> None:
    ended = threading.Event()

    async def command() -> None:
        asyncio.get_running_loop().run_in_executor(None, ended.set)

    run(command())
    assert ended.is_set()
