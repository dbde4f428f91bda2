"""Access to issues on GitHub and GitLab.

Contains the parser of issue references and the client that downloads issues with comments and images.
"""
