"""``ostinato plan``: how much memory the K/V cache takes, and what fits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ostinato.cli import console
from ostinato.cli.kv_memory import (
    Comparison,
    FormatRow,
    HeadLayout,
    KVPlan,
    LatentLayout,
    compare_formats,
    compare_head_counts,
)
from ostinato.errors import ConfigError
from ostinato.sizes import format_size, parse_size

if TYPE_CHECKING:
    from ostinato.models.config import ModelConfig

DEFAULT_CONTEXT = 4096
DEFAULT_BLOCK_SIZE = 16

EPILOG = """
**Examples**

- A Llama-3-8B-like model with 4,096 tokens (512 MiB):
  `ostinato plan --layers 32 --kv-heads 8 --head-dim 128 --context 4096`
- What fits, for a model you have: `ostinato plan --model smollm2-135m-instruct --memory 2GiB`
- Multi-head latent attention: `ostinato plan --layers 61 --mla-latent 512 --mla-rope 64`
"""


def _count(text: str, panel: str, low: int = 1) -> Any:
    """An option that is a whole number."""
    return typer.Option(help=text, min=low, rich_help_panel=panel, metavar="N")


_SHAPE, _LOAD = "Shape of the model", "Load"

ModelFlag = Annotated[
    str | None,
    typer.Option(
        help="Read the shape from this model: a name, a GGUF file or a folder.", metavar="MODEL"
    ),
]
LayersFlag = Annotated[int | None, _count("Decoder layers.", _SHAPE)]
KVHeadsFlag = Annotated[int | None, _count("Key/value heads a layer.", _SHAPE)]
HeadDimFlag = Annotated[int | None, _count("Elements of one head.", _SHAPE)]
HeadsFlag = Annotated[
    int | None,
    _count("Query heads a layer; given, MHA, GQA and MQA are set side by side.", _SHAPE),
]
LatentFlag = Annotated[int | None, _count("MLA: width of the latent.", _SHAPE)]
RopeFlag = Annotated[int | None, _count("MLA: width of the rotated key part.", _SHAPE, low=0)]
ContextFlag = Annotated[
    int | None,
    _count("Tokens of one sequence. Default: the model's own context, else 4096.", _LOAD),
]
BatchFlag = Annotated[int, _count("Sequences at once.", _LOAD)]
BytesFlag = Annotated[
    float,
    typer.Option(
        help="Bytes an element: 4 = fp32, 2 = fp16, 1 = 8-bit, 0.5 = 4-bit.",
        rich_help_panel=_LOAD,
        metavar="BYTES",
    ),
]
BlockSizeFlag = Annotated[
    int, _count("Tokens a block: int4 has scales for each channel of a block.", _LOAD)
]
MemoryFlag = Annotated[
    str | None,
    typer.Option(
        help="Say what fits in this much, e.g. 24GiB.", rich_help_panel=_LOAD, metavar="SIZE"
    ),
]
DataDirFlag = Annotated[
    Path | None, typer.Option(help="Data folder, where pulled models are looked up.")
]
JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def plan(
    model: ModelFlag = None,
    layers: LayersFlag = None,
    kv_heads: KVHeadsFlag = None,
    head_dim: HeadDimFlag = None,
    heads: HeadsFlag = None,
    mla_latent: LatentFlag = None,
    mla_rope: RopeFlag = None,
    context: ContextFlag = None,
    batch: BatchFlag = 1,
    kv_bytes: BytesFlag = 2.0,
    block_size: BlockSizeFlag = DEFAULT_BLOCK_SIZE,
    memory: MemoryFlag = None,
    data_dir: DataDirFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Compute how much memory the K/V cache takes, in each format, and what fits in yours.

    Nothing is loaded: with --model only the file's header is read.
    """
    shape = {"--layers": layers, "--kv-heads": kv_heads, "--head-dim": head_dim}
    latent = {"--mla-latent": mla_latent, "--mla-rope": mla_rope}
    layout: HeadLayout | LatentLayout
    if model is not None:
        _refuse_given({**shape, **latent, "--heads": heads}, because="--model gives the shape")
        config = read_model_config(model, data_dir)
        layout = HeadLayout(config.num_layers, config.num_kv_heads, config.head_dim)
        heads, context = config.num_heads, context or config.max_position
    else:
        layout = _layout_from_flags(shape, latent, heads)
    kv_plan = KVPlan(layout, kv_bytes, context or DEFAULT_CONTEXT, batch)
    rows = [] if heads is None else compare_head_counts(kv_plan, heads)
    formats = compare_formats(layout, block_size) if isinstance(layout, HeadLayout) else []
    room = None if memory is None else parse_size(memory)
    if as_json:
        found = _as_json(kv_plan, rows, room, model)
        typer.echo(json.dumps(found | _formats_as_json(formats, room), indent=2))
        return
    _print_plan(kv_plan, rows, room, model)
    if formats:
        console.output().print(_formats_table(formats, room))


def read_model_config(model: str, data_dir: Path | None) -> ModelConfig:
    """The architecture of a model that is on this machine, from its header alone.

    Raises:
        ModelError: there is no such model, or it cannot be read.
    """
    from ostinato.config import load_config
    from ostinato.models.loader import read_config
    from ostinato.models.registry import resolve_model

    config = load_config({} if data_dir is None else {"data_dir": data_dir})
    return read_config(resolve_model(model, config.data_dir))


