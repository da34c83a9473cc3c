"""DeepSeek's disk cache: stored units are hit in full or not at all; (hit, –, –, miss) of each request.

Units end at the end of the user's input and of the answer, where two prompts were seen to part, and every
4,096 tokens; all at multiples of 64. S is a system prompt of 1,500 tokens, U a question of 100; every prompt
ends with 4 tokens.
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
    elsewhere,
    implicit,
    result,
    system,
    tool,
    turns,
    user,
)

S, U = system("s", 1500), user("u", 100)
LONG = system("long", 9000)


def row(name: str, *steps: Step) -> Row:
    return Row(name, "deepseek", steps)


def plain(*blocks: Block, hit: int) -> Ask:
    total = sum(len(block.token_ids()) for block in blocks) + 4
    return implicit(*blocks, want=(hit, 0, 0, total - hit))


FIRST = plain(S, U, hit=0)
REPEAT = plain(S, U, hit=1600)
ANSWERED = replace(FIRST, answer=assistant("a", 50))

ROWS = [
    row("the first request", FIRST),
    row("a repeat hits to the end of the user's input", FIRST, REPEAT),
    row(
        "a unit ends at a multiple of 64",
        plain(S, user("u", 90), hit=0),
        plain(S, user("u", 90), hit=1536),
    ),
    row(
        "A+B, A+C, A+D: the second misses, the third hits what was seen to be common",
        FIRST,
        plain(S, user("c", 100), hit=0),
        plain(S, user("d", 100), hit=1472),
    ),
    row(
        "A+B, A+C, A+B: what was a unit still is",
        FIRST,
        plain(S, user("c", 100), hit=0),
        REPEAT,
    ),
    row("a turn later", FIRST, plain(S, U, assistant("a", 50), user("v", 60), hit=1600)),
    row(
        "a turn later, the end of the answer is a unit",
        replace(FIRST, answer=assistant("a", 140)),
        plain(S, U, assistant("a", 140), user("v", 60), hit=1728),
    ),
    row(
        "an answer that was not sent back as it was",
        replace(FIRST, answer=assistant("a", 140)),
        plain(S, U, assistant("edited", 140), user("v", 60), hit=1600),
    ),
    row(
        "a short answer ends in the unit of its question",
        ANSWERED,
        plain(S, U, assistant("a", 50), user("v", 60), hit=1600),
    ),
    row(
        "a long prompt has units on the way",
        plain(LONG, U, hit=0),
        plain(LONG, user("w", 100), hit=8192),
    ),
    row(
        "and where the common part was seen a second time, that is the unit",
        plain(LONG, U, hit=0),
        plain(LONG, user("w", 100), hit=8192),
        plain(LONG, user("x", 100), hit=8960),
    ),
    row("a changed tool", plain(tool("t", 500), S, U, hit=0), plain(tool("t2", 500), S, U, hit=0)),
    row(
        "reordered tools",
        plain(tool("x", 500), tool("y", 500), S, U, hit=0),
        plain(tool("y", 500), tool("x", 500), S, U, hit=0),
    ),
    row(
        "a changed system prompt behind tools: nothing at first, the tools from the third on",
        plain(tool("t", 500), S, U, hit=0),
        plain(tool("t", 500), system("z", 1500), U, hit=0),
        plain(tool("t", 500), system("y", 1500), U, hit=448),
    ),
    row("a changed system prompt", FIRST, plain(system("z", 1500), U, hit=0)),
    row("shorter than a unit", plain(user("u", 63), hit=0), plain(user("u", 63), hit=0)),
    row("as long as a unit", plain(user("u", 64), hit=0), plain(user("u", 64), hit=64)),
    row(
        "a message that grows: the unit before is matched in full",
        FIRST,
        plain(S, user("u", 170), hit=1600),
    ),
    row(
        "a message that shrinks misses: the unit is not matched in full",
        plain(S, user("u", 170), hit=0),
        plain(S, user("u", 150), hit=0),
        plain(S, user("u", 150), hit=1600),
    ),
    row("hours later", FIRST, replace(REPEAT, wait=23 * 3600.0)),
    row("a day later", FIRST, replace(FIRST, wait=24 * 3600.0)),
    row(
        "a hit keeps it",
        FIRST,
        *(replace(REPEAT, wait=20 * 3600.0) for _ in range(3)),
    ),
    row("after eviction", FIRST, Evict(), FIRST, REPEAT),
    row("after eviction of its tail: not in full, so not at all", FIRST, Evict(keep=1599), FIRST),
    row("a cold fan-out", Together((FIRST, FIRST, FIRST)), REPEAT),
    row(
        "a warm fan-out of different questions",
        FIRST,
        Together(tuple(plain(S, user(f"branch {n}", 100), hit=0) for n in range(3))),
        plain(S, user("branch 3", 100), hit=1472),
    ),
    row("another tenant", FIRST, elsewhere(FIRST, tenant="them")),
    row("another user_id, which narrows as a salt does", FIRST, elsewhere(FIRST, salt="user 2")),
    row("another model", FIRST, elsewhere(FIRST, model="other")),
    row(
        "25 blocks since the last request: there is no look-back",
        FIRST,
        plain(S, U, *turns(24), user("v", 60), hit=1600),
    ),
    row(
        "breakpoints are ignored",
        plain(system("s", 1500, "5m"), U, hit=0),
        plain(system("s", 1500, "5m"), user("w", 100), hit=0),
    ),
    row(
        "a prompt that ends with a tool's result has its unit at the user's input",
        plain(S, U, assistant("a", 10), result("r", 300), hit=0),
        plain(S, U, assistant("a", 10), result("r", 300), hit=1600),
    ),
]
"""At least 25; the names are those of the tests."""
