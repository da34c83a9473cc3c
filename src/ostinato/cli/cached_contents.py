"""The cache objects of a server, kept from one start to the next."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ostinato.api.gemini.cached_contents import CachedContents
    from ostinato.clock import Clock
    from ostinato.config import OstinatoConfig
    from ostinato.ledger.writer import LedgerWriter

FILE_NAME = "cached_contents.sqlite3"


@contextlib.contextmanager
def cached_contents_of(
    config: OstinatoConfig, clock: Clock, ledger: LedgerWriter | None
) -> Iterator[CachedContents]:
    """Cache objects from the data folder; those that expire meanwhile are erased in the background.

    Raises:
        ConfigError: the file cannot be used.
    """
    from ostinato.api.gemini.cache_store import CacheStore
    from ostinato.api.gemini.cached_contents import CachedContents, ExpirySweeper
    from ostinato.api.recording import NoLedger

    with contextlib.closing(CacheStore(config.data_dir / FILE_NAME)) as store:
        contents = CachedContents(store, clock, ledger or NoLedger(), config.product.house_rules)
        sweeper = ExpirySweeper(contents)
        sweeper.start()
        try:
            yield contents
        finally:
            sweeper.stop()
