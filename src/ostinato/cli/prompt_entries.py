"""The prompt cache of a server, whose entries outlive a start where its K/V does."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ostinato.clock import Clock
    from ostinato.config import OstinatoConfig
    from ostinato.engine.async_engine import AsyncEngine
    from ostinato.product.entry_writer import EntryWriter
    from ostinato.product.prompt_cache import PromptCache


@dataclass(frozen=True, slots=True)
class ServedPromptCache:
    """A prompt cache and where its entries are.

    Attributes:
        cache: of the server.
        writer: keeps its entries; None: they end with the process.
        place: where they are and why, for people; None under rules that have no entries.
    """

    cache: PromptCache
    writer: EntryWriter | None
    place: str | None


@contextlib.contextmanager
def prompt_cache_of(
    config: OstinatoConfig, clock: Clock, secret: bytes, engine: AsyncEngine
) -> Iterator[ServedPromptCache]:
    """Made once the engine has its tiers; in the end, writes what is left.

    A file that cannot be used is no error: entries say what may be read, and cost a write where they are lost.
    """
    from ostinato.product.entries import EntryBook
    from ostinato.product.prompt_cache import PromptCache
    from ostinato.product.rules import house_rules

    rules = house_rules(config.product.house_rules)
    block_size = engine.limits.block_size
    if not rules.has_entries:
        yield ServedPromptCache(PromptCache(clock, secret, rules, block_size), None, None)
        return
    writer, place = _writer(config, clock, engine)
    if writer is None:
        yield ServedPromptCache(PromptCache(clock, secret, rules, block_size), None, place)
        return
    with contextlib.closing(writer):
        book = EntryBook(clock, journal=writer, kept=writer.kept)
        yield ServedPromptCache(PromptCache(clock, secret, rules, block_size, book), writer, place)


def _writer(
    config: OstinatoConfig, clock: Clock, engine: AsyncEngine
) -> tuple[EntryWriter | None, str]:
    """With where it writes, or why there is none."""
    from ostinato.cache.types import Tier
    from ostinato.product.entry_file import FILE_NAME, EntryFile, EntryFileInUseError
    from ostinato.product.entry_writer import EntryWriter

    tiers = engine.stats().tiers
    lasting = {Tier.DISK, Tier.REMOTE}
    if tiers is None or not any(one.tier in lasting for one in tiers.tiers):
        return None, "in memory: no tier keeps their K/V beyond this process (--disk-tier)"
    path = config.data_dir / FILE_NAME
    try:
        writer = EntryWriter(EntryFile(path), clock)
    except EntryFileInUseError:
        return None, f"in memory: another server uses {path} (--data-dir names another folder)"
    except (OSError, sqlite3.Error) as error:
        return None, f"in memory: {path} cannot be used ({error})"
    return writer, f"{path}; {len(writer.kept):,} from an earlier start"
