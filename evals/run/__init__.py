"""Runs an agent at benchmark instances: which attempt when, one attempt from its checkout to its grade, what is seen."""
