"""Parse the command line and print the results; each module is one command.

Only this package imports `m3agent.evals`. A command imports what it needs when it runs, so that `--help` stays fast.
"""
