"""Attempts on the nodes of a cluster instead of on this machine."""
