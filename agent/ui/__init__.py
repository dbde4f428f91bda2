"""Show a session in the terminal: events as lines, a live status row, the state of a server that starts.

It only reads events; it decides nothing.
"""
