"""Measure how often verdicts are right in a repository: verify its own fixes, and wrong variants of them."""
