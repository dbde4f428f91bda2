"""Grading: whether a patch resolves an instance, found out of the patch's reach."""
