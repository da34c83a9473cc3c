"""``ostinato serve``: load a model and answer over HTTP."""

from __future__ import annotations

import logging
import shutil
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ostinato.cli import console
from ostinato.errors import ConfigError
from ostinato.sizes import format_size, parse_size

if TYPE_CHECKING:
    from ostinato.api.local import LocalBackend
    from ostinato.config import OstinatoConfig
    from ostinato.engine.async_engine import AsyncEngine

EPILOG = """
**Examples**

- The default model on http://127.0.0.1:8000: `ostinato serve`
- Your own file, 2 GiB for K/V: `ostinato serve --model ./qwen2.5-0.5b.gguf --kv-memory 2GiB`
- Without prefix caching, to compare: `ostinato serve --prefix-index none --port 8001`

Every flag can also be set in the environment (`OSTINATO_CACHE__BLOCK_SIZE=32`) or in a TOML file
(`--config`); a flag wins over the environment, the environment over the file.
"""

LogLevel = Literal["debug", "info", "warning", "error"]

_MODEL, _HTTP = "Model", "HTTP"
_CACHE, _SCHEDULER = "K/V cache", "Scheduler"


def _option(text: str, panel: str, metavar: str | None = None) -> Any:
    return typer.Option(help=text, rich_help_panel=panel, metavar=metavar, show_default=False)


ModelFlag = Annotated[
    str | None,
    _option(
        "A known name, a GGUF file, or a folder with safetensors, config and tokenizer."
        " Default: smollm2-135m-instruct.",
        _MODEL,
        "MODEL",
    ),
]
ServedNameFlag = Annotated[
    str | None, _option("The name clients use. Default: from --model.", _MODEL, "NAME")
]
MaxModelLenFlag = Annotated[
    int | None,
    _option("Longest prompt + output in tokens. Default: the model's own.", _MODEL, "TOKENS"),
]
BackendFlag = Annotated[
    Literal["auto", "cpu", "reference"] | None,
    _option(
        "Kernels to run; auto takes the native ones (cpu), or NumPy where they cannot run. "
        "Default: auto.",
        _MODEL,
    ),
]
ThreadsFlag = Annotated[
    int | None,
    _option("Threads of the native kernels; 0 takes all usable CPUs. Default: 0.", _MODEL, "N"),
]
WeightDtypeFlag = Annotated[
    Literal["auto", "fp32", "fp16", "int8", "int4"] | None,
    _option("What the native kernels pack weights to. Default: auto, as in the file.", _MODEL),
]
ActivationDtypeFlag = Annotated[
    Literal["int8", "fp32"] | None,
    _option("int8 is fast, fp32 exact, in products with integer weights. Default: int8.", _MODEL),
]
HostFlag = Annotated[
    str | None,
    _option("Address to listen on; loopback only. Default: 127.0.0.1.", _HTTP, "ADDRESS"),
]
PortFlag = Annotated[
    int | None, _option("Port; 0 takes any free one. Default: 8000.", _HTTP, "PORT")
]
BlockSizeFlag = Annotated[int | None, _option("Tokens a block. Default: 16.", _CACHE, "TOKENS")]
KVDtypeFlag = Annotated[
    Literal["fp16", "fp32"] | None,
    _option("Element type of stored K/V. Default: fp16.", _CACHE),
]
KVMemoryFlag = Annotated[
    str | None,
    _option("Memory for K/V, e.g. 2GiB. Default: a quarter of what is free.", _CACHE, "SIZE"),
]
NumBlocksFlag = Annotated[
    int | None, _option("Blocks in the pool; instead of --kv-memory.", _CACHE, "N")
]
PrefixIndexFlag = Annotated[
    Literal["radix", "block_hash", "none"] | None,
    _option(
        "radix reuses to the token, block_hash whole blocks, none switches prefix caching off."
        " Default: radix.",
        _CACHE,
    ),
]
MaxNumSeqsFlag = Annotated[
    int | None, _option("Most sequences at once; others wait. Default: 64.", _SCHEDULER, "N")
]
MaxBatchedTokensFlag = Annotated[
    int | None, _option("Most tokens computed in one step. Default: 512.", _SCHEDULER, "TOKENS")
]
SchedulePolicyFlag = Annotated[
    Literal["lpm", "fcfs"] | None,
    _option(
        "Order of waiting: lpm weighs cached prefix, age, fair share and priority; fcfs is the order of"
        " arrival. Default: lpm.",
        _SCHEDULER,
    ),
]
ConfigFileFlag = Annotated[
    Path | None,
    typer.Option("--config", help="TOML file with settings.", metavar="FILE", show_default=False),
]
DataDirFlag = Annotated[
    Path | None,
    typer.Option(
        help="Everything that is written lives here. Default: the platform's usual place.",
        metavar="FOLDER",
        show_default=False,
    ),
]
LogLevelFlag = Annotated[
    LogLevel, typer.Option(help="What to log; info logs a line for each HTTP request.")
]


