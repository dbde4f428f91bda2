"""The commands that start, check, measure and manage model servers, and fetch weights; each module adds its commands to `serve_app`.

The work itself is in `m3agent.serving`.
"""

from m3agent.cli.serve import bench, check, command, fetch, manage, warm
from m3agent.cli.serve.app import serve_app

__all__ = ["bench", "check", "command", "fetch", "manage", "serve_app", "warm"]
