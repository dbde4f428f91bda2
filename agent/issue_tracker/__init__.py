"""Issues that live on GitHub or GitLab: how they are named, and how they are fetched."""
