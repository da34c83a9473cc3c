"""A conversation over the OpenAI chat API, streamed; what ``ostinato chat`` talks through."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx

from ostinato.clock import Clock
from ostinato.errors import ConfigError, OstinatoError

_DATA = "data: "
_DONE = "[DONE]"
_BEHIND_THOUGHT = "\n\n"


class ServerUnreachableError(OstinatoError):
    """Nobody answers at the URL, or not with the OpenAI API."""


class ServerRefusedError(OstinatoError):
    """The server answered with an error; the message is the server's own."""


@dataclass(frozen=True, slots=True)
class TurnStats:
    """What one answer cost.

    Attributes:
        prompt_tokens: tokens of the whole conversation as sent; None if the server did not say.
        cached_tokens: how many of them were reused; None if the server did not say.
        output_tokens: tokens of the answer; None if the server did not say.
        first_token_seconds: from sending to the first piece of text; None if there was none.
        total_seconds: from sending to the end.
    """

    prompt_tokens: int | None
    cached_tokens: int | None
    output_tokens: int | None
    first_token_seconds: float | None
    total_seconds: float

    @property
    def tokens_per_second(self) -> float | None:
        """Decoding speed, the first token left out; None where it cannot be told."""
        if self.output_tokens is None or self.first_token_seconds is None:
            return None
        seconds = self.total_seconds - self.first_token_seconds
        return (
            (self.output_tokens - 1) / seconds if self.output_tokens > 1 and seconds > 0 else None
        )


@dataclass(slots=True)
class ChatOptions:
    """How answers are generated; None leaves it to the server."""

    max_tokens: int | None = None
    temperature: float | None = None
    seed: int | None = None

    def fields(self) -> dict[str, Any]:
        values = {
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "seed": self.seed,
        }
        return {name: value for name, value in values.items() if value is not None}


@dataclass(slots=True)
class Conversation:
    """The messages so far. Only ever grows at its end, so that its prefix stays cached.

    Attributes:
        system: the system prompt, or None for the model's own.
        turns: user and assistant messages in order.
    """

    system: str | None = None
    turns: list[dict[str, str]] = field(default_factory=list)

    @property
    def messages(self) -> list[dict[str, str]]:
        head = [] if self.system is None else [{"role": "system", "content": self.system}]
        return head + self.turns

    def reset(self) -> None:
        """Forget the turns; the system prompt stays."""
        self.turns.clear()


class ChatClient:
    """One server, one model, one connection.

    Raises:
        ConfigError: `url` is not a URL.

    Raises (all methods):
        ServerUnreachableError: no server, or something else answers there.
        ServerRefusedError: the server answered with an error.
    """

    def __init__(self, url: str, clock: Clock, api_key: str | None = None) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        self._clock = clock
        try:
            self._http = httpx.Client(
                base_url=self.url,
                headers={} if api_key is None else {"authorization": f"Bearer {api_key}"},
                timeout=httpx.Timeout(10.0, read=None),
                trust_env=False,
            )
        except (httpx.InvalidURL, ValueError) as error:
            raise ConfigError(
                f"{url!r} is not a URL ({error}); write for example http://127.0.0.1:8000"
            ) from error

    def close(self) -> None:
        self._http.close()

    def first_model(self) -> str:
        """The id of the server's first model."""
        try:
            response = self._http.get("/v1/models", timeout=10.0)
            if response.status_code == httpx.codes.UNAUTHORIZED:
                raise ConfigError(
                    f"{_error_message(response.text)}. Here: --api-key KEY, or the environment"
                    " variable OSTINATO_API_KEY"
                )
            response.raise_for_status()
            return str(response.json()["data"][0]["id"])
        except (httpx.TransportError, httpx.InvalidURL) as error:
            raise ServerUnreachableError(f"no server answers at {self.url} ({error})") from error
        except (httpx.HTTPStatusError, ValueError, LookupError, TypeError) as error:
            raise ServerUnreachableError(
                f"what answers at {self.url} is not a server of the OpenAI API"
            ) from error

    def stream(
        self, model: str, messages: list[dict[str, str]], options: ChatOptions
    ) -> AnswerStream:
        """Start an answer; iterate over the result for its text. Use it as a context manager."""
        body = {
            "model": model,
            "messages": messages,
            "stream": True,
            "stream_options": {"include_usage": True},
            **options.fields(),
        }
        return AnswerStream(self._http, body, self._clock)


class AnswerStream:
    """One answer while it is written. Leaving the context early cancels it at the server.

    Iterating gives what the model thinks, too, which is no part of the answer.

    Attributes:
        text: all of the answer so far.
    """

    def __init__(self, http: httpx.Client, body: dict[str, Any], clock: Clock) -> None:
        self._request = http.stream("POST", "/v1/chat/completions", json=body)
        self._clock = clock
        self._start = clock.monotonic()
        self._first: float | None = None
        self._usage: dict[str, Any] = {}
        self._is_thinking = False
        self.text = ""

    def __enter__(self) -> AnswerStream:
        try:
            self._response = self._request.__enter__()
        except httpx.HTTPError as error:
            raise ServerUnreachableError(f"the server does not answer ({error})") from error
        if self._response.is_error:
            self._response.read()
            self._request.__exit__(None, None, None)
            raise ServerRefusedError(_error_message(self._response.text))
        return self

    def __exit__(self, *exception: Any) -> None:
        self._request.__exit__(*exception)

    def __iter__(self) -> Iterator[str]:
        try:
            for line in self._response.iter_lines():
                if line.startswith(_DATA) and line != _DATA + _DONE:
                    yield from self._take(line.removeprefix(_DATA))
        except httpx.HTTPError as error:
            raise ServerUnreachableError(f"the connection was lost ({error})") from error

    def stats(self) -> TurnStats:
        """What it cost, as far as it is known by now."""
        details = self._usage.get("prompt_tokens_details") or {}
        return TurnStats(
            prompt_tokens=self._usage.get("prompt_tokens"),
            cached_tokens=details.get("cached_tokens"),
            output_tokens=self._usage.get("completion_tokens"),
            first_token_seconds=self._first,
            total_seconds=self._clock.monotonic() - self._start,
        )

    def _take(self, payload: str) -> Iterator[str]:
        chunk = json.loads(payload)
        if "error" in chunk:
            raise ServerRefusedError(_error_message(payload))
        self._usage = chunk.get("usage") or self._usage
        for choice in chunk.get("choices", ()):
            delta = choice.get("delta", {})
            thought, text = delta.get("reasoning_content"), delta.get("content")
            if self._first is None and (thought or text):
                self._first = self._clock.monotonic() - self._start
            if thought:
                self._is_thinking = True
                yield thought
            if text:
                if self._is_thinking:
                    yield _BEHIND_THOUGHT
                self._is_thinking = False
                self.text += text
                yield text


def _error_message(body: str) -> str:
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return body.strip() or "the server gave no reason"
