"""Launching M3 on GPUs: the documented recipes, what agent work changes in them, and what fits where."""
