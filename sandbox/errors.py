"""What can go wrong with a sandbox, each a type of its own.

A dead or unusable sandbox is always one of these, never something the model is shown as the result of a call.
"""


class SandboxError(Exception):
    """The sandbox could not do what was asked; the text is one sentence for the user."""


class EngineUnavailable(SandboxError):
    """No container engine or bubblewrap that can be used answers on this machine."""


class ImageMissing(SandboxError):
    """The container image is not there, or lacks what every sandbox needs (python3)."""


class SandboxDied(SandboxError):
    """The sandbox ended, or was ended by someone else, while it was in use."""


class SandboxTimeout(SandboxError):
    """The sandbox itself stopped answering (a command's own time limit is not an error)."""


class OutOfMemory(SandboxDied):
    """The whole sandbox was killed for memory."""


class DiskFull(SandboxError):
    """The sandbox's work tree is full, or the host's disk is."""


class PathEscapes(SandboxError):
    """A path leaves the work tree, or passes through a link or special file."""


class FileProblem(SandboxError):
    """A file in the work tree cannot be read or written as asked (missing, a folder, not a plain file)."""
