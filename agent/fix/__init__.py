"""Run a fix from request to result: prepare the attempts, run them, rank them, finalize the best.

The Python API and the commands `fix` and `sessions resume` start here.
"""
