"""Provide the code of an instance: from an archive, a git repository, a folder or an image.

`leak_proof` shows that the fix cannot be found in what the agent gets.
"""
