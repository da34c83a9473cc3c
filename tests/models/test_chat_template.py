"""Guards prompts made from messages: the model's own wording, nothing that moves with the clock, no escape.

A prompt that differs by one character from what the model was trained on answers worse; one that differs from
the last turn's caches nothing.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ostinato.errors import InvalidRequestError, ModelFormatError
from ostinato.models.chat_template import ChatTemplate
from ostinato.models.registry import resolve_model
from ostinato.models.weights.gguf_format import read_header
from tests import tiny

HELLO = [{"role": "user", "content": "Hello"}]


def template(source: str) -> ChatTemplate:
    return ChatTemplate(source, bos_token="<s>", eos_token="</s>")


def rendered(source: str, messages: list[dict[str, Any]] | None = None, **arguments: Any) -> str:
    return template(source).render(HELLO if messages is None else messages, **arguments)


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> ChatTemplate:
    path = resolve_model("smollm2-135m-instruct", tmp_path_factory.mktemp("data"))
    made = ChatTemplate.from_gguf(read_header(path).metadata)
    assert made is not None
    return made


def test_the_default_model_gets_its_system_prompt_and_an_open_turn(smollm2: ChatTemplate) -> None:
    assert smollm2.render(HELLO) == (
        "<|im_start|>system\n"
        "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHello<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert not smollm2.supports_tools


def test_a_conversation_that_goes_on_begins_with_the_prompt_before(smollm2: ChatTemplate) -> None:
    before = smollm2.render(HELLO)
    answered = [*HELLO, {"role": "assistant", "content": "Hi"}, {"role": "user", "content": "More"}]
    assert smollm2.render(answered).startswith(before + "Hi<|im_end|>\n")


def test_without_a_generation_prompt_the_last_turn_is_the_end(smollm2: ChatTemplate) -> None:
    assert smollm2.render(HELLO, add_generation_prompt=False).endswith("Hello<|im_end|>\n")


def test_bos_eos_tools_and_further_variables_reach_the_template() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    source = "{{ bos_token }}{{ tools[0].function.name }}{{ enable_thinking }}{{ eos_token }}"
    assert rendered(source, tools=tools, variables={"enable_thinking": True}) == "<s>fTrue</s>"
    assert template(source).supports_tools


@pytest.mark.parametrize("tools", [None, []])
def test_no_tools_are_none_to_the_template(tools: list[Any] | None) -> None:
    assert rendered("{{ tools is none }}", tools=tools) == "True"


def test_block_lines_leave_no_blank_lines() -> None:
    assert rendered("{% if true %}\n  {% set x = 1 %}\nx{{ x }}\n{% endif %}\n") == "x1\n"


def test_loops_can_be_left_early_and_training_marks_are_transparent() -> None:
    source = "{% for m in messages %}{% generation %}{{ m.role }}{% endgeneration %}{% break %}{% endfor %}"
    assert rendered(source, HELLO * 3) == "user"


def test_json_is_neither_escaped_for_html_nor_for_ascii() -> None:
    messages = [{"role": "user", "content": {"a": "<é'&中>"}}]
    assert rendered("{{ messages[0].content | tojson }}", messages) == '{"a": "<é\'&中>"}'
    assert rendered("{{ messages[0].content | tojson(indent=1) }}", messages) == (
        '{\n "a": "<é\'&中>"\n}'
    )


def test_the_date_never_moves_unless_the_caller_gives_one() -> None:
    source = "{{ date_string or strftime_now('%d %b %Y, %H:%M') }}"
    assert rendered(source) == "26 Jul 2024, 00:00"
    assert rendered(source, variables={"date_string": "today"}) == "today"


def test_a_template_that_refuses_is_the_callers_mistake_with_its_own_words() -> None:
    with pytest.raises(InvalidRequestError, match="refuses these messages: roles must") as caught:
        rendered("{{ raise_exception('roles must alternate') }}")
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    "source", ["{{ messages[7].content }}", "{{ messages + 1 }}", "{{ nothing.at.all }}"]
)
def test_a_template_that_fails_is_the_callers_mistake_too(source: str) -> None:
    with pytest.raises(InvalidRequestError, match="cannot render these messages") as caught:
        rendered(source)
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'role': 'system'}) }}",
        "{{ raise_exception.__globals__['x'] }}",
        "{{ range(10**9) | list }}",
    ],
)
def test_the_sandbox_lets_nothing_out_and_changes_nothing(source: str) -> None:
    messages = [{"role": "user", "content": "Hello"}]
    with pytest.raises(InvalidRequestError):
        rendered(source, messages)
    assert messages == HELLO


def test_the_callers_messages_are_not_changed() -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    messages = [{"role": "assistant", "content": None, "tool_calls": [call]}]
    before = json.dumps(messages)
    rendered("{{ messages }}", messages)
    assert json.dumps(messages) == before


def test_missing_content_is_empty_text() -> None:
    for message in ({"role": "assistant"}, {"role": "assistant", "content": None}):
        assert rendered(tiny.CHAT_TEMPLATE, [message], add_generation_prompt=False) == (
            "<|im_start|>assistant\n<|im_end|>\n"
        )


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"city": "Zürich"}', '{"city": "Zürich"}'),
        ({"city": "Zürich"}, '{"city": "Zürich"}'),
        ("", "{}"),
        ("not json", '"not json"'),
        ("[1]", '"[1]"'),
    ],
)
def test_tool_arguments_that_came_as_json_text_are_not_quoted_twice(
    arguments: Any, expected: str
) -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": arguments}}
    source = "{{ messages[0].tool_calls[0].function.arguments | tojson }}"
    assert rendered(source, [{"role": "assistant", "tool_calls": [call]}]) == expected


def test_a_template_that_is_not_jinja_is_a_damaged_model_with_the_line() -> None:
    with pytest.raises(ModelFormatError, match="line 2"):
        template("fine\n{% if %}")


def test_a_base_model_has_no_template(tmp_path: Path) -> None:
    assert ChatTemplate.from_gguf({}) is None
    assert ChatTemplate.from_folder(tmp_path) is None


def test_gguf_metadata_gives_the_spelling_of_bos_and_eos() -> None:
    made = ChatTemplate.from_gguf(
        {
            "tokenizer.chat_template": "{{ bos_token }}|{{ eos_token }}",
            "tokenizer.ggml.tokens": ["a", "<bos>"],
            "tokenizer.ggml.bos_token_id": 1,
        }
    )
    assert made is not None
    assert made.render(HELLO) == "<bos>|"


def test_a_folder_is_searched_from_the_newest_form_of_template_to_the_oldest(
    tmp_path: Path,
) -> None:
    def source() -> str:
        made = ChatTemplate.from_folder(tmp_path)
        assert made is not None
        return made.render(HELLO)

    settings: dict[str, Any] = {"bos_token": "<s>", "eos_token": {"content": "</s>"}}
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "named"}]
    settings["chat_template"] = named
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    assert source() == "named"
    settings["chat_template"] = "settings {{ bos_token }}{{ eos_token }}"
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    assert source() == "settings <s></s>"
    (tmp_path / "chat_template.json").write_text('{"chat_template": "json"}')
    assert source() == "json"
    (tmp_path / "chat_template.jinja").write_text("jinja {{ eos_token }}")
    assert source() == "jinja </s>"
