"""A task of ten turns with tools, by the tool runner of the `anthropic` SDK. Arguments: base URL, model.

The last block is marked by the top-level `cache_control`. Prints one JSON object a line for each call of the
model: turn, input counters, what it did.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import anthropic
from anthropic import beta_tool

SYSTEM = (
    "You are the assistant of a small shop. You never calculate or guess: you call `add` to add two numbers, "
    "`stock` for the stock of an article, and `order` to order one. Then you tell the result in one short "
    "sentence. "
)
TURNS = (
    "How many pencils are in stock? Use the tool.",
    "Use the tool to add 12 and 30.",
    "How many erasers are in stock? Use the tool.",
    "Order 5 erasers with the tool.",
    "Use the tool to add 100 and 7.",
    "How many rulers are in stock? Use the tool.",
    "Order 2 rulers with the tool.",
    "Use the tool to add 5 and 2.",
    "How many pens are in stock? Use the tool.",
    "Order 9 pens with the tool.",
)
STOCK = {"pencils": 42, "erasers": 3, "rulers": 11, "pens": 0}


@beta_tool
def add(a: int, b: int) -> str:
    """Adds two numbers."""
    return str(a + b)


@beta_tool
def stock(article: str) -> str:
    """Tells how many of an article there are."""
    return str(STOCK.get(article, 0))


@beta_tool
def order(article: str, count: int) -> str:
    """Orders so many of an article."""
    return f"ordered {count} {article}"


def run_turn(
    client: anthropic.Anthropic, model: str, history: list[Any], number: int, question: str
) -> None:
    """One question: a call that is required, its result by the runner, and an answer in words.

    Left to itself, a small model calls too rarely at first and goes on for ever afterwards.
    """
    history.append({"role": "user", "content": question})
    runner = client.beta.messages.tool_runner(
        model=model,
        max_tokens=80,
        system=SYSTEM,
        tools=[add, stock, order],
        tool_choice={"type": "any", "disable_parallel_tool_use": True},
        cache_control={"type": "ephemeral"},
        messages=list(history),
        max_iterations=2,
        extra_headers={"anthropic-version": "2023-06-01"},
        extra_body={"temperature": 0.0},
    )
    for message in runner:
        report(number, message)
        history.append({"role": "assistant", "content": message.content})
        result = runner.generate_tool_call_response()
        if result is None:
            continue
        history.append(result)
        runner.set_messages_params(
            lambda params: {**params, "tool_choice": {"type": "none"}, "max_tokens": 40}
        )


def report(number: int, message: Any) -> None:
    usage = message.usage
    line = {
        "turn": number,
        "plain": usage.input_tokens,
        "read": usage.cache_read_input_tokens,
        "written": usage.cache_creation_input_tokens,
        "output": usage.output_tokens,
        "did": [getattr(block, "name", block.type) for block in message.content],
    }
    print(json.dumps(line))


def main(url: str, model: str) -> None:
    history: list[Any] = []
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0, timeout=600.0) as client:
        for number, question in enumerate(TURNS, start=1):
            run_turn(client, model, history, number, question)


if __name__ == "__main__":
    main(*sys.argv[1:])
