"""General edits: what ordinary mistakes look like, undone."""
