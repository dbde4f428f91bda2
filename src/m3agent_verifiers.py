"""The name under which Verifiers finds m3agent: it takes plug-ins only from top-level modules."""

from m3agent.integrations.verifiers import BenchmarkTaskset, M3AgentHarness

__all__ = ["BenchmarkTaskset", "M3AgentHarness"]