def _layout_from_flags(
    shape: dict[str, int | None], latent: dict[str, int | None], heads: int | None
) -> HeadLayout | LatentLayout:
    if all(value is None for value in latent.values()):
        return HeadLayout(*_require_given(shape))
    others = {name: value for name, value in shape.items() if name != "--layers"}
    _refuse_given({**others, "--heads": heads}, because="MLA has no K/V heads")
    return LatentLayout(*_require_given({"--layers": shape["--layers"], **latent}))


def _require_given(flags: dict[str, int | None]) -> list[int]:
    missing = [name for name, value in flags.items() if value is None]
    if missing:
        raise ConfigError(
            f"{', '.join(missing)} missing: give --layers, --kv-heads and --head-dim,"
            " or --layers, --mla-latent and --mla-rope, or --model"
        )
    return [value for value in flags.values() if value is not None]


def _refuse_given(flags: dict[str, int | None], *, because: str) -> None:
    given = [name for name, value in flags.items() if value is not None]
    if given:
        raise ConfigError(f"{', '.join(given)} cannot be used here: {because}")


def _as_json(
    plan: KVPlan, rows: list[Comparison], memory: int | None, model: str | None
) -> dict[str, Any]:
    result: dict[str, Any] = {
        "model": model,
        "context": plan.context,
        "batch": plan.batch,
        "kv_bytes_per_element": plan.kv_bytes,
        "elements_per_token": plan.layout.elements_per_token,
        "bytes_per_token": plan.bytes_per_token,
        "bytes_per_context": plan.bytes_per_context,
        "bytes_total": plan.bytes_total,
    }
    if memory is not None:
        result["memory"] = {
            "bytes": memory,
            "tokens": plan.tokens_in(memory),
            "contexts": plan.contexts_in(memory),
        }
    if rows:
        result["comparison"] = [
            {
                "kind": row.kind,
                "kv_heads": row.kv_heads,
                "bytes_per_token": row.plan.bytes_per_token,
                "bytes_total": row.plan.bytes_total,
                "share_of_mha": row.share_of_mha,
            }
            for row in rows
        ]
    return result


def _print_plan(
    plan: KVPlan, rows: list[Comparison], memory: int | None, model: str | None
) -> None:
    out = console.output()
    heading = "K/V memory" if model is None else f"K/V memory of {console.escape(model)}"
    out.print(f"[bold]{heading}[/]: {plan.layout.describe()}")
    out.print(
        f"  one token    {format_size(plan.bytes_per_token)} at {plan.kv_bytes:g} B an element"
    )
    out.print(f"  one context  {format_size(plan.bytes_per_context)} ({plan.context:,} tokens)")
    out.print(f"  [bold]in all       {format_size(plan.bytes_total)}[/] (batch {plan.batch:,})")
    if memory is not None:
        out.print(
            f"  fits in {format_size(memory)}: {plan.tokens_in(memory):,} tokens,"
            f" or {plan.contexts_in(memory):,} contexts of {plan.context:,}"
        )
    if rows:
        out.print(_comparison_table(rows, plan, memory))


def _formats_as_json(formats: list[FormatRow], memory: int | None) -> dict[str, Any]:
    if not formats:
        return {}
    rows: list[dict[str, Any]] = []
    for row in formats:
        found = {
            "kv_dtype": row.dtype.value,
            "bytes_per_token": row.bytes_per_token,
            "tokens_of_fp16": row.tokens_of_fp16,
        }
        rows.append(found if memory is None else found | {"tokens": row.tokens_in(memory)})
    return {"formats": rows}


def _formats_table(formats: list[FormatRow], memory: int | None) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    for name in ("--kv-dtype", "a token", "tokens that fit, of fp16"):
        table.add_column(name, justify="left" if name == "--kv-dtype" else "right")
    if memory is not None:
        table.add_column("tokens that fit", justify="right")
    for row in formats:
        fit = [] if memory is None else [f"{row.tokens_in(memory):,}"]
        size = format_size(row.bytes_per_token)
        table.add_row(row.dtype.value, size, f"{row.tokens_of_fp16:.2f}", *fit)
    return table


def _comparison_table(rows: list[Comparison], plan: KVPlan, memory: int | None) -> Any:
    from rich import box
    from rich.table import Table

    layout = plan.layout
    assert isinstance(layout, HeadLayout)
    table = Table(box=box.SIMPLE_HEAD, title_justify="left")
    for name in ("attention", "K/V heads", "a token", "in all", "of MHA"):
        table.add_column(name, justify="left" if name == "attention" else "right")
    if memory is not None:
        table.add_column("contexts that fit", justify="right")
    for row in rows:
        mark = " (this one)" if row.kv_heads == layout.kv_heads else ""
        cells = [
            row.kind + mark,
            str(row.kv_heads),
            format_size(row.plan.bytes_per_token),
            format_size(row.plan.bytes_total),
            f"{100 * row.share_of_mha:.3g} %",
        ]
        if memory is not None:
            cells.append(f"{row.plan.contexts_in(memory):,}")
        table.add_row(*cells)
    return table
