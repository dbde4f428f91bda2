"""Sessions on disk: the event log, the messages of the conversation, listing, forking and removal.

The event log is the only record; everything else is computed from it.
"""
