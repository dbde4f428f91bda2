"""Planning an M3 server: which GPUs, which checkpoint, how much context, and what is known to go wrong."""
