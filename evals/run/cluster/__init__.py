"""Make attempts on the nodes of a Ray cluster instead of on this machine.

Contains the Ray client (`ray_cluster`), and the code that runs on a node, with the transfer of local code to it (`node`).
"""
