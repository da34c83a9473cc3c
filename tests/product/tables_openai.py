"""OpenAI's prompt cache, three generations: requests, and (read, 30m write, 12h write, uncached) of each.

D is a developer message of 1,500 tokens, U a question of 100; every prompt ends with 4 tokens.
"""

from __future__ import annotations

from dataclasses import replace

from tests.product.shop import (
    Ask,
    Block,
    Evict,
    Row,
    Step,
    Together,
    again,
    ask,
    assistant,
    call,
    elsewhere,
    implicit,
    part,
    result,
    system,
    tool,
    user,
)

D, U, T = system("d", 1500), user("u", 100), tool("t", 800)
D30, D12 = system("d", 1500, "30m"), system("d", 1500, "12h")
FIRST = implicit(D, U, want=(0, 1600, 0, 4))
NEXT = implicit(D, U, assistant("a", 50), user("v", 60), want=(1600, 114, 0, 4))
EXPLICIT = ask(D30, U, want=(0, 1500, 0, 104))


def row(name: str, *steps: Step, rules: str = "openai-5.6") -> Row:
    return Row(name, rules, steps)


def classic(name: str, *steps: Step) -> Row:
    return row(f"classic: {name}", *steps, rules="openai-classic")


def plain(*blocks: Block, read: int) -> Ask:
    """A request whose writes are not counted."""
    total = sum(len(block.token_ids()) for block in blocks) + 4
    return implicit(*blocks, want=(read, 0, 0, total - read))


def endings(count: int) -> tuple[Block, ...]:
    """So many user messages, with answers between."""
    blocks: list[Block] = []
    for n in range(count):
        blocks += [assistant(f"answer {n}", 6), user(f"turn {n}", 10)]
    return tuple(blocks)


def marked_parts(count: int) -> tuple[Block, ...]:
    return tuple(part(f"part {n}", 10, "30m") for n in range(count))


