"""The conversation that ``ostinato demo`` plays: an agent that looks into a failing test.

The system prompt with its tool schemas is the stable prefix; every turn adds to the end and changes nothing
before it. What the tools are asked and what they return is fixed. What the model says before each call is
generated for real: a model this small cannot be trusted to write the call itself.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any, TypeAlias

Message: TypeAlias = dict[str, str]


@dataclass(frozen=True, slots=True)
class ScriptedTurn:
    """One request of the agent.

    Attributes:
        user: what is added to the conversation before the model speaks.
        call: the tool call that is put after the model's words, "" in the last turn.
    """

    user: str
    call: str


@dataclass(frozen=True, slots=True)
class Script:
    """System prompt (rules and tool schemas) and turns."""

    system: str
    turns: tuple[ScriptedTurn, ...]


def load_script() -> Script:
    """The conversation that ships with the package."""
    source = files("ostinato.cli").joinpath("data/agent_conversation.json")
    data = json.loads(source.read_text(encoding="utf-8"))
    # The template of the default model knows no tools, so their schemas are part of the text.
    system = "\n".join([data["system"], *(_compact(tool) for tool in data["tools"])])
    return Script(system, tuple(_turn(turn) for turn in data["turns"]))


@dataclass(slots=True)
class AgentConversation:
    """The messages so far; grows only at its end."""

    script: Script
    messages: list[Message] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.messages.append({"role": "system", "content": self.script.system})

    def ask(self, turn: ScriptedTurn) -> list[Message]:
        """Add what the agent sends in this turn; all messages to send."""
        self.messages.append({"role": "user", "content": turn.user})
        return list(self.messages)

    def answer(self, turn: ScriptedTurn, text: str) -> None:
        """Add the model's words and the tool call of the script."""
        content = f"{text}\n{turn.call}" if turn.call else text
        self.messages.append({"role": "assistant", "content": content})


def _turn(turn: dict[str, Any]) -> ScriptedTurn:
    user = turn.get("user")
    if user is None:
        user = f"<tool_response>\n{_lines(turn['tool_response'])}\n</tool_response>"
    call = turn.get("tool_call")
    return ScriptedTurn(user, "" if call is None else f"<tool_call>{_compact(call)}</tool_call>")


def _lines(result: Any) -> str:
    rows = result if isinstance(result, list) else [result]
    return "\n".join(row if isinstance(row, str) else _compact(row) for row in rows)


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
