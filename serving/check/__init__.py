"""Whether a running model server can be trusted with agent work: its parsers, its tokenizer, its cache, its settings."""
