"""Read the user's repository without running anything that it configures.

`host_git` and `git_config` decide which configuration git may obey on the host.
"""
