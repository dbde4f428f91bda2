"""See a pull request through: read its checks and comments, continue the session, and push further commits (`m3agent pr follow`)."""
