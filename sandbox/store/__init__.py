"""Trees of files in a git repository that m3agent owns: checkpoints, patches, and the sandbox's work tree.

Git reads no configuration of the user's repository here.
"""
