"""`m3agent` that repeats a request to a model server after 20 ms instead of seconds."""

from __future__ import annotations

from m3agent.cli.__main__ import main
from m3agent.serving.client import retry

if __name__ == "__main__":
    retry._LONGEST_ANSWER_BACKOFF = 0.02
    main()
