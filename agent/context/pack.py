"""Pack files into one text that depends only on the files and their history."""

from __future__ import annotations

from collections.abc import Callable

from m3agent.agent.context import rules
from m3agent.agent.context.checkout import Checkout
from m3agent.agent.context.files import WorkTree
from m3agent.agent.context.history import HistoryReader
from m3agent.agent.context.packer import Packing, PackOptions
from m3agent.agent.context.types import Context


def pack(checkout: Checkout, options: PackOptions) -> Context:
    """Pack a repository's files: those of the work tree, or those of the commit if there is no work tree.

    Raises:
        UsageError: The tokenizer cannot be used; or patterns are given for a repository without a work tree.
        EnvironmentFault: git failed.
    """
    return written(collect(checkout, options), lambda path, most: _first_bytes(checkout, path, most))


def collect(checkout: Checkout, options: PackOptions) -> Packing:
    """Return the pack with all files and their history, for `written`. Raises the errors of `pack`."""
    history = None if checkout.shallow else HistoryReader(checkout.repository, checkout.head, options.cache)
    packing = Packing(options)
    if checkout.repository.root is None:
        if options.include or options.exclude:
            from m3agent.util.errors import UsageError

            raise UsageError(
                "--include and --exclude need a work tree, and this repository is bare: give the folder of a clone."
            )
        from m3agent.agent.context.files import read_commit

        for path, found in read_commit(checkout.repository, checkout.head):
            packing.add(path, found)
    else:
        packing.add_tree(checkout.repository, checkout.take_listing())
    if history is not None:
        packing.set_history(history.result())
    return packing


def written(packing: Packing, read: Callable[[str, int], bytes | None]) -> Context:
    """Return the context; `read` returns the first bytes of a file that is too large to be packed."""
    packing.order()
    if packing.large and packing.options.issue:
        from m3agent.agent.context import excerpt

        named = excerpt.excerpts_of_named(packing, lambda path: read(path, excerpt.READ_BYTES))
        context = arranged(packing)
        excerpt.add_to(context, named)
    else:
        context = arranged(packing)
    packing.save()
    return context


def _first_bytes(checkout: Checkout, path: str, most: int) -> bytes | None:
    if checkout.repository.root is None:
        from m3agent.agent.context.files import read_first

        return read_first(checkout.repository, checkout.head, path, most)
    with WorkTree(checkout.repository.folder) as tree:
        found = tree.read(path, most)
    return None if isinstance(found, rules.Reason) else found


def arranged(packing: Packing) -> Context:
    """Return the context with all files in order, or with a selection if they exceed the budget."""
    budget = packing.room
    note = packing.not_shown(budget)
    total = sum(source.tokens for source in packing.sources) + packing.count(note)
    if budget is not None and total > budget:
        from m3agent.agent.context import overflow

        return overflow.arrange(packing, budget)
    if packing.options.frozen:
        from m3agent.agent.context import frozen

        context = frozen.arrange(packing, note)
        if context is not None:
            return context
    pieces = [piece for source in packing.sources for piece in packing.pieces(source)]
    return packing.context([*pieces, note], [source.packed for source in packing.sources], total)
