"""Talk to GitHub and GitLab: read issues; read, open and answer pull requests."""
