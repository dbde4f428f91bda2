"""Create a benchmark from a repository's own history.

Contains the search for bug fixes (`history`, `mine`), the making of an instance from each (`create`, `statement`, `rewrite`), its
validation (`graded`) and the output folder (`folder`).
"""
