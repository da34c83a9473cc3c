"""Guards the choice of a parser: taken from the chat template, and none rather than a wrong one."""

from __future__ import annotations

import pytest

from ostinato.models.tools.syntax import SYNTAXES, ToolCallStyle, choose_style, detect_style

HERMES = "{% for c in message.tool_calls %}<tool_call>\n{{ c }}\n</tool_call>{% endfor %}"


@pytest.mark.parametrize(
    ("source", "style"),
    [
        (HERMES, ToolCallStyle.HERMES),
        ("{{ message.tool_calls }}[TOOL_CALLS] [", ToolCallStyle.MISTRAL),
        ("{{ message.tool_calls }}<|python_tag|>", ToolCallStyle.LLAMA),
        ('<|start_header_id|>{{ message.tool_calls }}"parameters": ', ToolCallStyle.LLAMA),
        ("<tool_call> is named, but calls are not rendered", None),
        (HERMES + "<function=f>", None),
        ("{{ message.tool_calls }}[TOOL_CALLS]f[ARGS]", None),
        ("{{ message.tool_calls }} in a way of its own", None),
    ],
)
def test_the_style_is_read_off_the_template(source: str, style: ToolCallStyle | None) -> None:
    assert detect_style(source) is style
    assert choose_style("auto", source) is style


def test_the_setting_wins_over_the_template() -> None:
    assert choose_style("llama", HERMES) is ToolCallStyle.LLAMA
    assert choose_style("none", HERMES) is None
    assert choose_style("hermes", None) is ToolCallStyle.HERMES
    assert choose_style("auto", None) is None


def test_every_style_has_a_syntax() -> None:
    assert set(SYNTAXES) == set(ToolCallStyle)
