"""Measure a model server as an agent experiences it.

The package contains the prompts, the timed requests, the statistics of the results, and their comparison with
a plan or an earlier result.
"""
