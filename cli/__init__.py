"""Parse the command line and print the results; each module is one command.

Besides `m3agent.integrations`, only this package imports `m3agent.evals`. A command imports what it needs when it runs, so that `--help` stays fast.
"""
