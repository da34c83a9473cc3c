"""``ostinato chat``: a conversation in the terminal, with what the cache did after each turn."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from ostinato.cli import console
from ostinato.errors import ConfigError, OstinatoError

if TYPE_CHECKING:
    from ostinato.cli.chat_client import ChatClient, ChatOptions, TurnStats
    from ostinato.engine.async_engine import AsyncEngine

DEFAULT_URL = "http://127.0.0.1:8000"

EPILOG = """
**Examples**

- Talk to the server of `ostinato serve`: `ostinato chat`
- Another port: `ostinato chat --url http://127.0.0.1:9000`
- Without a server: `ostinato chat --model smollm2-135m-instruct`
- In a script, one line a turn: `printf 'Hello!\\nAnd now in French.\\n' | ostinato chat`

While it runs: `/system TEXT` sets the system prompt, `/reset` starts over, `/quit` or Ctrl-D leaves,
Ctrl-C stops the answer.
"""

COMMANDS = """\
/system TEXT   set the system prompt and start over
/reset         start over
/quit          leave (or Ctrl-D)
Ctrl-C         stop the answer that is being written"""

EXIT_UNANSWERED = 2
"""Of a script's chat in which a message got no answer."""

_PROMPT = "› "

UrlFlag = Annotated[
    str | None,
    typer.Option(help=f"Server to talk to. Default: {DEFAULT_URL}.", show_default=False),
]
ApiKeyFlag = Annotated[
    str | None,
    typer.Option(
        help="Key that the server asks for.",
        envvar="OSTINATO_API_KEY",
        metavar="KEY",
        show_default=False,
    ),
]
ModelFlag = Annotated[
    str | None,
    typer.Option(
        help="With --url: the server's model to use. Alone: load this model here, without a server.",
        metavar="MODEL",
        show_default=False,
    ),
]
SystemFlag = Annotated[str | None, typer.Option(help="System prompt.", show_default=False)]
MaxTokensFlag = Annotated[int, typer.Option(help="Most tokens of one answer.", min=1)]
TemperatureFlag = Annotated[
    float, typer.Option(help="0 always takes the likeliest token.", min=0.0)
]
SeedFlag = Annotated[
    int | None, typer.Option(help="Makes the answers reproducible.", show_default=False)
]
DataDirFlag = Annotated[
    Path | None,
    typer.Option(help="Data folder, if a model is loaded here.", show_default=False),
]


def chat(
    url: UrlFlag = None,
    api_key: ApiKeyFlag = None,
    model: ModelFlag = None,
    system: SystemFlag = None,
    max_tokens: MaxTokensFlag = 512,
    temperature: TemperatureFlag = 0.2,
    seed: SeedFlag = None,
    data_dir: DataDirFlag = None,
) -> None:
    """Talk to a model; see after each turn what was cached and what was computed.

    Needs a running server (`ostinato serve`), or loads a model itself with --model.
    """
    from ostinato.cli.chat_client import ChatOptions

    options = ChatOptions(max_tokens=max_tokens, temperature=temperature, seed=seed)
    with _connect(url, api_key, model, data_dir) as (client, served):
        answered = _Session(client, served, options, system).run(_standard_input())
    if not answered and not sys.stdin.isatty():
        raise typer.Exit(EXIT_UNANSWERED)


@contextlib.contextmanager
def _connect(
    url: str | None, api_key: str | None, model: str | None, data_dir: Path | None
) -> Iterator[tuple[ChatClient, str]]:
    """A client and the name of the model to ask for."""
    from ostinato.cli.chat_client import ChatClient, ServerUnreachableError
    from ostinato.cli.loading import served
    from ostinato.clock import SystemClock

    with contextlib.ExitStack() as stack:
        if model is not None and url is None:
            address = stack.enter_context(served(_load(model, data_dir)))
        else:
            address = url or DEFAULT_URL
        client = ChatClient(address, SystemClock(), api_key)
        stack.callback(client.close)
        try:
            first = client.first_model()
        except ServerUnreachableError as error:
            raise ConfigError(
                f"{error}. Start one in another terminal with `ostinato serve`, give its --url, or"
                " load a model here: ostinato chat --model smollm2-135m-instruct"
            ) from error
        yield client, first if url is None else model or first