def serve(
    model: ModelFlag = None,
    served_model_name: ServedNameFlag = None,
    max_model_len: MaxModelLenFlag = None,
    backend: BackendFlag = None,
    threads: ThreadsFlag = None,
    weight_dtype: WeightDtypeFlag = None,
    activation_dtype: ActivationDtypeFlag = None,
    host: HostFlag = None,
    port: PortFlag = None,
    block_size: BlockSizeFlag = None,
    kv_dtype: KVDtypeFlag = None,
    kv_memory: KVMemoryFlag = None,
    num_blocks: NumBlocksFlag = None,
    prefix_index: PrefixIndexFlag = None,
    max_num_seqs: MaxNumSeqsFlag = None,
    max_num_batched_tokens: MaxBatchedTokensFlag = None,
    schedule_policy: SchedulePolicyFlag = None,
    config_file: ConfigFileFlag = None,
    data_dir: DataDirFlag = None,
    log_level: LogLevelFlag = "info",
) -> None:
    """Load a model and answer the OpenAI API over HTTP.

    Loads the model, prints what was loaded and what it takes, and serves until Ctrl-C. Prompts that begin
    like earlier ones are not computed again; each reply says how many tokens were reused.
    """
    from ostinato.config import load_config

    if kv_memory is not None and num_blocks is not None:
        raise ConfigError("--kv-memory and --num-blocks both size the pool: give one of them")
    flags = _given(
        model=model,
        served_model_name=served_model_name,
        max_model_len=max_model_len,
        backend=backend,
        threads=threads,
        weight_dtype=weight_dtype,
        activation_dtype=activation_dtype,
        data_dir=data_dir,
        server=_given(host=host, port=port),
        cache=_given(
            block_size=block_size,
            kv_dtype=kv_dtype,
            kv_memory_bytes=None if kv_memory is None else parse_size(kv_memory),
            num_blocks=num_blocks,
            prefix_index=prefix_index,
        ),
        scheduler=_given(
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            policy=schedule_policy,
        ),
    )
    run(load_config(flags, config_file), log_level)


def run(config: OstinatoConfig, log_level: LogLevel) -> None:
    """Serve in the foreground until a signal comes.

    Raises:
        ConfigError: an address or a setting that cannot work.
        ModelError: the model is not here or cannot be read.
    """
    from ostinato.api.app import create_app
    from ostinato.api.local import LocalBackend
    from ostinato.cli import server
    from ostinato.cli.loading import load_engine, started
    from ostinato.clock import SystemClock

    # Until uvicorn takes the signals, a SIGTERM is as good as a Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    _set_up_logging(log_level)
    sock = server.listen(config.server.host, config.server.port)
    url = server.url_of(sock)
    with sock, started(load_engine(config)) as engine:
        backend = LocalBackend(engine)
        app = create_app(backend, clock=SystemClock())
        _print_summary(engine, backend, url)
        http = server.HTTPServer(
            app,
            on_ready=lambda: typer.echo(f"Ostinato is ready on {url}"),
            on_drain=_print_drain,
            abort_rest=engine.stop,
            access_log=log_level in ("debug", "info"),
        )
        http.run(sockets=[sock])
    console.messages().print("Stopped.")


