"""Run the command line: `python -m m3agent.agent` is `python -m m3agent`."""

import runpy

if __name__ == "__main__":
    runpy.run_module("m3agent", run_name="__main__", alter_sys=True)