def _load(model: str, data_dir: Path | None) -> AsyncEngine:
    from ostinato.cli.loading import load_engine
    from ostinato.config import load_config

    flags: dict[str, Any] = {"model": model}
    if data_dir is not None:
        flags["data_dir"] = data_dir
    return load_engine(load_config(flags))


class _Session:
    """The loop: a line in, an answer out, what it cost below it."""

    def __init__(
        self, client: ChatClient, model: str, options: ChatOptions, system: str | None
    ) -> None:
        from ostinato.cli.chat_client import Conversation

        self._client = client
        self._model = model
        self._options = options
        self._conversation = Conversation(system)
        self._notes = console.messages()
        self._all_answered = True

    def run(self, lines: TextIO) -> bool:
        """Until the input ends or /quit. Returns whether all messages were answered.

        Raises:
            ConfigError: piped input is not UTF-8.
        """
        try:
            self._converse(lines)
        except UnicodeDecodeError as error:
            raise ConfigError(
                f"the input is not UTF-8 text (byte {error.object[error.start]:#04x}); convert it first,"
                " for example with iconv"
            ) from error
        return self._all_answered

    def _converse(self, lines: TextIO) -> None:
        if lines.isatty():
            self._notes.print(f"[bold]{console.escape(self._model)}[/] · {self._client.url}")
            self._notes.print(f"[dim]{COMMANDS}[/]")
        for line in _typed() if lines.isatty() else lines:
            text = line.strip()
            if text == "/quit":
                return
            if text.startswith("/"):
                self._command(text)
            elif text:
                self._turn(text)

    def _command(self, text: str) -> None:
        name, _, argument = text.partition(" ")
        if name == "/reset":
            self._conversation.reset()
            self._notes.print("[dim]Started over.[/]")
        elif name == "/system" and argument.strip():
            self._conversation.system = argument.strip()
            self._conversation.reset()
            self._notes.print("[dim]System prompt set; started over.[/]")
        else:
            self._notes.print(f"[dim]{COMMANDS}[/]")

    def _turn(self, text: str) -> None:
        turns = self._conversation.turns
        turns.append({"role": "user", "content": text})
        answer = self._client.stream(self._model, self._conversation.messages, self._options)
        stopped = False
        try:
            with answer:
                for piece in answer:
                    sys.stdout.write(piece)
                    sys.stdout.flush()
        except KeyboardInterrupt:
            stopped = True
        except OstinatoError as error:
            turns.pop()
            self._all_answered = False
            console.print_error(str(error))
            return
        sys.stdout.write("\n")
        sys.stdout.flush()
        if answer.text:
            turns.append({"role": "assistant", "content": answer.text})
        else:
            turns.pop()
        note = describe(answer.stats())
        self._notes.print(f"[dim]{note}{' · stopped' if stopped else ''}[/]")


def describe(stats: TurnStats) -> str:
    """One line: cached and computed tokens, time to first token, speed."""
    parts = []
    if stats.prompt_tokens is not None and stats.cached_tokens is not None:
        computed = stats.prompt_tokens - stats.cached_tokens
        parts.append(f"{stats.cached_tokens:,} cached + {computed:,} computed prompt tokens")
    elif stats.prompt_tokens is not None:
        parts.append(f"{stats.prompt_tokens:,} prompt tokens")
    if stats.first_token_seconds is not None:
        parts.append(f"first token after {stats.first_token_seconds:.2f} s")
    if stats.output_tokens is not None:
        parts.append(f"{stats.output_tokens:,} tokens")
    if stats.tokens_per_second is not None:
        parts.append(f"{stats.tokens_per_second:.1f} tokens/s")
    return " · ".join(parts) or f"{stats.total_seconds:.2f} s"


def _standard_input() -> TextIO:
    """Piped text is UTF-8 whatever the locale says; a terminal knows its own encoding."""
    if isinstance(sys.stdin, io.TextIOWrapper) and not sys.stdin.isatty():
        sys.stdin.reconfigure(encoding="utf-8", errors="strict")
    return sys.stdin


def _typed() -> Iterator[str]:
    """Lines as a person types them; Ctrl-C clears the line, Ctrl-D ends."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  (arrow keys and history in input())
    while True:
        try:
            yield input(_PROMPT)
        except KeyboardInterrupt:
            sys.stdout.write("\n(/quit or Ctrl-D leaves)\n")
        except EOFError:
            sys.stdout.write("\n")
            return