def _print_drain(running: int) -> None:
    answers = "1 answer is" if running == 1 else f"{running} answers are"
    console.messages().print(f"Stopping; {answers} still being written (Ctrl-C: stop at once).")


def _given(**flags: Any) -> dict[str, Any]:
    """What was set: the rest comes from the environment, the file or the defaults."""
    return {name: value for name, value in flags.items() if value not in (None, {})}


def _set_up_logging(level: LogLevel) -> None:
    logging.basicConfig(
        stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s"
    )
    number = logging.getLevelNamesMapping()[level.upper()]
    for name in ("ostinato", "uvicorn"):
        logging.getLogger(name).setLevel(number)
    if level != "debug":
        # Uvicorn tells of its own start and stop, which our summary says better; asyncio warns of
        # every client that goes away in the middle of an answer, which clients do.
        logging.getLogger("uvicorn.error").setLevel(max(logging.WARNING, number))
        logging.getLogger("asyncio").setLevel(logging.ERROR)


def _print_summary(engine: AsyncEngine, backend: LocalBackend, url: str) -> None:
    from importlib.metadata import version

    out = console.output()
    out.print(f"[bold]Ostinato {version('ostinato')}[/]")
    for name, text in _summary(engine):
        out.print(f"  {name:<9} {console.escape(text)}")
    command = _command_name()
    model = backend.models()[0].id
    at = "" if url == "http://127.0.0.1:8000" else f" --url {url}"
    body = (
        f'{{"model": "{model}", "temperature": 0.2,'
        ' "messages": [{"role": "user", "content": "Hello!"}]}'
    )
    out.print("\nTry, in another terminal:")
    out.print(
        f"  curl {url}/v1/chat/completions -H 'Content-Type: application/json' -d '{body}'",
        markup=False,
    )
    out.print(f"  {command} chat{at}", markup=False)
    out.print(f"  {command} demo", markup=False)
    out.print("\nCtrl-C stops it.")


def _summary(engine: AsyncEngine) -> list[tuple[str, str]]:
    """What a user would otherwise have to guess, as label and text."""
    model, limits, config = engine.model, engine.limits, engine.config
    pool_bytes = limits.pool_tokens * limits.kv_bytes_per_token
    if limits.min_cacheable_tokens is None:
        prefix = "off (--prefix-index none): no prompt is ever reused"
    else:
        least = limits.min_cacheable_tokens
        prefix = (
            f"{config.cache.prefix_index} index; minimum cacheable prefix"
            f" {least} token{'' if least == 1 else 's'}"
        )
    return [
        (
            "model",
            f"{model.name}: {model.config.architecture}, {model.config.num_layers} layers,"
            f" {format_size(model.weight_bytes)} of weights, context {limits.max_model_len:,} tokens",
        ),
        ("backend", str(engine.model.decoder.backend)),
        ("K/V", f"{format_size(limits.kv_bytes_per_token)} a token in {config.cache.kv_dtype}"),
        (
            "pool",
            f"{limits.num_blocks:,} blocks × {limits.block_size} tokens = {limits.pool_tokens:,}"
            f" tokens, {format_size(pool_bytes)}",
        ),
        ("prefixes", prefix),
        (
            "limits",
            f"{config.scheduler.max_num_seqs} sequences at once,"
            f" {config.scheduler.max_num_batched_tokens} tokens a step",
        ),
        ("data", str(config.data_dir)),
    ]


def _command_name() -> str:
    """How this program is called from here: by name if it is on the path, else by its file."""
    if shutil.which("ostinato"):
        return "ostinato"
    program = Path(sys.argv[0])
    if program.name != "ostinato":
        return f"{sys.executable} -m ostinato.cli"
    here = Path.cwd()
    return str(program.relative_to(here)) if program.is_relative_to(here) else str(program)
