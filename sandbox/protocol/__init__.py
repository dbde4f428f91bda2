"""The supervisor, which runs commands inside the sandbox, and the channel to it.

`supervisor` runs on the sandbox's own Python and imports only the standard library.
"""
