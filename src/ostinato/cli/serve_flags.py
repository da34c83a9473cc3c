"""The flags of ``ostinato serve``, each with what ``--help`` says about it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

LogLevel = Literal["debug", "info", "warning", "error"]

_MODEL, _HTTP = "Model", "HTTP"
_CACHE, _TIERS, _SCHEDULER = "K/V cache", "Tiers below the pool", "Scheduler"


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
ToolCallParserFlag = Annotated[
    Literal["auto", "hermes", "llama", "mistral", "none"] | None,
    _option(
        "How the model writes tool calls; auto reads it off the chat template, none leaves calls in the text"
        " (docs/tools.md). Default: auto.",
        _MODEL,
    ),
]
ReasoningParserFlag = Annotated[
    Literal["auto", "think", "none"] | None,
    _option(
        "How the model marks what it thinks; auto reads it off the chat template, none leaves it in the text"
        " (docs/reasoning.md). Default: auto.",
        _MODEL,
    ),
]
HostFlag = Annotated[
    str | None,
    _option(
        "Address to listen on; without API keys loopback only. Default: 127.0.0.1.",
        _HTTP,
        "ADDRESS",
    ),
]
PortFlag = Annotated[
    int | None, _option("Port; 0 takes any free one. Default: 8000.", _HTTP, "PORT")
]
ApiKeysFlag = Annotated[
    Path | None,
    _option(
        "File of keys, made by `ostinato keys add`; who has none is refused."
        " Default: api-keys.jsonl in the data folder, if it is there.",
        _HTTP,
        "FILE",
    ),
]
BlockSizeFlag = Annotated[int | None, _option("Tokens a block. Default: 16.", _CACHE, "TOKENS")]
KVDtypeFlag = Annotated[
    Literal["fp16", "fp8", "int8", "int4", "fp32"] | None,
    _option(
        "Format of stored K/V: fp8 and int8 hold about twice the tokens of fp16 in the same memory, int4"
        " three times, at a price in quality (docs/kv-quantisation.md). Default: fp16.",
        _CACHE,
    ),
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
HouseRulesFlag = Annotated[
    str | None,
    _option(
        "Whose prompt-caching rules (minimums, lifetimes, counters) callers see: local, openai-5.6,"
        " anthropic-1024, gemini-2048, deepseek and others (docs/prompt-caching.md)."
        " Default: local, exact counts.",
        _CACHE,
        "NAME",
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
RamTierFlag = Annotated[
    str | None,
    _option(
        "Most memory for K/V that the pool has no room for; `off`. Default: a quarter.",
        _TIERS,
        "SIZE",
    ),
]
DiskTierFlag = Annotated[
    str | None,
    _option("Most disk for K/V; it outlives a restart; `off`. Default: 10GiB.", _TIERS, "SIZE"),
]
DiskTierDirFlag = Annotated[
    Path | None,
    _option(
        "Folder of the disk tier, for one server at a time. Default: kv in --data-dir.",
        _TIERS,
        "FOLDER",
    ),
]
RemoteTierFlag = Annotated[
    str | None,
    _option(
        "Redis or Valkey server for K/V, e.g. redis://host:6379/0. Default: none.", _TIERS, "URL"
    ),
]
RemoteBytesFlag = Annotated[
    str | None,
    _option(
        "Most that this server keeps there; Redis's own maxmemory bounds all servers. Default: 10GiB.",
        _TIERS,
        "SIZE",
    ),
]
WritePolicyFlag = Annotated[
    Literal["write_back", "write_through", "write_through_selective"] | None,
    _option(
        "What is copied to the tiers before it is evicted: nothing, everything, or what a second request"
        " uses. What is evicted is copied by all three. Default: write_through_selective.",
        _TIERS,
    ),
]
TierKVDtypeFlag = Annotated[
    Literal["fp16", "fp8", "int8", "int4", "fp32"] | None,
    _option("Format of K/V in the tiers. Default: the pool's, --kv-dtype.", _TIERS),
]
EvictionFlag = Annotated[
    Literal["lru", "lfu", "arc", "reuse_rate"] | None,
    _option(
        "Which cached block goes next, in the pool and the tiers. Default: reuse_rate.", _CACHE
    ),
]
ExpireFlag = Annotated[
    Literal["soft", "hard"] | None,
    _option(
        "What becomes of K/V after the lifetime that a request asked for: ordinary, or unreadable and then"
        " erased everywhere. Default: soft.",
        _CACHE,
    ),
]
LedgerFlag = Annotated[
    str | None,
    typer.Option(
        "--ledger",
        help="Where a record of each request is kept (tokens, latencies, no text; see `ostinato usage`):"
        " sqlite:///FILE, postgresql://USER:PASSWORD@HOST/DATABASE, or off."
        " Default: ledger.sqlite3 in --data-dir.",
        metavar="URL",
        show_default=False,
    ),
]
LedgerKeepFlag = Annotated[
    str | None,
    typer.Option(
        "--ledger-keep",
        help="How long records stay in the ledger, e.g. 90d or 36h; older ones are deleted as the server runs."
        " Default: forever.",
        metavar="AGE",
        show_default=False,
    ),
]
ResponsesDiskFlag = Annotated[
    str | None,
    typer.Option(
        "--responses-disk",
        help="Bound of the stored responses of /v1/responses, in full text, in responses.sqlite3 in"
        " --data-dir; off keeps them in memory. Default: 1GiB.",
        metavar="SIZE",
        show_default=False,
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
