"""Run an agent on benchmark instances.

Contains the order of attempts (`evaluate`), one attempt from checkout to grade (`attempt`, `parts`), the agents
(`own_agent`, `other_agent`), the progress display (`progress`), and the same on a Ray cluster (`cluster`).
"""
