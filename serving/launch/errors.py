"""Errors that prevent the start of an engine."""


class LaunchError(Exception):
    """This machine lacks something that a way to start engines needs.

    The message says in one sentence what is missing and how to get it.
    """
