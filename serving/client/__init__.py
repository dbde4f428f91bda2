"""Talk to a model server over HTTP: build requests, read streams, retry, count tokens and prices.

The server may be any engine, and every answer is checked.
"""

TYPE_CHECKING = False  # type checkers assume that it is true; the client takes long to import
if TYPE_CHECKING:
    from typing import Any

    from m3agent.serving.client.client import Client as Client
    from m3agent.serving.client.client import RetryNote as RetryNote

__all__ = ["Client", "RetryNote"]


def __getattr__(name: str) -> "Any":
    if name in __all__:
        from m3agent.serving.client import client

        return getattr(client, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
