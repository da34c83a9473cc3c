"""Anthropic's prompt cache: sequences of requests, and (read, 5m write, 1h write, uncached) of each.

S is a system prompt of 1,500 tokens, T a tool of 800, U a question of 100; every prompt ends with 4 tokens.
"""

from __future__ import annotations

from tests.product.shop import (
    Evict,
    Row,
    Together,
    again,
    ask,
    assistant,
    call,
    elsewhere,
    part,
    result,
    system,
    tool,
    turns,
    user,
)

RULES = "anthropic-1024"
T, S, U = tool("t", 800), system("s", 1500), user("u", 100)
S5, S1H, U5, U1H = (
    system("s", 1500, "5m"),
    system("s", 1500, "1h"),
    user("u", 100, "5m"),
    user("u", 100, "1h"),
)
FIRST = ask(T, S5, U, want=(0, 2300, 0, 104))
TAIL = ask(S, U5, want=(0, 1600, 0, 4))
SYSTEM_ONLY = ask(S5, U, want=(0, 1500, 0, 104))
RUN = tuple(call(f"c{n}", 5) for n in range(15)) + tuple(result(f"r{n}", 5) for n in range(15))


def row(name: str, *steps: object, rules: str = RULES) -> Row:
    return Row(name, rules, steps)  # type: ignore[arg-type]


