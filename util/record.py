"""`dataclass` for the modules of a cached pack: importing dataclasses takes longer than packing."""

from __future__ import annotations

__all__ = ["record"]

TYPE_CHECKING = False  # type checkers take this for true; the modules are slow to import
if TYPE_CHECKING:
    from dataclasses import dataclass as record
else:

    def record(cls):
        """Give a class an `__init__` for its fields; type checkers see that none is missing. Equal is only the same object."""
        names = tuple(cls.__annotations__)

        def __init__(self, *values, **named):
            self.__dict__.update(zip(names, values, strict=False), **named)

        cls.__init__ = __init__
        return cls
