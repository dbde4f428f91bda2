"""See a pull request through: read its checks and comments, continue the session, push further commits."""
