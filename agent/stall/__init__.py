"""Notices a run that is stuck: `StallDetector` is fed with calls and answers and says what to do about it."""

from m3agent.agent.stall.detector import StallDetector
from m3agent.agent.stall.feed import as_seen
from m3agent.agent.stall.seen import Seen, Verdict
from m3agent.agent.stall.thresholds import QUIET, Thresholds

__all__ = ["QUIET", "Seen", "StallDetector", "Thresholds", "Verdict", "as_seen"]
