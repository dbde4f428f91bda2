"""Decide which hosts a sandbox may reach, and carry its traffic to them.

A sandbox has no network of its own; the proxy on the host opens each connection.
"""
