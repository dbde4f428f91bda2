"""Provide the code of an instance: from an archive, a git repository or a folder.

`leak_proof` shows that the fix cannot be found in what the agent gets.
"""
