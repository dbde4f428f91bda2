"""m3agent: an agentic coding harness for MiniMax M3."""

__version__ = "0.1.0"
