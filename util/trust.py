"""Remember which texts of a repository the user trusts, each by a hash, so that a changed text needs a new decision."""

from __future__ import annotations

import hashlib
from pathlib import Path

from m3agent.util.append_only import fault


class Trust:
    """The user's decision about one text."""

    def __init__(self, folder: Path, *texts: str) -> None:
        digest = hashlib.sha256("\0".join(texts).encode(errors="surrogateescape"))
        self._mark = folder / digest.hexdigest()

    @property
    def given(self) -> bool:
        """Whether the user trusts exactly this text."""
        return self._mark.is_file()

    def give(self) -> None:
        """Trust the text. Raises EnvironmentFault if the decision cannot be stored."""
        try:
            self._mark.parent.mkdir(mode=0o700, exist_ok=True)
            self._mark.touch(mode=0o600)
        except OSError as error:
            raise fault(error, self._mark) from None

    def withdraw(self) -> bool:
        """Stop trusting the text; return whether it was trusted."""
        there = self.given
        self._mark.unlink(missing_ok=True)
        return there
