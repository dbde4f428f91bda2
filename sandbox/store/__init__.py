"""Trees of files in a git repository that m3agent owns: checkpoints and patches.

Git reads no configuration of the user's repository here.
"""
