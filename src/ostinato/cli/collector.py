"""Python's collector of cyclic garbage, kept away from what a start allocates."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def collecting_once_ready() -> Iterator[Callable[[], None]]:
    """Collect nothing until the yielded function is called, and never look at what was there by then.

    A start allocates the vocabulary, the routes and the entries of the tiers, hundreds of thousands of objects
    that all stay: each pass over them finds nothing. Later ones would stop a request for as long.
    """
    gc.disable()

    def ready() -> None:
        gc.freeze()
        gc.enable()

    try:
        yield ready
    finally:
        gc.enable()
        gc.unfreeze()
