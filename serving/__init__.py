"""Serve MiniMax M3 and talk to its servers.

Contains the wire format, the client, the endpoint probe, and the tools that plan, start, check and measure
inference engines.
"""
