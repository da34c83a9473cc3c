"""Names for the things that pass through the cache, so that keys are types and not strings."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import NewType

import numpy as np
import numpy.typing as npt

from ostinato.errors import ConfigError

BlockId = NewType("BlockId", int)
"""Index of a block in the pool and of its slice in the storage array."""

BlockHash = NewType("BlockHash", bytes)
"""SHA-256 of one full block, chained on its parent: names a whole prefix. 32 bytes."""

NamespaceKey = NewType("NamespaceKey", bytes)
"""Root of a hash chain; made only by `namespace.NamespaceFactory`. 32 bytes."""

TenantId = NewType("TenantId", str)
"""Whose data it is. Comes from the operator's side (an API key), never from the client."""

_TENANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def tenant_id(name: str) -> TenantId:
    """A tenant's name, checked: it stands in files, in records of 126 bytes for it, and in labels of metrics.

    Raises:
        ConfigError: it is not one; says what would be.
    """
    if not _TENANT.fullmatch(name):
        raise ConfigError(
            f"{name!r} cannot be the name of a tenant: use letters, digits, '.', '_' and '-', at most 64,"
            " beginning with a letter or digit"
        )
    return TenantId(name)


DEFAULT_TENANT = TenantId("default")
"""Whose data it is where there are no API keys."""

TokenArray = npt.NDArray[np.int32]
"""Token ids, one-dimensional."""


class Tier(StrEnum):
    """Where K/V was found."""

    DEVICE = "device"
    RAM = "ram"
    DISK = "disk"
    REMOTE = "remote"


class MissReason(StrEnum):
    """Why a prompt's reuse ended where it ended."""

    NONE = "none"
    """All that may be reused was reused (the last token is always computed)."""
    DISABLED = "disabled"
    """Prefix caching is switched off, or the request asked not to read."""
    COLD = "cold"
    """Nothing at all is cached in this namespace (tenant, salt, model, K/V format)."""
    DIVERGED = "diverged"
    """Cached text of this namespace runs along, then differs at this position. Known to the radix index
    only: a hash says that a block is another one, not where it parts; there it is NOT_CACHED."""
    NOT_CACHED = "not_cached"
    """The cached prefix simply ends here: never stored, or evicted since."""
    BELOW_BLOCK = "below_block"
    """What is left is shorter than one block, and the index, or a lower tier, has whole blocks only."""
    RECOMPUTED = "recomputed"
    """A lower tier has more, but computing it is expected to be faster than loading it."""
    LOAD_FAILED = "load_failed"
    """A lower tier had more, but its bytes were damaged, short or gone: they are computed."""
