"""``ostinato serve``: load a model and answer over HTTP."""

from __future__ import annotations

import logging
import shutil
import signal
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ostinato.cli import console
from ostinato.cli.ledger_access import place_of
from ostinato.cli.serve_flags import (
    ActivationDtypeFlag,
    ApiKeysFlag,
    BackendFlag,
    BlockSizeFlag,
    ConfigFileFlag,
    DataDirFlag,
    DiskTierDirFlag,
    DiskTierFlag,
    EvictionFlag,
    ExpireFlag,
    HostFlag,
    HouseRulesFlag,
    KVDtypeFlag,
    KVMemoryFlag,
    LedgerFlag,
    LedgerKeepFlag,
    LogLevel,
    LogLevelFlag,
    MaxBatchedTokensFlag,
    MaxModelLenFlag,
    MaxNumSeqsFlag,
    ModelFlag,
    NumBlocksFlag,
    PortFlag,
    PrefixIndexFlag,
    RamTierFlag,
    ReasoningParserFlag,
    RemoteBytesFlag,
    RemoteTierFlag,
    ResponsesDiskFlag,
    SchedulePolicyFlag,
    ServedNameFlag,
    ThreadsFlag,
    TierKVDtypeFlag,
    ToolCallParserFlag,
    WeightDtypeFlag,
    WritePolicyFlag,
)
from ostinato.errors import ConfigError
from ostinato.sizes import format_size, parse_size

if TYPE_CHECKING:
    from ostinato.api.local import LocalBackend
    from ostinato.api.openai_responses.store import ResponseStore
    from ostinato.api.tenants import KeyRing
    from ostinato.clock import Clock
    from ostinato.config import OstinatoConfig
    from ostinato.engine.async_engine import AsyncEngine
    from ostinato.engine.limits import EngineLimits

EPILOG = """
**Examples**

- The default model on http://127.0.0.1:8000: `ostinato serve`
- Your own file, 2 GiB for K/V: `ostinato serve --model ./qwen2.5-0.5b.gguf --kv-memory 2GiB`
- Without prefix caching, to compare: `ostinato serve --prefix-index none --port 8001`

Every flag can also be set in the environment (`OSTINATO_CACHE__BLOCK_SIZE=32`) or in a TOML file
(`--config`); a flag wins over the environment, the environment over the file.
"""

_SHOWN_TENANTS = 8


