"""Run an agent on benchmark instances.

Contains the order of attempts (`schedule`, `run`), one attempt from checkout to grade (`attempt`, `protocols`),
the agents (`own_agent`, `other_agent`), the progress display (`progress`, `estimate`), and the same on a Ray cluster
(`cluster`).
"""
