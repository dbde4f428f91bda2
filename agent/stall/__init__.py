"""Detect a run that makes no progress: `StallDetector` takes calls and answers and returns what to do."""

from m3agent.agent.stall.detector import StallDetector
from m3agent.agent.stall.history import ObservedCall, StallVerdict, as_seen
from m3agent.agent.stall.thresholds import QUIET, Thresholds

__all__ = ["QUIET", "ObservedCall", "StallDetector", "StallVerdict", "Thresholds", "as_seen"]
