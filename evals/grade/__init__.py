"""Grade patches: decide whether a patch resolves an instance, in a way that the patch cannot influence.

Contains m3agent's own rules (`strict`, `trees`), the official rules (`official`), and their combination (`grader`, `validate`).
"""