def serve(
    model: ModelFlag = None,
    served_model_name: ServedNameFlag = None,
    max_model_len: MaxModelLenFlag = None,
    backend: BackendFlag = None,
    threads: ThreadsFlag = None,
    weight_dtype: WeightDtypeFlag = None,
    activation_dtype: ActivationDtypeFlag = None,
    tool_call_parser: ToolCallParserFlag = None,
    reasoning_parser: ReasoningParserFlag = None,
    host: HostFlag = None,
    port: PortFlag = None,
    api_keys: ApiKeysFlag = None,
    block_size: BlockSizeFlag = None,
    kv_dtype: KVDtypeFlag = None,
    kv_memory: KVMemoryFlag = None,
    num_blocks: NumBlocksFlag = None,
    prefix_index: PrefixIndexFlag = None,
    eviction: EvictionFlag = None,
    expire: ExpireFlag = None,
    house_rules: HouseRulesFlag = None,
    ram_tier: RamTierFlag = None,
    disk_tier: DiskTierFlag = None,
    disk_tier_dir: DiskTierDirFlag = None,
    remote_tier: RemoteTierFlag = None,
    remote_bytes: RemoteBytesFlag = None,
    write_policy: WritePolicyFlag = None,
    tier_kv_dtype: TierKVDtypeFlag = None,
    max_num_seqs: MaxNumSeqsFlag = None,
    max_num_batched_tokens: MaxBatchedTokensFlag = None,
    schedule_policy: SchedulePolicyFlag = None,
    config_file: ConfigFileFlag = None,
    data_dir: DataDirFlag = None,
    ledger: LedgerFlag = None,
    ledger_keep: LedgerKeepFlag = None,
    responses_disk: ResponsesDiskFlag = None,
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
        tool_call_parser=tool_call_parser,
        reasoning_parser=reasoning_parser,
        data_dir=data_dir,
        server=_given(host=host, port=port),
        tenants=_given(api_keys_file=api_keys),
        ledger=_given(url=ledger, keep=ledger_keep),
        responses=_given(disk_bytes=responses_disk),
        cache=_given(
            block_size=block_size,
            kv_dtype=kv_dtype,
            kv_memory_bytes=None if kv_memory is None else parse_size(kv_memory),
            num_blocks=num_blocks,
            prefix_index=prefix_index,
            eviction=eviction,
            expire=expire,
        ),
        product=_given(house_rules=house_rules),
        tiers=_given(
            ram_bytes=ram_tier,
            disk_bytes=disk_tier,
            disk_dir=disk_tier_dir,
            remote_url=remote_tier,
            remote_bytes=remote_bytes,
            write_policy=write_policy,
            kv_dtype=tier_kv_dtype,
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
    from ostinato.cache.namespace import load_or_create_secret
    from ostinato.cli import server
    from ostinato.cli.cached_contents import cached_contents_of
    from ostinato.cli.collector import collecting_once_ready
    from ostinato.cli.ledger_access import ledger_of
    from ostinato.cli.loading import load_engine, started
    from ostinato.cli.prompt_entries import prompt_cache_of
    from ostinato.clock import SystemClock
    from ostinato.engine.tiers import with_serving_tiers

    # Until uvicorn takes the signals, a SIGTERM is as good as a Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    _set_up_logging(log_level)
    clock = SystemClock()
    # First of all that is kept in the data folder: it says best what is wrong with one that cannot be used.
    secret = load_or_create_secret(config.secret_file)
    keys = _keys(config, clock)
    sock = server.listen(config.server.host, config.server.port)
    url = server.url_of(sock)
    # The ledger closes last: the engine counts until it has stopped.
    with (
        collecting_once_ready() as ready,
        sock,
        ledger_of(config, clock) as ledger,
        closing(_responses(config, clock)) as responses,
        cached_contents_of(config, clock, ledger) as cached_contents,
        started(load_engine(with_serving_tiers(config))) as engine,
        prompt_cache_of(config, clock, secret, engine) as prompt_cache,
    ):
        backend = LocalBackend(engine)
        app = create_app(
            backend,
            clock=clock,
            keys=keys,
            prompt_cache=prompt_cache.cache,
            entries=prompt_cache.writer,
            ledger=ledger,
            responses=responses,
            cached_contents=cached_contents,
        )

        def on_ready() -> None:
            ready()
            typer.echo(f"Ostinato is ready on {url}")
            if ledger is not None:
                ledger.start()

        _print_summary(engine, backend, url, keys, prompt_cache.place)
        http = server.HTTPServer(
            app,
            on_ready=on_ready,
            on_drain=_print_drain,
            abort_rest=engine.stop,
            access_log=log_level in ("debug", "info"),
        )
        http.run(sockets=[sock])
    console.messages().print("Stopped.")


def _responses(config: OstinatoConfig, clock: Clock) -> ResponseStore:
    from ostinato.api.openai_responses.store import DAY, FILE_NAME, ResponseStore

    on_disk = config.responses.disk_bytes
    store = ResponseStore(
        config.data_dir / FILE_NAME if on_disk else None,
        clock,
        max_age=config.responses.max_age_days * DAY,
        max_bytes=on_disk or config.responses.memory_bytes,
    )
    store.open()
    return store


def _keys(config: OstinatoConfig, clock: Clock) -> KeyRing | None:
    """The API keys; without any, only an address that nobody else can reach will do."""
    from ostinato.api.tenants import key_ring
    from ostinato.cli import server
    from ostinato.cli.keys import key_file_of

    file = key_file_of(config)
    configured = config.tenants.api_keys_file is not None
    given = config.api_keys
    keys = key_ring(
        file if configured or file.exists() else None,
        None if given is None else given.get_secret_value(),
        clock,
    )
    if keys is None:
        server.require_loopback(config.server.host)
    else:
        signal.signal(signal.SIGHUP, lambda number, frame: keys.reload())
    return keys


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


def _print_summary(
    engine: AsyncEngine, backend: LocalBackend, url: str, keys: KeyRing | None, entries: str | None
) -> None:
    from importlib.metadata import version

    out = console.output()
    out.print(f"[bold]Ostinato {version('ostinato')}[/]")
    kept = [] if entries is None else [("entries", entries)]
    for name, text in [*_summary(engine), *kept, ("tenants", _tenants(keys))]:
        out.print(f"  {name:<9} {console.escape(text)}")
    command = _command_name()
    model = backend.models()[0].id
    at = "" if url == "http://127.0.0.1:8000" else f" --url {url}"
    body = (
        f'{{"model": "{model}", "temperature": 0.2,'
        ' "messages": [{"role": "user", "content": "Hello!"}]}'
    )
    out.print("\nTry, in another terminal:")
    key = "" if keys is None else ' -H "Authorization: Bearer $OSTINATO_API_KEY"'
    out.print(
        f"  curl {url}/v1/chat/completions{key} -H 'Content-Type: application/json' -d '{body}'",
        markup=False,
    )
    out.print(f"  {command} chat{at}", markup=False)
    out.print(f"  {command} demo", markup=False)
    out.print("\nCtrl-C stops it.")


def _tenants(keys: KeyRing | None) -> str:
    if keys is None:
        return "no API keys: whoever reaches this address is one and the same tenant"
    tenants = sorted({record.tenant for record in keys.records if record.role == "tenant"})
    names = ", ".join(tenants[:_SHOWN_TENANTS])
    more = f" and {len(tenants) - _SHOWN_TENANTS} more" if len(tenants) > _SHOWN_TENANTS else ""
    return f"{len(keys.records)} API keys; {names}{more}"


def _summary(engine: AsyncEngine) -> list[tuple[str, str]]:
    """What a user would otherwise have to guess, as label and text."""
    model, limits, config = engine.model, engine.limits, engine.config
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
            f" tokens, {format_size(limits.kv_pool_bytes)}{_open_blocks(limits)}",
        ),
        ("tiers", _tiers(engine)),
        ("prefixes", prefix),
        (
            "limits",
            f"{config.scheduler.max_num_seqs} sequences at once,"
            f" {config.scheduler.max_num_batched_tokens} tokens a step",
        ),
        ("data", str(config.data_dir)),
        ("ledger", place_of(config)),
    ]


def _tiers(engine: AsyncEngine) -> str:
    """What lies below the pool, and how much it may take."""
    stats, config = engine.stats().tiers, engine.config
    if stats is None:
        return "none: what is evicted from the pool is computed again"
    bounds = [f"{one.tier} {format_size(one.capacity_bytes)}" for one in stats.tiers]
    dtype = config.tiers.kv_dtype or config.cache.kv_dtype
    return f"{' → '.join(bounds)}, {config.tiers.write_policy}, in {dtype}"


def _open_blocks(limits: EngineLimits) -> str:
    """How much of a quantised pool is for blocks that are not full yet."""
    if not limits.kv_open_bytes:
        return ""
    return f", {format_size(limits.kv_open_bytes)} of it for open blocks in fp16"


def _command_name() -> str:
    """How this program is called from here: by name if it is on the path, else by its file."""
    if shutil.which("ostinato"):
        return "ostinato"
    program = Path(sys.argv[0])
    if program.name != "ostinato":
        return f"{sys.executable} -m ostinato.cli"
    here = Path.cwd()
    return str(program.relative_to(here)) if program.is_relative_to(here) else str(program)
