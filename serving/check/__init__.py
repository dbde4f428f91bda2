"""Check whether a running model server can be trusted with agent work.

The package contains the checks of parsers, tokenizer, cache, model and settings, and the configuration for
Prometheus.
"""
