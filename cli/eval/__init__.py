"""The commands of `m3agent eval`; each module adds its commands to `eval_app`.

The work itself is in `m3agent.evals`.
"""

from m3agent.cli.eval import card, create, export, grade, report, run, verdicts
from m3agent.cli.eval.app import eval_app

__all__ = ["card", "create", "eval_app", "export", "grade", "report", "run", "verdicts"]