ROWS = [
    row("the first request writes to the end of its latest message", FIRST),
    row("a repeated request reads it", FIRST, again(FIRST, (1600, 0, 0, 4))),
    row("a turn later the old ending is read and the new one written", FIRST, NEXT),
    row(
        "a changed tool",
        implicit(T, D, U, want=(0, 2400, 0, 4)),
        implicit(tool("t2", 800), D, U, want=(0, 2400, 0, 4)),
    ),
    row(
        "reordered tools",
        implicit(tool("x", 800), tool("y", 800), U, want=(0, 1700, 0, 4)),
        implicit(tool("y", 800), tool("x", 800), U, want=(0, 1700, 0, 4)),
    ),
    row(
        "a changed developer message",
        FIRST,
        implicit(system("e", 1500), U, want=(0, 1600, 0, 4)),
    ),
    row(
        "another question reads nothing: the developer message was no ending that was written",
        FIRST,
        implicit(D, user("w", 100), want=(0, 1600, 0, 4)),
    ),
    row(
        "explicit mode without a breakpoint is no caching at all",
        ask(D, U, want=(0, 0, 0, 1604)),
        ask(D, U, want=(0, 0, 0, 1604)),
    ),
    row("explicit mode writes to its breakpoint", EXPLICIT, again(EXPLICIT, (1500, 0, 0, 104))),
    row(
        "a switch from implicit to explicit reads nothing",
        FIRST,
        again(EXPLICIT, (0, 1500, 0, 104)),
    ),
    row(
        "a switch from explicit to implicit reads the end of the developer block",
        EXPLICIT,
        again(FIRST, (1500, 100, 0, 4)),
    ),
    row(
        "a breakpoint inside a message is not found by the implicit mode",
        ask(D, user("u", 100, "30m"), part("more", 30), want=(0, 1600, 0, 34)),
        implicit(D, user("u", 100), part("more", 30), want=(0, 1630, 0, 4)),
    ),
    row(
        "a fifth marker: in explicit mode the four latest are written",
        ask(*(system(f"s{n}", 1100, "30m") for n in range(5)), U, want=(0, 5500, 0, 104)),
        ask(system("s0", 1100, "30m"), system("new", 1100, "30m"), want=(0, 2200, 0, 4)),
        ask(
            *(system("s0", 1100), system("s1", 1100, "30m"), system("new", 1100, "30m")),
            want=(2200, 1100, 0, 4),
        ),
    ),
    row(
        "a fourth marker: the implicit mode takes one place of the four",
        implicit(*(system(f"s{n}", 1100, "30m") for n in range(4)), U, want=(0, 4500, 0, 4)),
        ask(system("s0", 1100, "30m"), system("new", 1100), want=(0, 1100, 0, 1104)),
        ask(
            *(system("s0", 1100), system("s1", 1100, "30m"), system("other", 1100)),
            want=(2200, 0, 0, 1104),
        ),
    ),
    row(
        "below the minimum nothing is written",
        implicit(system("s", 923), U, want=(0, 0, 0, 1027)),
        implicit(system("s", 923), U, want=(0, 0, 0, 1027)),
    ),
    row(
        "at the minimum it is",
        implicit(system("s", 924), U, want=(0, 1024, 0, 4)),
        implicit(system("s", 924), U, want=(1024, 0, 0, 4)),
    ),
    row("just before 30 minutes", FIRST, again(FIRST, (1600, 0, 0, 4), 1799)),
    row("after 30 minutes", FIRST, again(FIRST, (0, 1600, 0, 4), 1800)),
    row("a hit refreshes it", FIRST, *(again(FIRST, (1600, 0, 0, 4), 1700) for _ in range(3))),
    row(
        "a 12h breakpoint outlives the implicit one",
        implicit(D12, U, want=(0, 100, 1500, 4)),
        implicit(D12, U, want=(1500, 100, 0, 4), wait=4000),
        implicit(D12, U, want=(0, 100, 1500, 4), wait=43_200),
    ),
    row(
        "30m before 12h is no mistake here: up to the last long one all is long",
        ask(D30, user("u", 100, "12h"), want=(0, 0, 1600, 4)),
        ask(D30, user("u", 100, "12h"), want=(1600, 0, 0, 4)),
    ),
    row("evicted K/V is a new write", FIRST, Evict(), again(FIRST, (0, 1600, 0, 4))),
    row(
        "where the new turn was evicted the old one is read",
        FIRST,
        NEXT,
        Evict(keep=1650),
        again(NEXT, (1600, 114, 0, 4)),
    ),
    row(
        "a cold fan-out misses in every branch",
        Together(tuple(again(FIRST, (0, 1600, 0, 4)) for _ in range(3))),
        again(FIRST, (1600, 0, 0, 4)),
    ),
    row("another prompt_cache_key", FIRST, elsewhere(FIRST, accounting_key="b")),
    row("another tenant", FIRST, elsewhere(FIRST, tenant="them")),
    row("another model", FIRST, elsewhere(FIRST, model="other")),
    row(
        "a user message that grows loses its end",
        FIRST,
        implicit(D, user("u", 150), want=(0, 1650, 0, 4)),
    ),
    row(
        "where the latest message grows the turn before is read",
        FIRST,
        NEXT,
        implicit(D, U, assistant("a", 50), user("v", 90), want=(1600, 144, 0, 4)),
    ),
    row(
        "of a run of tool outputs the last one ends it",
        implicit(
            *(D, U, assistant("a", 10), call("c0", 5), call("c1", 5)),
            *(result("r0", 20), result("r1", 20)),
            want=(0, 1664, 0, 4),
        ),
        implicit(
            *(D, U, assistant("a", 10), call("c0", 5), call("c1", 5)),
            *(result("r0", 20), result("r1", 20), assistant("b", 6), user("v", 10)),
            want=(1664, 20, 0, 4),
        ),
    ),
    row(
        "a later developer message is no ending",
        implicit(D, U, assistant("a", 50), system("from now on", 20), want=(0, 1600, 0, 78)),
        implicit(D, U, assistant("a", 50), system("from now on", 20), want=(1600, 0, 0, 78)),
    ),
    row(
        "25 blocks since the last write: still among the latest 80 breakpoints",
        FIRST,
        implicit(D, U, *endings(25), want=(1600, 500, 0, 4)),
    ),
    row(
        "79 endings since the last write: the eightieth",
        FIRST,
        implicit(D, U, *endings(79), want=(1600, 1580, 0, 4)),
    ),
    row(
        "80 endings since the last write: one too many",
        FIRST,
        implicit(D, U, *endings(80), want=(0, 3200, 0, 4)),
    ),
    row(
        "the guide's breadth: 20 endings before the implicit one",
        FIRST,
        implicit(D, U, *endings(20), want=(1600, 400, 0, 4)),
        rules="openai-5.6-guide",
    ),
    row(
        "the guide's breadth: 21 endings are one too many",
        FIRST,
        implicit(D, U, *endings(21), want=(0, 2020, 0, 4)),
        rules="openai-5.6-guide",
    ),
    row(
        "the guide's breadth: the first two explicit breakpoints are always looked up",
        ask(system("d", 1500, "30m"), want=(0, 1500, 0, 4)),
        ask(
            *(system("d", 1500, "30m"), user("u", 100, "30m"), *marked_parts(60)),
            want=(1500, 700, 0, 4),
        ),
        rules="openai-5.6-guide",
    ),
    row(
        "the SDK's breadth has no such exception",
        ask(system("d", 1500, "30m"), want=(0, 1500, 0, 4)),
        ask(
            *(system("d", 1500, "30m"), user("u", 100, "30m"), *marked_parts(80)),
            want=(0, 2400, 0, 4),
        ),
    ),
    classic("the first request", plain(D, U, read=0)),
    classic(
        "a repeat is read down to a multiple of 128", plain(D, U, read=0), plain(D, U, read=1536)
    ),
    classic(
        "a turn later, what the first request had",
        plain(D, U, read=0),
        plain(D, U, assistant("a", 50), user("v", 60), read=1536),
    ),
    classic("any common prefix", plain(D, U, read=0), plain(D, user("w", 100), read=1408)),
    classic(
        "a common prefix below 1,024",
        plain(system("s", 1000), user("u", 100), read=0),
        plain(system("s", 1000), user("w", 100), read=0),
    ),
    classic(
        "a prompt below 1,024",
        plain(system("s", 919), U, read=0),
        plain(system("s", 919), U, read=0),
    ),
    classic(
        "idle for ten minutes",
        plain(D, U, read=0),
        replace(plain(D, U, read=1536), wait=599.0),
        replace(plain(D, U, read=0), wait=600.0),
    ),
    classic(
        "never longer than an hour",
        plain(D, U, read=0),
        *(replace(plain(D, U, read=1536), wait=500.0) for _ in range(7)),
        replace(plain(D, U, read=0), wait=500.0),
    ),
    classic(
        "24h retention",
        replace(plain(D, U, read=0), implicit="12h"),
        replace(plain(D, U, read=1536), implicit="12h", wait=7200.0),
        replace(plain(D, U, read=0), implicit="12h", wait=86_400.0),
    ),
    classic("eviction", plain(D, U, read=0), Evict(keep=1300), plain(D, U, read=1280)),
    row(
        "5.5: an entry every 2,048 tokens",
        plain(system("s", 5000), U, read=0),
        plain(system("s", 5000), user("w", 100), read=4096),
        rules="openai-5.5",
    ),
    row(
        "5.5: shorter than that is not cached",
        plain(system("s", 1900), U, read=0),
        plain(system("s", 1900), U, read=0),
        rules="openai-5.5",
    ),
]
"""At least 25; the names are those of the tests."""
