"""Checksums must be the published ones: blocks are read by other builds and other machines."""

from __future__ import annotations

import pytest

from ostinato.cache.tiers import checksum
from ostinato.cache.tiers.checksum import ChecksumKind

needs_native = pytest.mark.skipif(
    not checksum.can_check(ChecksumKind.CRC32C), reason="the compiled module is not built here"
)


@needs_native
def test_crc_32c_gives_the_values_of_rfc_3720() -> None:
    assert checksum.checksum(b"123456789", ChecksumKind.CRC32C) == 0xE3069283
    assert checksum.checksum(bytes(32), ChecksumKind.CRC32C) == 0x8A9136AA
    assert checksum.checksum(bytes(range(32)), ChecksumKind.CRC32C) == 0x46DD794E


@needs_native
def test_crc_32c_sees_every_byte_of_a_long_block() -> None:
    block = bytearray(3 * 4096 * 3 + 13)
    seen = {checksum.checksum(bytes(block), ChecksumKind.CRC32C)}
    for at in range(0, len(block), 97):
        block[at] ^= 1
        seen.add(checksum.checksum(memoryview(block), ChecksumKind.CRC32C))
        block[at] ^= 1
    assert len(seen) == 1 + len(range(0, len(block), 97))


def test_without_the_compiled_module_zlibs_checksum_is_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(checksum, "_native", None)
    assert checksum.checksum(b"123456789", ChecksumKind.CRC32) == 0xCBF43926
    assert not checksum.can_check(ChecksumKind.CRC32C)
    with pytest.raises(ValueError, match="cannot be computed here"):
        checksum.checksum(b"", ChecksumKind.CRC32C)