ROWS = [
    row("the first request writes up to its breakpoint", FIRST),
    row("a repeated request reads it", FIRST, again(FIRST, (2300, 0, 0, 104))),
    row(
        "a turn later the marker moves on: the old end is read, the new turn is written",
        TAIL,
        ask(S, U, assistant("a", 50), user("v", 60, "5m"), want=(1600, 114, 0, 4)),
    ),
    row(
        "three turns in a row read all that the one before wrote",
        TAIL,
        ask(S, U, assistant("a", 50), user("v", 60, "5m"), want=(1600, 114, 0, 4)),
        ask(
            *(S, U, assistant("a", 50), user("v", 60), assistant("b", 50), user("w", 60, "5m")),
            want=(1714, 114, 0, 4),
        ),
    ),
    row("a changed tool", FIRST, ask(tool("t2", 800), S5, U, want=(0, 2300, 0, 104))),
    row(
        "a tool with one more token at its end",
        FIRST,
        ask(tool("t", 801), S5, U, want=(0, 2301, 0, 104)),
    ),
    row(
        "reordered tools",
        ask(tool("x", 800), tool("y", 800), S5, U, want=(0, 3100, 0, 104)),
        ask(tool("y", 800), tool("x", 800), S5, U, want=(0, 3100, 0, 104)),
    ),
    row(
        "a changed system prompt leaves marked tools alone",
        ask(tool("t", 1200, "5m"), S5, U, want=(0, 2700, 0, 104)),
        ask(tool("t", 1200, "5m"), system("z", 1500, "5m"), U, want=(1200, 1500, 0, 104)),
    ),
    row(
        "a changed system prompt over unmarked tools",
        FIRST,
        ask(T, system("z", 1500, "5m"), U, want=(0, 2300, 0, 104)),
    ),
    row(
        "a marker that moves forward reads the entry where it stood",
        SYSTEM_ONLY,
        ask(S, U5, want=(1500, 100, 0, 4)),
    ),
    row(
        "a marker that moves backward finds no entry there, though the K/V is there",
        TAIL,
        again(SYSTEM_ONLY, (0, 1500, 0, 104)),
    ),
    row(
        "a marker that disappears: no look-up, no read",
        SYSTEM_ONLY,
        ask(S, U, want=(0, 0, 0, 1604)),
        again(SYSTEM_ONLY, (1500, 0, 0, 104)),
    ),
    row(
        "a fifth marker is refused",
        ask(
            *(system(f"s{n}", 1100, "5m") for n in range(5)),
            U,
            want="at most 4 blocks may have cache_control, but 5 have; the fifth is block[4]",
        ),
    ),
    row(
        "four markers are four writes, billed as one stretch",
        ask(*(system(f"s{n}", 1100, "5m") for n in range(4)), U, want=(0, 4400, 0, 104)),
        ask(system("s0", 1100, "5m"), system("new", 1100, "5m"), U, want=(1100, 1100, 0, 104)),
    ),
    row(
        "the automatic marker is a fifth",
        ask(
            *(system(f"s{n}", 1100, "5m") for n in range(4)),
            U,
            automatic="5m",
            want="would be one more than the 4",
        ),
    ),
    row("5m before 1h is refused", ask(S5, U1H, want="must not come after one with ttl '5m'")),
    row(
        "1h before 5m: each is billed for its own stretch",
        ask(S1H, U5, want=(0, 100, 1500, 4)),
        ask(S1H, U5, want=(1600, 0, 0, 4)),
    ),
    row(
        "A, B, C: a read, then a 1h write, then a 5m write",
        ask(S1H, U, want=(0, 0, 1500, 104)),
        ask(S1H, user("d", 2000, "1h"), user("q", 300, "5m"), want=(1500, 300, 2000, 4)),
    ),
    row(
        "below the minimum nothing is cached, and nothing is said",
        ask(system("short", 1023, "5m"), U, want=(0, 0, 0, 1127)),
        ask(system("short", 1023, "5m"), U, want=(0, 0, 0, 1127)),
    ),
    row(
        "at the minimum it is",
        ask(system("short", 1024, "5m"), U, want=(0, 1024, 0, 104)),
        ask(system("short", 1024, "5m"), U, want=(1024, 0, 0, 104)),
    ),
    row(
        "a marker below the minimum does not hinder one above",
        ask(system("short", 900, "5m"), user("u", 900, "5m"), want=(0, 1800, 0, 4)),
        ask(system("short", 900, "5m"), user("v", 900, "5m"), want=(0, 1800, 0, 4)),
    ),
    row("read just before it expires", SYSTEM_ONLY, again(SYSTEM_ONLY, (1500, 0, 0, 104), 299)),
    row("after expiry it is written anew", SYSTEM_ONLY, again(SYSTEM_ONLY, (0, 1500, 0, 104), 300)),
    row(
        "what a request found is refreshed from its start, though the entry ends while it waits for its answer",
        SYSTEM_ONLY,
        Together(
            (
                ask(S, U5, want=(1500, 100, 0, 4), wait=299.0),
                ask(system("z", 1500), U, want=(0, 0, 0, 1604), wait=100.0),
            )
        ),
        again(SYSTEM_ONLY, (1500, 0, 0, 104), 100),
    ),
    row(
        "a hit refreshes it",
        SYSTEM_ONLY,
        *(again(SYSTEM_ONLY, (1500, 0, 0, 104), 290) for _ in range(4)),
    ),
    row(
        "1h outlives 5m",
        ask(S1H, U5, want=(0, 100, 1500, 4)),
        ask(S1H, U5, want=(1500, 100, 0, 4), wait=3599),
        ask(S1H, U5, want=(0, 100, 1500, 4), wait=3600),
    ),
    row(
        "a 1h marker on a 5m entry reads it and does not prolong it",
        SYSTEM_ONLY,
        ask(S1H, U, want=(1500, 0, 0, 104), wait=100),
        ask(S1H, U, want=(0, 0, 1500, 104), wait=301),
    ),
    row(
        "a 5m marker on a 1h entry reads it and keeps its hour",
        ask(S1H, U, want=(0, 0, 1500, 104)),
        again(SYSTEM_ONLY, (1500, 0, 0, 104), 600),
        again(SYSTEM_ONLY, (1500, 0, 0, 104), 3500),
    ),
    row("evicted K/V is a new write", SYSTEM_ONLY, Evict(), again(SYSTEM_ONLY, (0, 1500, 0, 104))),
    row(
        "of two entries the one that is still backed is read",
        ask(S5, user("d", 2000, "5m"), want=(0, 3500, 0, 4)),
        Evict(keep=2000),
        ask(S5, user("d", 2000, "5m"), want=(1500, 2000, 0, 4)),
        ask(S5, user("d", 2000, "5m"), want=(3500, 0, 0, 4)),
    ),
    row(
        "a cold fan-out misses in every branch",
        Together(
            tuple(ask(S5, user(f"branch {n}", 100), want=(0, 1500, 0, 104)) for n in range(3))
        ),
        ask(S5, user("branch 3", 100), want=(1500, 0, 0, 104)),
    ),
    row(
        "a warm fan-out hits in every branch",
        SYSTEM_ONLY,
        Together(
            tuple(ask(S5, user(f"branch {n}", 100), want=(1500, 0, 0, 104)) for n in range(3))
        ),
    ),
    row(
        "25 blocks since the last write: beyond the look-back",
        TAIL,
        ask(S, U, *turns(24), user("v", 60, "5m"), want=(0, 1948, 0, 4)),
    ),
    row(
        "19 blocks since the last write: its twentieth position",
        TAIL,
        ask(S, U, *turns(18), user("v", 60, "5m"), want=(1600, 276, 0, 4)),
    ),
    row(
        "20 blocks since the last write: one too many",
        TAIL,
        ask(S, U, *turns(19), user("v", 60, "5m"), want=(0, 1886, 0, 4)),
    ),
    row(
        "a second marker on the way carries the look-back on",
        TAIL,
        ask(
            *(S, U, *turns(12), user("half", 10, "5m"), *turns(12), user("v", 60, "5m")),
            want=(1600, 358, 0, 4),
        ),
    ),
    row(
        "a run of tool calls is one position, and so is a run of results",
        TAIL,
        ask(S, U, assistant("a", 10), *RUN, user("v", 60, "5m"), want=(1600, 224, 0, 4)),
    ),
    row(
        "automatic caching marks the last block, and follows the conversation",
        ask(S, U, automatic="5m", want=(0, 1600, 0, 4)),
        ask(S, U, assistant("a", 50), user("v", 60), automatic="5m", want=(1600, 114, 0, 4)),
    ),
    row(
        "automatic caching walks back over a block that cannot be marked",
        ask(S, U, part("empty", 0), automatic="5m", want=(0, 1600, 0, 4)),
    ),
    row(
        "automatic caching without a block to mark is skipped",
        ask(user("empty", 0), automatic="5m", want=(0, 0, 0, 4)),
    ),
    row(
        "automatic caching where a marker of its ttl is changes nothing",
        ask(S, U5, automatic="5m", want=(0, 1600, 0, 4)),
    ),
    row(
        "automatic caching where a marker of another ttl is is refused",
        ask(S, U1H, automatic="5m", want="different ttls"),
    ),
    row("another model", FIRST, elsewhere(FIRST, model="other")),
    row("another tenant", FIRST, elsewhere(FIRST, tenant="them")),
    row("another salt", FIRST, elsewhere(FIRST, salt="pepper")),
    row(
        "a block that grows loses its end",
        TAIL,
        ask(S, user("u", 150, "5m"), want=(0, 1650, 0, 4)),
    ),
    row(
        "a system message in mid-conversation invalidates nothing before it",
        TAIL,
        ask(
            *(S, U, assistant("a", 50), user("v", 60), system("from now on", 20, "5m")),
            want=(1600, 134, 0, 4),
        ),
    ),
    row(
        "a pre-warm of the shared part is read by whoever follows",
        ask(S5, user("placeholder", 1), want=(0, 1500, 0, 5)),
        ask(S5, user("real", 90), want=(1500, 0, 0, 94)),
    ),
    *(
        row(
            f"models with a minimum of {least}",
            ask(system("s", least - 1, "5m"), want=(0, 0, 0, least + 3)),
            ask(system("s", least, "5m"), want=(0, least, 0, 4)),
            ask(system("s", least, "5m"), want=(least, 0, 0, 4)),
            rules=f"anthropic-{least}",
        )
        for least in (512, 2048, 4096)
    ),
]
"""At least 25; the names are those of the tests."""
