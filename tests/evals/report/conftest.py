"""Hypothesis without a time limit for each example: that would fail on a busy machine, not on a fault."""

from hypothesis import settings

settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")
