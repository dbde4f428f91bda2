"""Makes a benchmark of a repository's own history."""
