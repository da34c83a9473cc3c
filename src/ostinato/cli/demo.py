"""``ostinato demo``: what prefix caching saves in an agent's conversation, measured on this machine.

The same six requests are sent twice, through the ``openai`` SDK and over HTTP, to two fresh servers: one
with prefix caching off, one with it on. Nothing else differs.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer

from ostinato.cli import console
from ostinato.cli.demo_script import AgentConversation
from ostinato.errors import OstinatoError

if TYPE_CHECKING:
    from openai import OpenAI

    from ostinato.cli.demo_script import Message, ScriptedTurn
    from ostinato.clock import Clock
    from ostinato.config import OstinatoConfig

EPILOG = """
**Examples**

- With the default model: `ostinato demo`
- With your own: `ostinato demo --model ./qwen2.5-0.5b.gguf`
- The figures for a program: `ostinato demo --json`
"""

ANSWER_TOKENS = 16
"""Tokens of each answer: the demo is about prompts, so answers are short."""

WARM_UP_WORDS = 200
"""Enough for a full step."""

PrefixIndex = Literal["radix", "none"]
RUNS: dict[str, PrefixIndex] = {"off": "none", "on": "radix"}
"""What each of the two servers is called in the output, and its prefix index."""

ModelFlag = Annotated[
    str | None,
    typer.Option(
        help="A name, a GGUF file or a folder. Default: smollm2-135m-instruct.",
        metavar="MODEL",
        show_default=False,
    ),
]
TurnsFlag = Annotated[int, typer.Option(help="How many of the six turns to play.", min=1, max=6)]
AnswerFlag = Annotated[int, typer.Option(help="Tokens of each answer.", min=1, max=512)]
DataDirFlag = Annotated[
    Path | None, typer.Option(help="Data folder.", metavar="FOLDER", show_default=False)
]
JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@dataclass(frozen=True, slots=True)
class TurnResult:
    """One request, measured by the client.

    Attributes:
        prompt_tokens: as the server counted.
        cached_tokens: as the server reported.
        output_tokens: tokens of the answer.
        ttft_seconds: from sending to the first piece of the answer.
    """

    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    ttft_seconds: float


def demo(
    model: ModelFlag = None,
    turns: TurnsFlag = 6,
    answer_tokens: AnswerFlag = ANSWER_TOKENS,
    data_dir: DataDirFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Play an agent's conversation with prefix caching off and on, and compare.

    Six turns over a system prompt with tool schemas of about 1,600 tokens, sent to servers of its own on
    free ports. Takes a minute or two.
    """
    from ostinato.cli.demo_script import load_script
    from ostinato.clock import SystemClock

    script, clock = load_script(), SystemClock()
    with console.steps_bar("Starting", 2 * turns) as bar, contextlib.ExitStack() as stack:
        runs = []
        for label, index in RUNS.items():
            bar.stage(f"Loading the model, prefix caching {label}")
            config = _config(model, data_dir, index)
            client = stack.enter_context(_warm_client(config, clock))
            runs.append(_Run(label, client, AgentConversation(script), answer_tokens, clock))
        # Turn by turn, so that whatever else this machine does meets both alike.
        for number, turn in enumerate(script.turns[:turns], start=1):
            for run in runs:
                bar.stage(f"Turn {number} of {turns}, prefix caching {run.label}")
                run.play(turn)
                bar.advance()
    off, on = (run.results for run in runs)
    if as_json:
        typer.echo(json.dumps(_as_json(off, on), indent=2))
    else:
        _print_results(off, on)


@dataclass(slots=True)
class _Run:
    """The conversation with one of the two servers."""

    label: str
    client: OpenAI
    conversation: AgentConversation
    answer_tokens: int
    clock: Clock
    results: list[TurnResult] = field(default_factory=list)

    def play(self, turn: ScriptedTurn) -> None:
        messages = self.conversation.ask(turn)
        text, result = ask(self.client, messages, self.answer_tokens, self.clock)
        self.conversation.answer(turn, text)
        self.results.append(result)


@contextlib.contextmanager
def _warm_client(config: OstinatoConfig, clock: Clock) -> Iterator[OpenAI]:
    """A client of a server of its own, both warmed up."""
    from ostinato.cli.loading import served
    from ostinato.engine.build import build_engine

    with served(build_engine(config, clock=clock)) as url, _client(url) as client:
        # First-time costs are not what is measured; the salt keeps this out of the cache's way.
        client.completions.create(
            model=client.models.list().data[0].id,
            prompt="Ready? " * WARM_UP_WORDS,
            max_tokens=1,
            extra_body={"cache_salt": "warm-up"},
        )
        yield client


