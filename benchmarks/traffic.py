"""Generated traffic in three shapes, as block-hash traces: more to try eviction policies on.

    python -m benchmarks.traffic chat 4000 > chat.jsonl && ostinato simulate chat.jsonl

- chat: conversations that grow turn by turn, with pauses for thought, behind one system prompt;
- agents: sessions of many quick steps behind one of a few long tool prompts;
- rag: one-off questions about documents, most of which come once, some of which everybody asks about.
"""

from __future__ import annotations

import heapq
import json
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count, islice

import numpy as np

from ostinato.insight.simulate.trace import TOKENS_PER_BLOCK, TraceRequest


@dataclass
class _Session:
    """One conversation: its blocks so far and how many requests are to come."""

    blocks: list[int]
    left: int


def _sessions(
    rng: random.Random,
    start: Callable[[], _Session],
    grow: Callable[[], int],
    pause: Callable[[], float],
    arrivals_per_second: float,
) -> Iterator[tuple[float, list[int]]]:
    """Requests of sessions that overlap: each repeats all before it and adds `grow()` blocks."""
    fresh = count(1_000_000)
    serial = count()
    due: list[tuple[float, int, _Session | None]] = [(0.0, next(serial), None)]
    while True:
        now, _, session = heapq.heappop(due)
        if session is None:
            session = start()
            heapq.heappush(due, (now + rng.expovariate(arrivals_per_second), next(serial), None))
        session.blocks.extend(islice(fresh, grow()))
        # The last block of a prompt is partial: it is another one in the next turn.
        yield now, [*session.blocks, next(fresh)]
        session.left -= 1
        if session.left:
            heapq.heappush(due, (now + pause(), next(serial), session))


def chat(seed: int) -> Iterator[tuple[float, list[int]]]:
    """Turns of 1 to 8 blocks, a minute of thought, four turns on average, two new conversations a second."""
    rng = random.Random(seed)
    return _sessions(
        rng,
        start=lambda: _Session([0, 1], 1 + int(rng.expovariate(1 / 3))),
        grow=lambda: rng.randint(1, 8),
        pause=lambda: 5 + rng.expovariate(1 / 60),
        arrivals_per_second=2.0,
    )


def agents(seed: int) -> Iterator[tuple[float, list[int]]]:
    """Sessions of 5 to 40 steps, seconds apart, each behind one of eight tool prompts of 12 blocks."""
    rng = random.Random(seed)

    def start() -> _Session:
        tool = min(7, int(rng.expovariate(1 / 2)))
        return _Session([tool * 12 + at for at in range(12)], rng.randint(5, 40))

    return _sessions(
        rng,
        start=start,
        grow=lambda: rng.randint(1, 3),
        pause=lambda: 1 + rng.expovariate(1 / 4),
        arrivals_per_second=0.5,
    )


def rag(seed: int) -> Iterator[tuple[float, list[int]]]:
    """Two shared blocks, a document of 4 to 20, a question; one document in four is a popular one."""
    rng = random.Random(seed)
    fresh = count(1_000_000)
    popular = [list(range(100 + 20 * at, 100 + 20 * at + rng.randint(4, 20))) for at in range(400)]
    now = 0.0
    while True:
        now += rng.expovariate(4.0)
        if rng.random() < 0.25:
            document = popular[min(399, int(rng.paretovariate(0.7)) - 1)]
        else:
            document = list(islice(fresh, rng.randint(4, 20)))
        yield now, [0, 1, *document, next(fresh)]


SHAPES: dict[str, Callable[[int], Iterator[tuple[float, list[int]]]]] = {
    "chat": chat,
    "agents": agents,
    "rag": rag,
}


def generate(shape: str, num_requests: int, seed: int = 1) -> list[TraceRequest]:
    """The first requests of a shape; the same ones for the same seed."""
    return [
        TraceRequest(
            seconds=seconds,
            input_length=len(blocks) * TOKENS_PER_BLOCK - TOKENS_PER_BLOCK // 2,
            blocks=np.array(blocks, dtype=np.int32),
        )
        for seconds, blocks in islice(SHAPES[shape](seed), num_requests)
    ]


def main() -> None:
    """Write a trace to standard output."""
    shape, num_requests = sys.argv[1], int(sys.argv[2])
    for request in generate(shape, num_requests):
        print(
            json.dumps(
                {
                    "timestamp": round(request.seconds * 1000),
                    "input_length": request.input_length,
                    "output_length": 0,
                    "hash_ids": request.blocks.tolist(),
                }
            )
        )


if __name__ == "__main__":
    main()
