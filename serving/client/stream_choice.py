"""Decide whether a request asks for a stream: between client and server, something may break every stream."""

from m3agent.serving.errors import EndpointRefused, ModelServerError, NoAnswer

_BROKEN_STREAMS = 2  # in a row, in one turn
_WHOLE_TURNS = 2  # in a row
_NOT_IMPLEMENTED = 501


class StreamChoice:
    """Decides for each attempt of one conversation: request a stream, or the whole answer at once.

    - A turn that broke two streams in a row is requested whole. If the whole answer fails as well, streams
      get another chance: a proxy may also limit how long a request without data may take.
    - After two such turns in a row, later turns are requested whole at once.
    - If the server refuses to answer whole, it is only asked for streams.
    """

    def __init__(self) -> None:
        self._broken = 0  # streams in a row
        self._whole_turns = 0
        self._refused = False

    @property
    def streams(self) -> bool:
        """Whether the next attempt asks for a stream."""
        return self._refused or self._broken < _BROKEN_STREAMS

    @property
    def explanation(self) -> str:
        """What the next attempt does differently, as a sentence; empty if it is an ordinary one."""
        if self._refused:
            return "The server refuses to answer without streaming, so m3agent asks for a stream again."
        return "" if self.streams else "m3agent now asks for the same answer without streaming."

    def begin_turn(self) -> None:
        """Begin the first attempt of a turn."""
        self._broken = _BROKEN_STREAMS if self._whole_turns >= _WHOLE_TURNS else 0

    def succeeded(self) -> None:
        """Note that the attempt brought the answer."""
        self._whole_turns = 0 if self.streams else self._whole_turns + 1

    def stream_broke(self) -> None:
        """Note that the stream of the attempt broke."""
        self._broken += 1

    def whole_failed(self, error: ModelServerError) -> bool:
        """Note that the whole answer failed.

        Returns:
            Whether the server can stream only, or sent something that is no answer.
        """
        self._broken = _BROKEN_STREAMS - 1
        if isinstance(error, NoAnswer):
            return True
        if not isinstance(error, EndpointRefused) or (error.retriable and error.status != _NOT_IMPLEMENTED):
            return False
        self._refused = True
        return True
