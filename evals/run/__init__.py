"""Run an agent on benchmark instances.

Contains the order of attempts (`schedule`, `run`), one attempt from checkout to grade (`attempt`, `parts`),
the agents (`own_agent`, `other_agent`) and the progress display (`progress`, `estimate`).
"""
