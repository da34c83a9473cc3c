"""Guards ``ostinato chat``: each turn reuses the one before; neither an error nor Ctrl-C ends it."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from ostinato.cli import chat as chat_module
from ostinato.cli.chat import describe
from ostinato.cli.chat_client import AnswerStream, ChatOptions, ServerRefusedError, TurnStats
from ostinato.clock import ManualClock
from tests.cli.conftest import ServeProcess

Run = Callable[..., subprocess.CompletedProcess[str]]
Start = Callable[..., ServeProcess]
COUNTS = re.compile(r"(\d+) cached \+ (\d+) computed prompt tokens")


def counts(errors: str) -> list[tuple[int, int]]:
    return [(int(cached), int(computed)) for cached, computed in COUNTS.findall(errors)]


def test_each_piped_line_is_a_turn_and_the_next_reuses_it(
    run_ostinato: Run, start_server: Start
) -> None:
    server = start_server()
    done = run_ostinato(
        *("chat", "--url", server.url, "--max-tokens", "8", "--temperature", "0"),
        stdin="the cat\n\nthe dog\n",
    )
    assert done.returncode == 0, done.stderr
    first, second = counts(done.stderr)
    assert first[0] == 0
    assert second[0] >= first[1]  # the whole first prompt
    assert done.stderr.count("tokens/s") == 2


def test_reset_forgets_the_turns_and_quit_leaves(run_ostinato: Run, start_server: Start) -> None:
    server = start_server("--prefix-index", "none")
    done = run_ostinato(
        *("chat", "--url", server.url, "--max-tokens", "2"),
        stdin="the cat\n/reset\nthe cat\n/system be brief\nthe cat\n/nonsense\n/quit\nthe cat\n",
    )
    (_, first), (_, again), (_, with_system) = counts(done.stderr)
    assert first == again < with_system
    assert "/system TEXT" in done.stderr  # an unknown command shows the known ones


def test_an_answer_that_cannot_be_given_does_not_end_the_chat(
    run_ostinato: Run, start_server: Start
) -> None:
    server = start_server("--max-model-len", "64")
    done = run_ostinato(
        *("chat", "--url", server.url, "--max-tokens", "4"),
        stdin=f"{'x' * 200}\nthe\n",
    )
    assert done.returncode == 2  # a script can tell that a message got no answer
    assert "Error: " in done.stderr
    assert "64" in done.stderr
    assert len(counts(done.stderr)) == 1


def test_without_a_server_a_model_is_loaded_here(run_ostinato: Run, tiny_model: Path) -> None:
    done = run_ostinato("chat", "--model", str(tiny_model), "--max-tokens", "2", stdin="the\n")
    assert done.returncode == 0, done.stderr
    assert len(counts(done.stderr)) == 1


def test_no_server_is_an_error_that_says_how_to_get_one(run_ostinato: Run) -> None:
    done = run_ostinato("chat", "--url", "http://127.0.0.1:9", stdin="the\n")
    assert done.returncode == 2
    assert "no server answers at http://127.0.0.1:9" in done.stderr
    assert "ostinato serve" in done.stderr


@pytest.mark.parametrize("url", ["http://[::1", "http://127.0.0.1:port", "http://host:99999999"])
def test_what_is_no_url_is_an_error_without_a_traceback(run_ostinato: Run, url: str) -> None:
    done = run_ostinato("chat", "--url", url, stdin="the\n")
    assert done.returncode == 2
    assert url in done.stderr
    assert "Traceback" not in done.stderr


def test_input_that_is_not_utf8_is_an_error_that_says_so(start_server: Start) -> None:
    server = start_server()
    done = subprocess.run(
        [sys.executable, "-m", "ostinato.cli", "chat", "--url", server.url, "--max-tokens", "1"],
        input=b"the\ncaf\xe9\n",
        env={**os.environ, "LC_ALL": "C"},
        capture_output=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 2
    assert b"the input is not UTF-8 text (byte 0xe9)" in done.stderr
    assert b"Traceback" not in done.stderr


def test_thoughts_are_shown_and_are_no_part_of_the_answer() -> None:
    deltas = [{"reasoning_content": "Two"}, {"reasoning_content": " up."}, {"content": "3"}]
    lines = [f"data: {json.dumps({'choices': [{'delta': delta}]})}\n\n" for delta in deltas]
    transport = httpx.MockTransport(lambda _: httpx.Response(200, text="".join(lines)))
    http = httpx.Client(transport=transport, base_url="http://test")
    with AnswerStream(http, {}, ManualClock()) as answer:
        assert list(answer) == ["Two", " up.", "\n\n", "3"]
    assert answer.text == "3"
    assert answer.stats().first_token_seconds == 0
    http.close()


class FakeAnswer:
    """An answer of some pieces; a piece that is an exception is raised."""

    def __init__(self, pieces: list[str | BaseException]) -> None:
        self.pieces = pieces
        self.text = ""
        self.closed = False

    def __enter__(self) -> FakeAnswer:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.closed = True

    def __iter__(self) -> Iterator[str]:
        for piece in self.pieces:
            if isinstance(piece, BaseException):
                raise piece
            self.text += piece
            yield piece

    def stats(self) -> TurnStats:
        return TurnStats(None, None, None, 0.5, 1.0)


class FakeClient:
    """Gives prepared answers and keeps what was sent."""

    url = "http://fake"

    def __init__(self, *answers: FakeAnswer) -> None:
        self.answers = list(answers)
        self.sent: list[list[dict[str, str]]] = []

    def stream(
        self, model: str, messages: list[dict[str, str]], options: ChatOptions
    ) -> FakeAnswer:
        self.sent.append([dict(message) for message in messages])
        return self.answers[len(self.sent) - 1]


def converse(lines: str, *answers: FakeAnswer) -> FakeClient:
    client = FakeClient(*answers)
    session = chat_module._Session(client, "m", ChatOptions(), None)  # type: ignore[arg-type]
    session.run(io.StringIO(lines))
    return client


def test_ctrl_c_stops_the_answer_and_keeps_what_was_shown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    stopped = FakeAnswer(["Once", " upon", KeyboardInterrupt()])
    client = converse("tell\ngo on\n", stopped, FakeAnswer(["a time"]))
    assert stopped.closed
    assert client.sent[1] == [
        {"role": "user", "content": "tell"},
        {"role": "assistant", "content": "Once upon"},
        {"role": "user", "content": "go on"},
    ]
    out, errors = capsys.readouterr()
    assert out == "Once upon\na time\n"
    assert "stopped" in errors


def test_a_refused_message_is_not_part_of_the_conversation(
    capsys: pytest.CaptureFixture[str],
) -> None:
    refused = FakeAnswer([ServerRefusedError("too long")])
    client = converse("long\nshort\n", refused, FakeAnswer(["yes"]))
    assert client.sent[1] == [{"role": "user", "content": "short"}]
    assert "Error: too long" in capsys.readouterr().err


def test_ctrl_c_at_the_prompt_does_not_leave_and_ctrl_d_does(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    events: list[str | BaseException] = [KeyboardInterrupt(), "hello", EOFError()]

    def typed(prompt: str) -> str:
        event = events.pop(0)
        if isinstance(event, BaseException):
            raise event
        return event

    monkeypatch.setattr("builtins.input", typed)
    assert list(chat_module._typed()) == ["hello"]
    assert "Ctrl-D leaves" in capsys.readouterr().out


def test_what_a_server_does_not_say_is_not_made_up() -> None:
    assert describe(TurnStats(None, None, None, None, 2.0)) == "2.00 s"
    assert describe(TurnStats(10, None, 3, 0.5, 1.5)) == (
        "10 prompt tokens · first token after 0.50 s · 3 tokens · 2.0 tokens/s"
    )
    assert describe(TurnStats(10, 0, 1, 0.5, 0.5)) == (
        "0 cached + 10 computed prompt tokens · first token after 0.50 s · 1 tokens"
    )
