"""Provide the code of an instance: from an archive, a git repository, a folder or an image.

`checkout` also shows that the fix cannot be found in what the agent gets.
"""
