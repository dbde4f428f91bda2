"""Report the results of a run.

Contains the computation of rates with intervals, amounts and comparisons (`counting`, `model`, `statistics`), and the outputs:
table, HTML page (`page`), and JSON, JUnit XML and the official formats (`exports`).
"""
