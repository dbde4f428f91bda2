"""Benchmarks: data, environments, runs, grading and reports."""
