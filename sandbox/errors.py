"""Errors of a sandbox, one type for each cause.

A dead or unusable sandbox always raises one of these. The model never sees them as the result of a call.
"""


class SandboxError(Exception):
    """The sandbox could not fulfil a request; the text is one sentence for the user."""


class EngineUnavailable(SandboxError):
    """This machine has neither a working container engine nor a working bubblewrap.

    Attributes:
        permission_denied: An engine is there, but this user may not use it.
    """

    def __init__(self, text: str, *, permission_denied: bool = False) -> None:
        super().__init__(text)
        self.permission_denied = permission_denied


class ImageMissing(SandboxError):
    """The container image is missing, or lacks python3, which every sandbox needs."""


class SandboxDied(SandboxError):
    """The sandbox ended, or something else stopped it, while it was in use."""


class SandboxTimeout(SandboxError):
    """The sandbox itself stopped answering (a command's own timeout is not an error)."""


class OutOfMemory(SandboxDied):
    """The whole sandbox was killed for lack of memory."""


class DiskFull(SandboxError):
    """The sandbox's work tree or the host's disk is full."""


class PathEscapes(SandboxError):
    """A path leaves the work tree, or passes through a link or special file."""


class FileProblem(SandboxError):
    """A file in the work tree cannot be read or written: it is missing, a folder, or not a plain file."""


class EnvironmentBuildFailed(SandboxError):
    """An environment could not be built; the sentence says why and where the log is."""


class EngineFailed(EnvironmentBuildFailed):
    """The engine failed during a build: it stopped answering, its disk is full, or something removed what it works on.

    What was to be built is not to blame; the same build may succeed later.
    """
