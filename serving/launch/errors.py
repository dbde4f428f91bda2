"""What keeps an engine from being started at all."""


class LaunchError(Exception):
    """This machine lacks what a way of starting engines needs: one sentence that says what and how to get it."""
