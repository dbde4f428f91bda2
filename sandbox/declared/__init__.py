"""Find out what a repository needs, by reading its files as data; nothing of the repository is executed.

Contains one reader per kind of file, and `read_declared`, which combines their results.
"""
