"""Launching M3 on GPUs: the documented recipes, what agent work changes in them, what fits where, and what goes wrong."""
