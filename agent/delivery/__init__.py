"""Hand over a patch: apply it to the work tree, commit it to a branch, or open a pull request.

A patch is handed over completely or not at all, and never over uncommitted changes.
"""
