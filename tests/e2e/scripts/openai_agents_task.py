"""A task of ten turns with tools, by the OpenAI Agents SDK over Responses. Arguments: base URL, model, way.

Ways: ``continued`` sends each turn alone with ``previous_response_id``, ``resent`` the whole conversation.
Prints one JSON object a line for each call of the model: turn, input tokens, cached ones, what it did.
"""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import replace
from typing import Any

from agents import (
    Agent,
    ModelSettings,
    OpenAIResponsesModel,
    Runner,
    RunResult,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI

URL, MODEL, WAY = sys.argv[1:]
INSTRUCTIONS = (
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


@function_tool
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


@function_tool
def stock(article: str) -> int:
    """Tells how many of an article there are."""
    return STOCK.get(article, 0)


@function_tool
def order(article: str, count: int) -> str:
    """Orders so many of an article."""
    return f"ordered {count} {article}"


class Task:
    """The conversation so far, with an agent that calls tools and one that only talks.

    Both have the same tools, so their prompts begin alike. Left to itself, a small model calls too rarely at
    first and goes on for ever afterwards.
    """

    def __init__(self, client: AsyncOpenAI) -> None:
        settings = ModelSettings(temperature=0.0, max_tokens=80, parallel_tool_calls=False)
        self.caller = Agent(
            name="shop",
            instructions=INSTRUCTIONS,
            model=OpenAIResponsesModel(MODEL, client),
            model_settings=replace(settings, tool_choice="required"),
            tools=[add, stock, order],
            tool_use_behavior="stop_on_first_tool",
        )
        self.talker = self.caller.clone(model_settings=replace(settings, tool_choice="none"))
        self.history: list[Any] = []
        self.last: str | None = None

    async def turn(self, number: int, question: str) -> None:
        called = await self._run(number, self.caller, [{"role": "user", "content": question}])
        results = [item for item in called.new_items if item.type == "tool_call_output_item"]
        if results:
            await self._run(number, self.talker, [item.to_input_item() for item in results])

    async def _run(self, number: int, agent: Agent, new: list[Any]) -> RunResult:
        if WAY == "continued":
            result = await Runner.run(agent, new, previous_response_id=self.last)
        else:
            known = [] if new[0].get("type") == "function_call_output" else new
            result = await Runner.run(agent, [*self.history, *known])
        self.history, self.last = result.to_input_list(), result.last_response_id
        for response in result.raw_responses:
            usage = response.usage
            line = {
                "turn": number,
                "input": usage.input_tokens,
                "cached": usage.input_tokens_details.cached_tokens,
                "output": usage.output_tokens,
                "did": [getattr(item, "name", item.type) for item in response.output],
            }
            print(json.dumps(line))
        return result


async def main() -> None:
    async with AsyncOpenAI(base_url=URL, api_key="none", max_retries=0) as client:
        task = Task(client)
        for number, question in enumerate(TURNS, start=1):
            await task.turn(number, question)


set_tracing_disabled(True)
asyncio.run(main())
