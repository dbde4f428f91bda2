"""Read XML that strangers wrote, in bounded time and memory. A document that is cut off is read up to the cut."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from xml.parsers import expat

MOST_EVENTS = 200_000
MOST_DEPTH = 100
MOST_TEXT = 64 << 10
"""Most characters of text that an element's content is cut to."""


@dataclass
class Element:
    """An element with its attributes, the text directly in it, and the elements in it.

    Attributes:
        ended: Whether its end tag arrived.
    """

    tag: str
    attributes: Mapping[str, str]
    text: str
    children: list[Element]
    ended: bool = False

    def get(self, name: str) -> str:
        """Return an attribute; empty if it is missing."""
        return self.attributes.get(name, "")

    def all(self, *tags: str) -> list[Element]:
        """Return all elements with one of these tags below this one, in the document's order."""
        found: list[Element] = []
        waiting = list(reversed(self.children))
        while waiting:
            element = waiting.pop()
            if element.tag in tags:
                found.append(element)
            waiting += reversed(element.children)
        return found


class _Refused(Exception):
    """The document is not one that an honest test runner writes."""


def parse_xml(content: bytes) -> Element | None:
    """Return the root of a document, up to the place where the document is cut off.

    Returns:
        None if there is no root, or if the document declares a type or entities, is nested too deeply or is too large.
    """
    parser = expat.ParserCreate()
    parser.buffer_text = True
    root: Element | None = None
    path: list[Element] = []
    events = 0

    def start(tag: str, attributes: dict[str, str]) -> None:
        nonlocal root, events
        events += 1
        if events > MOST_EVENTS or len(path) >= MOST_DEPTH:
            raise _Refused
        element = Element(tag, attributes, "", [])
        if path:
            path[-1].children.append(element)
        else:
            root = element
        path.append(element)

    def end(_: str) -> None:
        path.pop().ended = True

    def text(data: str) -> None:
        if path and len(path[-1].text) < MOST_TEXT:
            path[-1].text += data[:MOST_TEXT]

    def refuse(*_: object) -> None:
        raise _Refused

    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = text
    parser.StartDoctypeDeclHandler = refuse
    parser.EntityDeclHandler = refuse
    try:
        parser.Parse(content, True)
    except _Refused:
        return None
    except expat.ExpatError:
        pass  # cut off, or text of another program in it: what came before counts, and elements stay open
    except (ValueError, LookupError):  # an unknown encoding
        return None
    return root
