"""InFlight: every transfer that is under way, and what is to be done on the engine thread when it ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from ostinato.cache.tiers.transfer import TransferJob, Transfers, Urgency


class InFlight:
    """Owner of the jobs between `submit` and the call that settles their bookkeeping.

    Args:
        transfers: runs the jobs.

    Attributes:
        num_settled: jobs that have ended since the start.
    """

    def __init__(self, transfers: Transfers) -> None:
        self._transfers = transfers
        self._settle: dict[TransferJob, Callable[[TransferJob], None]] = {}
        self._bytes: Counter[Urgency] = Counter()
        self.num_settled = 0

    def __len__(self) -> int:
        return len(self._settle)

    def num_bytes(self, urgency: Urgency) -> int:
        """Bytes of all jobs of one kind that have not been settled."""
        return self._bytes[urgency]

    def submit(self, job: TransferJob, settle: Callable[[TransferJob], None]) -> None:
        """Start `job`; `settle` is called by `poll` when it has finished, however it ended."""
        self._settle[job] = settle
        self._bytes[job.urgency] += job.num_bytes
        self._transfers.submit(job)

    def cancel(self, job: TransferJob) -> None:
        """Move nothing more of `job`; `poll` settles it as soon as nothing of it is being moved."""
        self._transfers.cancel(job)

    def on_end(self, notify: Callable[[], None]) -> None:
        """Have `notify` called, from another thread, whenever a job has finished."""
        self._transfers.notify = notify

    def poll(self) -> bool:
        """Settle what has finished; True if anything has."""
        finished = self._transfers.poll()
        for job in finished:
            self._bytes[job.urgency] -= job.num_bytes
            self._settle.pop(job)(job)
            self.num_settled += 1
        return bool(finished)

    def wait(self, timeout: float) -> bool:
        """Sleep until something can be settled, at most `timeout` seconds, and settle it."""
        if not self._settle:
            return False
        self._transfers.wait(timeout)
        return self.poll()

    def close(self, timeout: float) -> None:
        """Let what is under way end for `timeout` seconds, cancel the rest, settle everything."""
        self._transfers.close(timeout)
        self.poll()
