"""Guards Anthropic's table of what a change invalidates, row by row, on a template that renders as they do.

Tools, then system, then messages; what the vendor keeps in a section (web search in the system's, thinking and
tool choice in the messages') is printed at its beginning. A breakpoint ends each section, and a change must
leave exactly the sections before it readable.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from ostinato.api.prompt import Breakpoint, Message, Prompt, Role, TextPart, ToolDefinition
from ostinato.cache.types import TenantId
from ostinato.clock import ManualClock
from ostinato.models.chat_encoding import EncodedChat, encode_segments
from ostinato.models.chat_template import ChatTemplate
from ostinato.models.tokenizer import Tokenizer
from ostinato.product.entries import CacheScope
from ostinato.product.prompt_cache import PromptCache
from ostinato.product.rules import HOUSE_RULES
from tests import tiny
from tests.product.shop import MemoryEngine

TEMPLATE = """\
{%- for tool in tools or [] %}<tool>{{ tool | tojson }}</tool>{% endfor -%}
<settings>{{ web_search }} {{ citations }} {{ speed }}</settings>
{%- for m in messages if m.role == "system" %}<system>{{ m.content }}</system>{% endfor -%}
<settings>{{ tool_choice }} {{ parallel }} {{ images }} {{ thinking }} {{ effort or "high" }}</settings>
{%- set ns = namespace(last_user=0) -%}
{%- for m in messages if m.role == "user" %}{% set ns.last_user = loop.index0 %}{% endfor -%}
{%- set seen = namespace(users=0) -%}
{%- for m in messages if m.role != "system" -%}
{%- if m.role == "user" %}{% set seen.users = seen.users + 1 %}{% endif -%}
<{{ m.role }}>
{%- if m.reasoning_content and (keep_thinking or seen.users > ns.last_user) -%}
<think>{{ m.reasoning_content }}</think>{% endif -%}
{{ m.content }}</{{ m.role }}>{% endfor -%}
{% if add_generation_prompt %}<assistant>{% endif %}"""

MARK = Breakpoint()
RULES = replace(HOUSE_RULES["anthropic-512"], min_tokens=1)
SECTIONS = ("tools", "system", "messages")


@dataclass(frozen=True)
class Model:
    name: str = "tiny"
    tokenizer: Tokenizer = field(
        default_factory=lambda: Tokenizer.from_json(
            json.dumps(tiny.tiny_tokenizer_json()), bos_token_id=None, eos_token_ids=[]
        )
    )
    chat_template: ChatTemplate = field(
        default_factory=lambda: ChatTemplate(TEMPLATE, bos_token="", eos_token="")
    )


MODEL = Model()


def a_tool(name: str, *, marked: bool = False, **more: Any) -> ToolDefinition:
    function = {"name": name, "parameters": {"type": "object", "properties": {}, **more}}
    schema = {"type": "function", "function": function}
    return ToolDefinition(schema, MARK if marked else None)


def said(role: Role, text: str, *, marked: bool = False, reasoning: str | None = None) -> Message:
    return Message(role, (TextPart(text, MARK if marked else None),), reasoning=reasoning)


MESSAGES = (
    said(Role.SYSTEM, "be brief", marked=True),
    said(Role.USER, "first question"),
    said(Role.ASSISTANT, "first answer", reasoning="hm"),
    said(Role.TOOL, "a tool's result", marked=True),
)
PROMPT = Prompt(
    MESSAGES,
    (a_tool("search"), a_tool("compute", marked=True)),
    {"keep_thinking": True},
)


def with_variables(**variables: Any) -> Prompt:
    return replace(PROMPT, template_variables={**PROMPT.template_variables, **variables})


def encoded(prompt: Prompt) -> EncodedChat:
    return encode_segments(
        MODEL,
        prompt.template_messages(),
        tools=prompt.template_tools(),
        variables=prompt.template_variables,
    )


class House:
    """One cache and one engine for a few requests."""

    def __init__(self) -> None:
        self.cache = PromptCache(ManualClock(), b"s" * 32, RULES)
        self.engine = MemoryEngine()

    def read(self, prompt: Prompt, model: str = "model") -> tuple[int, dict[str, int]]:
        """Tokens that a request reads, and where its sections end."""
        scope = CacheScope(TenantId("us"), model)
        chat = encoded(prompt)
        segments = prompt.segments()
        planned = self.cache.plan(scope, chat.token_ids, segments, chat.boundaries)
        split = self.cache.settle(planned, self.engine.look(scope, chat.token_ids))
        self.engine.compute(scope, np.asarray(chat.token_ids))
        ends = [
            end
            for segment, end in zip(segments, chat.boundaries, strict=True)
            if segment.breakpoint is not None and end is not None
        ]
        return split.read, dict(zip(SECTIONS, ends, strict=True))


def readable(changed: Prompt, model: str = "model", original: Prompt = PROMPT) -> list[str]:
    """The sections that a changed request still reads."""
    house = House()
    house.read(original)
    read, ends = house.read(changed, model)
    kept = [section for section, end in ends.items() if end <= read]
    assert read == max((ends[section] for section in kept), default=0)
    return kept


def test_the_sections_follow_each_other_and_an_unchanged_request_reads_them_all() -> None:
    _, ends = House().read(PROMPT)
    assert list(ends.values()) == sorted(ends.values())
    assert readable(PROMPT) == ["tools", "system", "messages"]


@pytest.mark.parametrize(
    "tools",
    [
        (a_tool("search"), a_tool("computE", marked=True)),
        (a_tool("search"), a_tool("compute", marked=True, strict=True)),
        (a_tool("search"), a_tool("compute", marked=True, required=[])),
        (a_tool("compute"), a_tool("search", marked=True)),
        (a_tool("another"), a_tool("search"), a_tool("compute", marked=True)),
    ],
    ids=["byte", "flag at the end", "empty list at the end", "order", "one more"],
)
def test_a_change_of_tools_invalidates_everything(tools: tuple[ToolDefinition, ...]) -> None:
    assert readable(replace(PROMPT, tools=tools)) == []


def test_another_model_invalidates_everything() -> None:
    assert readable(PROMPT, model="another") == []


@pytest.mark.parametrize("setting", ["web_search", "citations", "speed"])
def test_settings_of_the_system_section_leave_the_tools(setting: str) -> None:
    assert readable(with_variables(**{setting: "on"})) == ["tools"]


def test_a_change_of_the_system_prompt_leaves_the_tools() -> None:
    messages = (said(Role.SYSTEM, "be kind", marked=True), *MESSAGES[1:])
    assert readable(replace(PROMPT, messages=messages)) == ["tools"]


@pytest.mark.parametrize("setting", ["tool_choice", "parallel", "images", "thinking", "effort"])
def test_settings_of_the_messages_leave_tools_and_system(setting: str) -> None:
    assert readable(with_variables(**{setting: "changed"})) == ["tools", "system"]


def test_stating_the_default_effort_is_the_same_as_leaving_it_out() -> None:
    assert readable(with_variables(effort="high")) == ["tools", "system", "messages"]


def test_a_users_words_after_thinking_strip_it_where_the_model_forgets_thinking() -> None:
    forgets = with_variables(keep_thinking=False)
    changed = replace(
        forgets,
        messages=(*MESSAGES, said(Role.USER, "second question")),
    )
    assert readable(forgets, original=forgets) == ["tools", "system", "messages"]
    assert readable(changed, original=forgets) == ["tools", "system"]


def test_a_tools_result_after_thinking_strips_nothing() -> None:
    forgets = with_variables(keep_thinking=False)
    longer = replace(forgets, messages=(*MESSAGES, said(Role.TOOL, "another result")))
    assert readable(longer, original=forgets) == ["tools", "system", "messages"]


def test_thinking_that_the_client_drops_invalidates_from_there() -> None:
    messages = (*MESSAGES[:2], replace(MESSAGES[2], reasoning=None), MESSAGES[3])
    assert readable(replace(PROMPT, messages=messages)) == ["tools", "system"]


def test_a_moved_marker_is_no_change_of_content() -> None:
    moved = (
        *MESSAGES[:3],
        said(Role.TOOL, "a tool's result"),
        said(Role.USER, "more", marked=True),
    )
    house = House()
    _, before = house.read(PROMPT)
    read, _ = house.read(replace(PROMPT, messages=moved))
    assert read == before["messages"]
