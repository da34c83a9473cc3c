"""Stores blocks for ever, saying which are committed, until it is killed; the child of test_disk_kill.py."""

from __future__ import annotations

import sys
from pathlib import Path

from ostinato.cache.tiers.disk_folder import TierFormat
from tests.cache.tiers.tools import TierMaker, chain, store

FORMAT = TierFormat("killed", b"killed", 100_000)  # blocks long enough to be killed within


def main() -> None:
    maker = TierMaker("disk", Path(sys.argv[1]), format=FORMAT)
    tier = maker.make(64)
    print("open", flush=True)
    number = 0
    while True:
        blocks = chain(f"prompt {number}", 5)
        store(tier, blocks)
        print(number, flush=True)
        number += 1


if __name__ == "__main__":
    main()
