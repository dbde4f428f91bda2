"""Report the results of a run.

Contains the computation of rates with intervals, amounts and comparisons (`tally`, `model`, `statistics`,
`paired`,
`amounts`, `compare`), and the outputs: table, HTML page, JSON, JUnit XML and the official formats.
"""
