"""Talk to GitHub and GitLab: what addresses mean, and one client each that reads issues and reads, opens and answers pull requests."""
