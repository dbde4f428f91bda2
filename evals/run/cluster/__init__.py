"""Make attempts on the nodes of a Ray cluster instead of on this machine.

Contains the Ray client (`ray_cluster`), the code that runs on a node (`node`) and the transfer of local code
to the nodes (`sources`).
"""
