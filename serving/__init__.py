"""Serving MiniMax M3 and talking to it: the wire format, the client, the endpoint probe, the engines."""
