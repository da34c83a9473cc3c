"""How much memory is there, and how much of it the K/V pool should take.

The pool of a quantised format has room for a few open blocks in fp16 beside the sealed bytes of all; both
count.
"""

from __future__ import annotations

import os
from pathlib import Path

from ostinato.cache.layout import KVCacheSpec
from ostinato.config_sections import CacheConfig, SchedulerConfig
from ostinato.errors import ConfigError
from ostinato.sizes import format_size

SHARE_OF_FREE_MEMORY = 4
"""The pool takes one part in this many by default."""
MAX_FULL_CONTEXTS = 64
"""The default pool is never larger than this many sequences of the maximum length."""
MIN_BLOCKS = 2
MIN_TOKENS = 64


def max_open_blocks(config: SchedulerConfig, spec: KVCacheSpec) -> int:
    """Blocks of a quantised pool that are open at once at most: all that one step writes to; else 0.

    A sequence's first token of a step may go to a block of its own, and so may its second, where the first
    filled one; every further block takes `block_size` tokens.
    """
    if not spec.dtype.is_quantised:
        return 0
    seqs, tokens = config.max_num_seqs, config.max_num_batched_tokens
    second = min(seqs, tokens - seqs)
    return seqs + second + (tokens - seqs - second) // spec.block_size


def pool_bytes(spec: KVCacheSpec, num_blocks: int, max_open: int) -> int:
    """Memory of a pool, open blocks included, of which there are never more than blocks."""
    num_open = min(num_blocks, max_open)
    return num_blocks * spec.bytes_per_block + num_open * spec.bytes_per_open_block


def blocks_in(memory: int, spec: KVCacheSpec, max_open: int) -> int:
    """The largest pool that takes at most `memory` bytes: the inverse of `pool_bytes`."""
    if max_open == 0:
        return memory // spec.bytes_per_block
    all_open = memory // (spec.bytes_per_block + spec.bytes_per_open_block)
    if all_open < max_open:
        return all_open
    return (memory - max_open * spec.bytes_per_open_block) // spec.bytes_per_block


def pool_blocks(config: CacheConfig, spec: KVCacheSpec, max_model_len: int, max_open: int) -> int:
    """Blocks of the K/V pool: as configured, else by free memory.

    Args:
        config: how large it should be.
        spec: of a block.
        max_model_len: longest sequence, in tokens.
        max_open: of `max_open_blocks`.

    Raises:
        ConfigError: if the pool could hardly serve anybody, or is larger than the machine's memory.
    """
    if config.num_blocks is not None:
        blocks, setting = config.num_blocks, "cache.num_blocks"
    elif config.kv_memory_bytes is not None:
        blocks = blocks_in(config.kv_memory_bytes, spec, max_open)
        setting = "cache.kv_memory_bytes"
    else:
        blocks = blocks_in(available_memory() // SHARE_OF_FREE_MEMORY, spec, max_open)
        blocks = min(blocks, MAX_FULL_CONTEXTS * spec.blocks_for(max_model_len))
        setting = "a quarter of the free memory (set cache.kv_memory_bytes to choose another size)"
    _require_memory(setting, blocks, spec, max_open)
    least = max(MIN_BLOCKS, spec.blocks_for(min(MIN_TOKENS, max_model_len)))
    if blocks < least:
        raise ConfigError(
            f"{setting} gives a K/V pool of {blocks} blocks of {spec.block_size} tokens; "
            f"at least {least} blocks ({pool_bytes(spec, least, max_open)} bytes) are needed"
        )
    return blocks


def _require_memory(setting: str, blocks: int, spec: KVCacheSpec, max_open: int) -> None:
    """Pages are committed as they are used, so more than is free now is allowed; more than there is, not."""
    total = total_memory()
    if (wanted := pool_bytes(spec, blocks, max_open)) <= total:
        return
    fits = blocks_in(available_memory(), spec, max_open)
    raise ConfigError(
        f"{setting} asks for a K/V pool of {format_size(wanted)}, and this machine has "
        f"{format_size(total)} of memory: at most {fits:,} blocks "
        f"({format_size(pool_bytes(spec, fits, max_open))}) fit in what is free now"
    )


def total_memory(group: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes of memory that this process could have at most: the machine's, or its container's."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = _container_limit(group)
    return physical if limit is None else min(physical, limit)


def available_memory(meminfo: Path = Path("/proc/meminfo")) -> int:
    """Bytes that can be taken without swapping.

    Linux says so; elsewhere (macOS) half of the physical memory is a fair guess. A container's own limit
    is respected where it is visible.
    """
    available = _linux_available(meminfo)
    if available is None:
        available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    limit = _container_available(Path("/sys/fs/cgroup"))
    return available if limit is None else min(available, limit)


def _linux_available(meminfo: Path) -> int | None:
    if not meminfo.is_file():
        return None
    for line in meminfo.read_text(encoding="ascii").splitlines():
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            return int(rest.split()[0]) * 1024
    return None


def _container_available(group: Path) -> int | None:
    """What a cgroup (version 2) leaves; None without one or without a limit."""
    limit, used = _container_limit(group), group / "memory.current"
    if limit is None or not used.is_file():
        return None
    return max(limit - int(used.read_text(encoding="ascii")), 0)


def _container_limit(group: Path) -> int | None:
    file = group / "memory.max"
    text = file.read_text(encoding="ascii").strip() if file.is_file() else "max"
    return None if text == "max" else int(text)
