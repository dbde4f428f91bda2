"""What a repository says it needs: read from its files as data, nothing of it is run."""
