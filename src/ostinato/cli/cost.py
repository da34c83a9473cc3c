"""``ostinato cost``: what tokens cost, and from which reuse on caching pays."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ostinato.cli import console
from ostinato.cli.cost_flags import (
    AtFlag,
    CsvFlag,
    HitFlag,
    JsonFlag,
    ModelArgument,
    NewFlag,
    OutputFlag,
    PrefixFlag,
    PricesFlag,
    TermFlag,
    decimal_of,
    gaps_of,
    moment_of,
    share_of,
    tokens_option,
)
from ostinato.cli.cost_saved import saved
from ostinato.cli.cost_tables import Column, Kind, Value, form_of, show
from ostinato.cli.ledger_access import (
    DataDirFlag,
    LedgerFlag,
    SinceFlag,
    TenantFlag,
    filter_of,
    history_in_ledger,
)

if TYPE_CHECKING:
    from datetime import datetime

    from ostinato.ledger.break_even import CostLine, Strategy, Workload
    from ostinato.ledger.prices import ModelPrices, Rates
    from ostinato.ledger.prices_book import PriceBook

app = typer.Typer(no_args_is_help=True, rich_markup_mode="markdown")

EPILOG = """
**Examples**

- What models cost now: `ostinato cost models 'claude-*'`
- One request: `ostinato cost request claude-opus-5-5 --read 90000 --uncached 500 --output-tokens 800`
- From which request on a cache write pays: `ostinato cost break-even claude-opus-5-5`
- The same with misses, and as a picture:
  `ostinato cost break-even gpt-6.1-sol --hit-probability 0.8 --plot break-even.svg`
- Which TTL is cheapest when a prompt comes back after 1, 10 and 90 minutes:
  `ostinato cost ttl claude-opus-5-5 --gaps 60,600,5400`
- The same for the conversations that this server has served: `ostinato cost ttl claude-opus-5-5 --since 30d`
- What caching saved on what this server has served: `ostinato cost saved --since 30d --prices prices.toml`

