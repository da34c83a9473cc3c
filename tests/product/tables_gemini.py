"""Gemini's implicit cache, and prompts that begin with a cache object: (read, –, –, uncached) of each request.

There are no breakpoints and no counted writes: what begins like something that is still there is read, from the
minimum on. S is a system instruction of 3,000 tokens, U a question of 100; every prompt ends with 4 tokens.
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
    assistant,
    call,
    elsewhere,
    implicit,
    result,
    system,
    tool,
    turns,
    user,
)

S, U, T = system("s", 3000), user("u", 100), tool("t", 2500)


def row(name: str, *steps: Step, rules: str = "gemini-2048") -> Row:
    return Row(name, rules, steps)


def plain(*blocks: Block, read: int) -> Ask:
    total = sum(len(block.token_ids()) for block in blocks) + 4
    return replace(implicit(*blocks, want=(read, 0, 0, total - read)), implicit=None)


FIRST = plain(S, U, read=0)
REPEAT = plain(S, U, read=3103)
OBJECT = system("cache object", 3000, "1h")

ROWS = [
    row("the first request", FIRST),
    row("a repeat reads all but the token that is always computed", FIRST, REPEAT),
    row("a turn later", FIRST, plain(S, U, assistant("a", 50), user("v", 60), read=3104)),
    row(
        "the answer is read too, but for its last token",
        replace(FIRST, answer=assistant("a", 50)),
        plain(S, U, assistant("a", 50), user("v", 60), read=3153),
    ),
    row(
        "another question: the system instruction is read",
        FIRST,
        plain(S, user("w", 100), read=3000),
    ),
    row("a changed tool", plain(T, S, U, read=0), plain(tool("t2", 2500), S, U, read=0)),
    row(
        "a changed second tool: the first is read",
        plain(T, tool("x", 500), S, read=0),
        plain(T, tool("y", 500), S, read=2500),
    ),
    row(
        "reordered tools",
        plain(T, tool("x", 2500), S, read=0),
        plain(tool("x", 2500), T, S, read=0),
    ),
    row("a changed system instruction", FIRST, plain(system("z", 3000), U, read=0)),
    row(
        "a changed system instruction behind tools",
        plain(T, S, U, read=0),
        plain(T, system("z", 3000), U, read=2500),
    ),
    row(
        "a common prefix below the minimum",
        plain(system("s", 2000), user("u", 500), read=0),
        plain(system("s", 2000), user("w", 500), read=0),
    ),
    row(
        "a common prefix at the minimum",
        plain(system("s", 2048), user("u", 500), read=0),
        plain(system("s", 2048), user("w", 500), read=2048),
    ),
    row(
        "a prompt below the minimum",
        plain(system("s", 1900), read=0),
        plain(system("s", 1900), read=0),
    ),
    row("a message that grows keeps its beginning", FIRST, plain(S, user("u", 150), read=3100)),
    row("hours later, if it is still there", FIRST, replace(REPEAT, wait=36_000.0)),
    row("after eviction", FIRST, Evict(), FIRST),
    row("after eviction of the tail", FIRST, Evict(keep=2500), plain(S, U, read=2500)),
    row("after eviction down to less than the minimum", FIRST, Evict(keep=2000), FIRST),
    row("a cold fan-out", Together((FIRST, FIRST, FIRST)), REPEAT),
    row(
        "a warm fan-out",
        FIRST,
        Together(tuple(plain(S, user(f"branch {n}", 100), read=3000) for n in range(3))),
    ),
    row("another tenant", FIRST, elsewhere(FIRST, tenant="them")),
    row("another model", FIRST, elsewhere(FIRST, model="other")),
    row("another salt", FIRST, elsewhere(FIRST, salt="pepper")),
    row("a key for accounting is not known here", FIRST, elsewhere(REPEAT, accounting_key="b")),
    row(
        "25 blocks since the last request", FIRST, plain(S, U, *turns(25), user("v", 60), read=3100)
    ),
    row(
        "function calls and their results",
        plain(S, U, assistant("a", 10), call("c", 20), result("r", 40), read=0),
        plain(S, U, assistant("a", 10), call("c", 20), result("r", 40), user("v", 9), read=3174),
    ),
    row(
        "a prompt that begins with a cache object",
        plain(OBJECT, read=0),
        plain(OBJECT, user("u", 100), read=3000),
        plain(OBJECT, user("w", 100), read=3000),
    ),
    row(
        "a cache object whose K/V was evicted",
        plain(OBJECT, read=0),
        Evict(),
        plain(OBJECT, user("u", 100), read=0),
    ),
    row(
        "a moved breakpoint changes nothing",
        plain(S, user("u", 100, "5m"), read=0),
        plain(system("s", 3000, "5m"), U, read=3103),
    ),
    row(
        "breakpoints of any number and order change nothing",
        plain(*(system(f"s{n}", 600, "30m" if n % 2 else "12h") for n in range(6)), read=0),
        plain(*(system(f"s{n}", 600) for n in range(6)), read=3603),
    ),
    row(
        "models with a minimum of 4,096",
        plain(S, U, read=0),
        plain(S, U, read=0),
        plain(S, T, U, read=0),
        plain(S, T, U, read=5603),
        rules="gemini-4096",
    ),
    row(
        "a system message in mid-conversation",
        FIRST,
        plain(S, U, assistant("a", 50), user("v", 60), system("from now on", 20), read=3104),
    ),
]
"""At least 25; the names are those of the tests."""