def ask(
    client: OpenAI, messages: list[Message], max_tokens: int, clock: Clock
) -> tuple[str, TurnResult]:
    """Send one request as a stream and time its first piece of text."""
    start = clock.monotonic()
    first: float | None = None
    pieces: list[str] = []
    usage = None
    stream = client.chat.completions.create(
        model=client.models.list().data[0].id,
        messages=cast("Any", messages),
        max_tokens=max_tokens,
        temperature=0.0,
        stream=True,
        stream_options={"include_usage": True},
    )
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            if choice.delta.content:
                first = clock.monotonic() if first is None else first
                pieces.append(choice.delta.content)
    if usage is None or usage.prompt_tokens_details is None:
        raise OstinatoError("the server sent no usage")
    ended = clock.monotonic() if first is None else first
    return "".join(pieces), TurnResult(
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.prompt_tokens_details.cached_tokens or 0,
        output_tokens=usage.completion_tokens,
        ttft_seconds=ended - start,
    )


def _client(url: str) -> OpenAI:
    from openai import DefaultHttpxClient, OpenAI

    # The server is ours and on loopback: no proxy, no retries that would blur the figures.
    return OpenAI(
        base_url=f"{url}/v1",
        api_key="unused",
        max_retries=0,
        http_client=DefaultHttpxClient(trust_env=False, timeout=None),
    )


def _config(model: str | None, data_dir: Path | None, index: PrefixIndex) -> OstinatoConfig:
    from ostinato.config import load_config

    flags: dict[str, Any] = {"cache": {"prefix_index": index}}
    if model is not None:
        flags["model"] = model
    if data_dir is not None:
        flags["data_dir"] = data_dir
    return load_config(flags)


def _totals(off: list[TurnResult], on: list[TurnResult]) -> dict[str, float]:
    prompt = sum(turn.prompt_tokens for turn in on)
    cached = sum(turn.cached_tokens for turn in on)
    slow = sum(turn.ttft_seconds for turn in off)
    fast = sum(turn.ttft_seconds for turn in on)
    return {
        "prompt_tokens": prompt,
        "cached_tokens": cached,
        "cached_share": cached / prompt,
        "ttft_seconds_off": slow,
        "ttft_seconds_on": fast,
        "prefill_seconds_saved": slow - fast,
    }


def _as_json(off: list[TurnResult], on: list[TurnResult]) -> dict[str, Any]:
    return {
        "prefix_caching_off": [asdict(turn) for turn in off],
        "prefix_caching_on": [asdict(turn) for turn in on],
        "totals": _totals(off, on),
    }


def _print_results(off: list[TurnResult], on: list[TurnResult]) -> None:
    from rich import box
    from rich.table import Table

    totals = _totals(off, on)
    table = Table(box=box.SIMPLE_HEAD, show_footer=True)
    columns = (
        ("turn", "all"),
        ("prompt tokens", f"{totals['prompt_tokens']:,.0f}"),
        ("cached tokens", f"{totals['cached_tokens']:,.0f}"),
        ("TTFT off", f"{totals['ttft_seconds_off']:.2f} s"),
        ("TTFT on", f"{totals['ttft_seconds_on']:.2f} s"),
        ("prefill saved", f"{totals['prefill_seconds_saved']:.2f} s"),
    )
    for name, total in columns:
        table.add_column(name, footer=total, justify="right")
    for number, (slow, fast) in enumerate(zip(off, on, strict=True), start=1):
        table.add_row(
            str(number),
            f"{fast.prompt_tokens:,}",
            f"{fast.cached_tokens:,}",
            f"{slow.ttft_seconds:.2f} s",
            f"{fast.ttft_seconds:.2f} s",
            f"{slow.ttft_seconds - fast.ttft_seconds:.2f} s",
        )
    out = console.output()
    out.print("An agent's conversation, the same requests with prefix caching off and on:")
    out.print(table)
    out.print(
        f"{totals['cached_share']:.0%} of all prompt tokens came from the cache."
        " TTFT is the time to first token as the client sees it."
    )