A model of your own is priced in a TOML file, given with `--prices`:
`[[model]]`, `models = ["my-model"]`, `input = 0.10`, `read = 0.01`, `output = 0.40`.
"""


@app.command("models")
def models(
    pattern: Annotated[
        str, typer.Argument(help="Part of a name, or a pattern such as 'gpt-6*'.")
    ] = "*",
    provider: Annotated[
        list[str] | None,
        typer.Option(
            help="Only this provider's, resellers included; may be repeated.", metavar="NAME"
        ),
    ] = None,
    prompt_tokens: Annotated[
        int, tokens_option("Length of the prompt: long ones may cost more.")
    ] = 0,
    prices: PricesFlag = None,
    at: AtFlag = None,
    as_json: JsonFlag = False,
    as_csv: CsvFlag = False,
) -> None:
    """List prices: dollars per 1,000,000 tokens, storage per 1,000,000 token-hours."""
    from fnmatch import fnmatchcase

    form = form_of(as_json, as_csv)
    book, moment = _book(prices), moment_of(at)
    if provider and (unknown := {name.lower() for name in provider} - {*book.providers, "local"}):
        raise typer.BadParameter(
            f"no provider {', '.join(sorted(unknown))}; there are:"
            f" {', '.join(sorted(book.providers))}",
            param_hint="--provider",
        )
    glob = pattern.lower() if re.search(r"[*?\[]", pattern) else f"*{pattern.lower()}*"
    rows = [
        _model_row(found, found.rates_at(moment, prompt_tokens))
        for found in book.models(provider)
        if fnmatchcase(found.model.lower(), glob)
    ]
    columns = (
        Column("provider", "provider", Kind.TEXT),
        Column("model", "model", Kind.TEXT),
        Column("input", "input"),
        Column("read", "read"),
        Column("write_short", "write, short"),
        Column("write_long", "write, long"),
        Column("output", "output"),
        Column("storage", "storage"),
        Column("sources", "", Kind.TEXT),
    )
    show(f"Dollars per 1,000,000 tokens at {_stamp(moment)}", columns, rows, form)
    if not rows:
        console.messages().print("No model matches.")


@app.command("request")
def request(
    model: ModelArgument,
    uncached: Annotated[int, tokens_option("Prompt tokens at the ordinary rate.")] = 0,
    read: Annotated[int, tokens_option("Prompt tokens read from the cache.")] = 0,
    write_short: Annotated[int, tokens_option("Prompt tokens written under the shorter TTL.")] = 0,
    write_long: Annotated[int, tokens_option("Prompt tokens written under the longer TTL.")] = 0,
    output_tokens: OutputFlag = 0,
    token_hours: Annotated[
        str,
        typer.Option(
            help="Tokens of a cache object times the hours that it was kept.", metavar="X"
        ),
    ] = "0",
    term: TermFlag = None,
    prices: PricesFlag = None,
    at: AtFlag = None,
    as_json: JsonFlag = False,
    as_csv: CsvFlag = False,
) -> None:
    """What one request costs, split by what is paid for, and what caching saves on it."""
    from ostinato.ledger.cost import TokenCounts, request_cost

    form = form_of(as_json, as_csv)
    found, moment = _book(prices).require(model), moment_of(at)
    stored = decimal_of(token_hours, "--token-hours")
    counts = TokenCounts(uncached, read, write_short, write_long, output_tokens, stored)
    cost = request_cost(counts, found, moment, term or ())
    parts: list[tuple[str, int | Decimal | None, Decimal | None]] = [
        ("input", uncached, cost.input),
        ("read", read, cost.read),
        ("write, short", write_short, cost.write_short),
        ("write, long", write_long, cost.write_long),
        ("storage", stored, cost.storage),
        ("output", output_tokens, cost.output),
        ("total", None, cost.total),
        ("without caching", None, cost.without_caching),
        ("saved", None, cost.saved),
    ]
    columns = (
        Column("part", "part", Kind.TEXT),
        Column("tokens", "tokens", Kind.COUNT, absent=""),
        Column("dollars", "cost", absent="unknown"),
    )
    rows = [{"part": part, "tokens": tokens, "dollars": paid} for part, tokens, paid in parts]
    show(f"{_name(found)} at {_stamp(moment)}", columns, rows, form)


@app.command("break-even")
def break_even(
    model: ModelArgument,
    prefix_tokens: PrefixFlag = 10_000,
    new_tokens: NewFlag = 0,
    output_tokens: OutputFlag = 0,
    hit_probability: HitFlag = "1",
    hours: Annotated[
        str, typer.Option(help="How long a cache object is kept, in hours.", metavar="X")
    ] = "1",
    saving: Annotated[
        str,
        typer.Option(
            help="Share of the whole bill that has to be saved before it counts: 0.25 or 1/4.",
            metavar="X",
        ),
    ] = "0",
    requests: Annotated[
        int, typer.Option(help="How far to look in the table and the picture.", min=2, metavar="N")
    ] = 20,
    plot: Annotated[
        Path | None,
        typer.Option(help="Draw cost over requests, as SVG.", metavar="FILE", show_default=False),
    ] = None,
    term: TermFlag = None,
    prices: PricesFlag = None,
    at: AtFlag = None,
    as_json: JsonFlag = False,
    as_csv: CsvFlag = False,
) -> None:
    """From which request on a cache write, or a stored cache object, is cheaper than no caching."""
    from ostinato.ledger.break_even import Workload, break_evens, cost_lines
    from ostinato.ledger.break_even_chart import break_even_chart

    form = form_of(as_json, as_csv)
    found, moment = _book(prices).require(model), moment_of(at)
    load = Workload(
        prefix_tokens,
        new_tokens,
        output_tokens,
        share_of(hit_probability, "--hit-probability"),
        Fraction(decimal_of(hours, "--hours")),
    )
    rates = found.rates_at(moment, load.prompt_tokens, term or ())
    lines = cost_lines(rates, load)
    _refuse_unpriced(found, lines)
    met = break_evens(lines, share_of(saving, "--saving"))
    rows = [_break_even_row(s, lines, first, rates, requests) for s, first in met.items()]
    columns = (
        Column("strategy", "strategy", Kind.TEXT),
        Column("write_times_input", "write", Kind.FACTOR),
        Column("read_times_input", "read", Kind.FACTOR),
        Column("pays_from_request", "pays from request", Kind.COUNT, absent="never"),
        Column("cost", f"{requests:,} requests"),
        Column("without_caching", "without caching"),
        Column("saved_share", "saved", Kind.SHARE),
    )
    show(f"{_name(found)} at {_stamp(moment)}: {_load_text(load)}", columns, rows, form)
    if not met:
        console.messages().print("No price of a cache read is known: nothing to compare.")
    if plot is not None:
        title = f"{_name(found)}, {_load_text(load)}"
        try:
            plot.write_text(break_even_chart(title, lines, requests), encoding="utf-8")
        except OSError as error:
            raise typer.BadParameter(f"cannot write it: {error}", param_hint="--plot") from error
        console.messages().print(f"Wrote {console.escape(str(plot))}")


@app.command("ttl")
def ttl(
    model: ModelArgument,
    gaps: Annotated[
        str | None,
        typer.Option(
            help="Seconds between uses of a prefix: 60,600,5400, or a file of such numbers."
            " Default: between the uses of each prompt_cache_key in the ledger.",
            metavar="LIST|FILE",
            show_default=False,
        ),
    ] = None,
    prefixes: Annotated[
        int, typer.Option(help="How many prefixes these are the gaps of.", min=1, metavar="N")
    ] = 1,
    prefix_tokens: PrefixFlag = 10_000,
    new_tokens: NewFlag = 0,
    output_tokens: OutputFlag = 0,
    hit_probability: HitFlag = "1",
    since: SinceFlag = None,
    tenant: TenantFlag = None,
    ledger: LedgerFlag = None,
    data_dir: DataDirFlag = None,
    term: TermFlag = None,
    prices: PricesFlag = None,
    at: AtFlag = None,
    as_json: JsonFlag = False,
    as_csv: CsvFlag = False,
) -> None:
    """Which TTL is cheapest for the gaps between uses, given or from the ledger; the cheapest first.

    The hit probability is that of automatic caching, for which no vendor promises a TTL.
    """
    from ostinato.ledger.break_even import Workload
    from ostinato.ledger.ttl_choice import UseHistory, cost_by_ttl

    form = form_of(as_json, as_csv)
    found, moment = _book(prices).require(model), moment_of(at)
    hit = share_of(hit_probability, "--hit-probability")
    load = Workload(prefix_tokens, new_tokens, output_tokens, hit)
    if gaps is None:
        history = history_in_ledger(ledger, data_dir, filter_of(since, None, tenant, None))
    else:
        history = UseHistory(gaps_of(gaps), prefixes)
    rates = found.rates_at(moment, load.prompt_tokens, term or ())
    costs = cost_by_ttl(rates, found.ttls, load, history)
    _refuse_unpriced(found, costs)
    rows: list[Mapping[str, Value]] = [
        {
            "strategy": cost.strategy.value,
            "ttl_seconds": cost.ttl,
            "hits": cost.hits,
            "cost_per_request": cost.per_request,
            "cost": cost.total,
        }
        for cost in costs
    ]
    columns = (
        Column("strategy", "strategy", Kind.TEXT),
        Column("ttl_seconds", "TTL, seconds", Kind.COUNT),
        Column("hits", f"hits of {len(history.gaps):,}", Kind.COUNT),
        Column("cost_per_request", "a request"),
        Column("cost", "in all"),
    )
    show(f"{_name(found)} at {_stamp(moment)}: {_load_text(load)}", columns, rows, form)


app.command("saved")(saved)


def _model_row(found: ModelPrices, rates: Rates) -> dict[str, Value]:
    return {
        "provider": found.provider,
        "model": found.model,
        "input": rates.input,
        "read": rates.read,
        "write_short": rates.write_short,
        "write_long": rates.write_long,
        "output": rates.output,
        "storage": rates.storage,
        "sources": "; ".join(
            dict.fromkeys(
                layer.source if layer.as_of is None else f"{layer.source} ({layer.as_of})"
                for layer in found.layers
            )
        ),
    }


def _break_even_row(
    strategy: Strategy,
    lines: Mapping[Strategy, CostLine],
    first: int | None,
    rates: Rates,
    requests: int,
) -> dict[str, Value]:
    from ostinato.ledger.break_even import Strategy, times_input

    without = lines[Strategy.NONE].at(requests)
    cost = lines[strategy].at(requests)
    read = None
    if rates.read is not None and rates.input:
        read = Fraction(rates.read) / Fraction(rates.input)
    return {
        "strategy": strategy.value,
        "write_times_input": times_input(rates, strategy),
        "read_times_input": read,
        "pays_from_request": first,
        "cost": cost,
        "without_caching": without,
        "saved_share": (without - cost) / without if without else None,
    }


def _book(prices: Path | None) -> PriceBook:
    from ostinato.ledger.prices_book import load_book

    return load_book(prices)


def _refuse_unpriced(found: ModelPrices, costs: object) -> None:
    if not costs:
        raise typer.BadParameter(
            f"the input or output price of {_name(found)} is not known", param_hint="MODEL"
        )


def _name(found: ModelPrices) -> str:
    return f"{found.provider}/{found.model}"


def _stamp(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M} UTC"


def _load_text(load: Workload) -> str:
    return (
        f"{load.prefix_tokens:,} shared, {load.new_tokens:,} new and {load.output_tokens:,} output"
        " tokens a request"
    )
