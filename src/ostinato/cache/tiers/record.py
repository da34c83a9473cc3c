"""BlockRecord: 256 bytes that describe one stored block, on disk and on a remote server alike.

    offset  bytes
       0      4   magic "OKVB"
       4      2   format version
       6      1   kind of the block's checksum (`ChecksumKind`)
       7      1   flags: 1 has a parent, 2 is retained, 4 is retained hard
       8      4   depth: blocks before it
      12      4   checksum of the block
      16      8   length of the block
      24      8   order of use (`Evictable.last_used`), float64
      32      8   time of storing, seconds since 1970, float64
      40      4   reuses so far
      44     32   key: chain hash
      76     32   parent's key, or zeros
     108      8   retained until, seconds since 1970, float64
     116      8   seconds that a hit adds again, float64
     124      2   length of the tenant's name
     126    126   the tenant's name, UTF-8
     252      4   CRC-32 of the 252 bytes before

All little-endian. A record that is all zeros is an empty place.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

from ostinato.cache.identity import BlockIdentity
from ostinato.cache.retention import Retention
from ostinato.cache.tiers.base import TierBlock
from ostinato.cache.tiers.checksum import PREFERRED, can_check
from ostinato.cache.types import BlockHash, TenantId

FORMAT_VERSION = 1
RECORD_BYTES = 256
MAX_TENANT_BYTES = 126
EMPTY = bytes(RECORD_BYTES)

_MAGIC = b"OKVB"
_BODY = struct.Struct(f"<4sHBBIIQddI32s32sddH{MAX_TENANT_BYTES}s")
_CRC = struct.Struct("<I")
_HAS_PARENT, _RETAINED, _HARD = 1, 2, 4


class DamagedRecordError(ValueError):
    """The bytes are no record."""


class ForeignRecordError(ValueError):
    """A sound record of another format version, or with a checksum that cannot be computed here."""


@dataclass(frozen=True, slots=True)
class BlockRecord:
    """What is stored beside a block's content.

    Attributes:
        identity: name, parent, depth and tenant.
        checksum: of the content.
        num_bytes: length of the content.
        retention: what was promised, or None.
        order: `Evictable.last_used` when it was written.
        stored_at: seconds since the Unix epoch.
        hits: reuses when it was written.
        checksum_kind: see `ChecksumKind`.
    """

    identity: BlockIdentity
    checksum: int
    num_bytes: int
    retention: Retention | None
    order: float
    stored_at: float
    hits: int = 0
    checksum_kind: int = PREFERRED

    @property
    def block(self) -> TierBlock:
        return TierBlock(self.identity, self.retention)

    def pack(self) -> bytes:
        """`RECORD_BYTES` bytes.

        Raises:
            ValueError: if the tenant's name is longer than `MAX_TENANT_BYTES`.
        """
        identity, retention = self.identity, self.retention
        tenant = identity.tenant.encode()
        if len(tenant) > MAX_TENANT_BYTES:
            raise ValueError(
                f"a tenant's name may have {MAX_TENANT_BYTES} bytes, not {len(tenant)}"
            )
        flags = 0 if identity.parent is None else _HAS_PARENT
        if retention is not None:
            flags |= _RETAINED | (_HARD if retention.hard else 0)
        body = _BODY.pack(
            _MAGIC,
            FORMAT_VERSION,
            self.checksum_kind,
            flags,
            identity.depth,
            self.checksum,
            self.num_bytes,
            self.order,
            self.stored_at,
            min(self.hits, 0xFFFFFFFF),
            identity.key,
            identity.parent or b"",
            0.0 if retention is None else retention.until,
            0.0 if retention is None else retention.ttl,
            len(tenant),
            tenant,
        )
        return body + _CRC.pack(zlib.crc32(body))

    @classmethod
    def unpack(cls, data: bytes | memoryview) -> BlockRecord:
        """The record in `data`.

        Raises:
            DamagedRecordError: if its length, magic, checksum or text is wrong.
            ForeignRecordError: if this version cannot use it.
        """
        if len(data) != RECORD_BYTES or data[:4] != _MAGIC:
            raise DamagedRecordError("not a record")
        if zlib.crc32(data[: _BODY.size]) != _CRC.unpack_from(data, _BODY.size)[0]:
            raise DamagedRecordError("the record does not match its checksum")
        (_, version, kind, flags, depth, crc, num_bytes, order, stored_at, hits, key, parent, until,
         ttl, tenant_bytes, tenant) = _BODY.unpack_from(data)  # fmt: skip
        if version != FORMAT_VERSION or not can_check(kind):
            raise ForeignRecordError(f"format version {version}, checksum kind {kind}")
        name = TenantId(tenant[:tenant_bytes].decode(errors="replace"))
        before = BlockHash(parent) if flags & _HAS_PARENT else None
        retention = Retention(until, bool(flags & _HARD), ttl) if flags & _RETAINED else None
        identity = BlockIdentity(BlockHash(key), before, depth, name)
        return cls(identity, crc, num_bytes, retention, order, stored_at, hits, kind)
