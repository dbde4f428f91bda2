"""Prepare a quick import of the OpenAI SDK.

`import openai` imports 500 modules, of which 370 define the types of an API that m3agent does not use. That takes half of the
import's time: 0.3 s of every `fix`.
"""

import importlib.util
import sys
import threading
from importlib.machinery import PathFinder
from types import ModuleType

_UNUSED = ("openai.types", "openai.types.responses")
"""Packages of types, parents first. The SDK's client needs a few of their modules and nothing of the packages themselves."""

_lock = threading.RLock()


class _LazyPackage(ModuleType):
    """A package whose `__init__.py` runs when someone asks for a name in it, and not before a module in it is imported."""

    def __getattr__(self, name: str) -> object:
        with _lock:  # another thread waits here until `__init__.py` has run
            if type(self) is _LazyPackage and self not in _running:
                assert self.__spec__ is not None
                assert self.__spec__.loader is not None
                _running.append(self)
                try:
                    self.__spec__.loader.exec_module(self)
                finally:
                    _running.remove(self)
                object.__setattr__(self, "__class__", ModuleType)  # an ordinary module from here on
        return ModuleType.__getattribute__(self, name)


_running: list[_LazyPackage] = []


def defer_unused_types() -> None:
    """Let `import openai` leave out what m3agent does not use; it is imported at its first use.

    Do nothing if the SDK is imported already, or has no such packages any more.
    """
    with _lock:
        if "openai" in sys.modules or (sdk := importlib.util.find_spec("openai")) is None:
            return
        folders = sdk.submodule_search_locations
        for name in _UNUSED:
            spec = PathFinder.find_spec(name, folders)
            if spec is None or spec.loader is None or spec.submodule_search_locations is None:
                return
            package = importlib.util.module_from_spec(spec)
            package.__class__ = _LazyPackage
            sys.modules[name] = package
            folders = spec.submodule_search_locations
