"""Benchmarks' data: what an instance is, and how each format is read."""
