"""Every setting of Ostinato: one frozen tree, read once.

Sources, strongest first: command-line flags, ``OSTINATO_*`` environment variables (nested names joined with
two underscores, e.g. ``OSTINATO_CACHE__BLOCK_SIZE``), a TOML file named by ``--config`` or
``OSTINATO_CONFIG``, the defaults below. Nobody else reads the environment.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import platformdirs
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)

from ostinato.cache.eviction import DEFAULT_POLICY
from ostinato.cache.layout import KVDtype
from ostinato.cache.tiers.policy import PrefetchStop, WritePolicy
from ostinato.cache.types import tenant_id
from ostinato.errors import ConfigError
from ostinato.product.rules import house_rules
from ostinato.sizes import parse_size

DEFAULT_MODEL = "smollm2-135m-instruct"

_PREFIX = "OSTINATO_"
_CONFIG_VARIABLE = "OSTINATO_CONFIG"
_CLIENT_VARIABLE = "OSTINATO_API_KEY"
"""Read by ``ostinato chat``; no setting of a server."""
_SERVICE_VARIABLE = re.compile(r"OSTINATO_(SERVICE_(HOST|PORT(_\w+)?)|PORT_\d+_(TCP|UDP)(_\w+)?)")

PositiveInt = Annotated[int, Field(ge=1)]


def _bytes(value: object) -> object:
    """A size with a unit, as the command line takes it too; all else is left to pydantic."""
    if not isinstance(value, str):
        return value
    try:
        return parse_size(value)
    except ConfigError as error:
        raise ValueError(str(error)) from error


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class CacheConfig(_Section):
    """K/V memory and prefix caching."""

    block_size: PositiveInt = 16
    """Tokens a block."""
    kv_dtype: KVDtype = KVDtype.FP16
    """Format of stored K/V. fp8 and int8 take half of fp16, int4 a third; a sequence's newest block stays in
    fp16. fp32 doubles the memory and is bit-exact for tests."""
    kv_memory_bytes: Annotated[PositiveInt, BeforeValidator(_bytes)] | None = None
    """Bytes for the pool, also as a text like ``2GiB``.
    Default: a quarter of the memory that is free, at most what 64 full contexts take."""
    num_blocks: PositiveInt | None = None
    """Blocks in the pool; overrides `kv_memory_bytes`."""
    eviction: Literal["lru", "lfu", "arc", "reuse_rate"] = DEFAULT_POLICY
    """Which cached block goes next, in the pool and in every tier; see docs/eviction.md."""
    expire: Literal["soft", "hard"] = "soft"
    """What becomes of promised K/V after its time: ordinary (soft), or unreadable and then erased (hard)."""
    prefix_index: Literal["radix", "block_hash", "none"] = "radix"
    """radix reuses to the token, block_hash whole blocks only, none switches prefix caching off."""


def _bytes_or_off(value: object) -> object:
    """A size, or ``0`` or ``off`` for none at all."""
    return 0 if str(value).strip().lower() in ("0", "off") else _bytes(value)


OptionalSize = Annotated[int, Field(ge=0), BeforeValidator(_bytes_or_off)]


class TiersConfig(_Section):
    """What lies below the device pool. Sizes are bytes, or a text like ``4GiB`` or ``off``.

    The defaults of `ram_bytes` and `disk_bytes` hold for ``ostinato serve``. Elsewhere (the `LLM` class,
    ``chat``, ``demo``) there are no tiers unless they are asked for: a script writes nothing to disk.
    """

    ram_bytes: OptionalSize | None = None
    """Bound of the RAM tier. Default: a quarter of the machine's memory, taken as it is used."""
    disk_bytes: OptionalSize | None = None
    """Bound of the disk tier, files of other models in the folder included. Default: 10 GiB."""
    disk_dir: Path | None = None
    """Its folder, for one process at a time. Default: ``kv`` in the data folder."""
    disk_keep_free: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.1
    """Share of the file system that stays free, whatever the bound says."""
    remote_url: str | None = Field(default=None, repr=False)
    """A Redis or Valkey server, ``redis://…``, ``rediss://…`` or ``unix://…``. Default: none."""
    remote_bytes: Annotated[PositiveInt, BeforeValidator(_bytes)] = 10 * 2**30
    """Bound of what this process keeps there."""
    kv_dtype: KVDtype | None = None
    """Format of K/V in all tiers; default: the device's own."""
    write_policy: WritePolicy = WritePolicy.WRITE_THROUGH_SELECTIVE
    """What is copied before it is evicted: nothing (write_back), everything (write_through), or what a second
    request uses (write_through_selective)."""
    prefetch: PrefetchStop = PrefetchStop.BEST_EFFORT
    """What a request does whose turn comes before its prefetch into RAM has ended."""
    flush_seconds: Annotated[float, Field(ge=0.0)] = 2.0
    """Most that a stop spends on writing what has no copy on disk or a remote server."""


class SchedulerConfig(_Section):
    """How requests share the engine."""

    max_num_seqs: PositiveInt = 64
    """Most sequences running at once; the rest wait."""
    max_num_batched_tokens: PositiveInt = 512
    """Token budget of one step, shared by decodes and prefill chunks; at least `max_num_seqs`, so that no
    running sequence ever misses a step."""
    long_prefill_tokens: PositiveInt | None = None
    """Most tokens of a step for one prefill while others want some; default: half the budget."""
    policy: Literal["lpm", "fcfs"] = "lpm"
    """Order of waiting. lpm: longest cached prefix, age, fair share between tenants and priority, weighed
    against each other; fcfs: order of arrival alone."""
    max_waiting: PositiveInt = 1024
    """Most requests waiting beyond those that find a free sequence; one more is refused with 503."""
    watermark: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.01
    """Share of the pool that admission leaves free for running requests to grow into."""
    age_weight: Annotated[float, Field(ge=0.0)] = 64.0
    """Of policy lpm: cached tokens that a second of waiting is worth. At 0 a wait need not end."""

    @model_validator(mode="after")
    def _one_token_each(self) -> Self:
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) must be at least max_num_seqs "
                f"({self.max_num_seqs}), since each running sequence needs a token a step: raise the "
                "first or lower the second"
            )
        return self


def _tenant_name(name: str) -> str:
    """A tenant's name, or ``"*"``."""
    try:
        return name if name == "*" else tenant_id(name)
    except ConfigError as error:
        raise ValueError(str(error)) from error


TenantName = Annotated[str, AfterValidator(_tenant_name)]


class TenantLimits(_Section):
    """What one tenant may take of what all share. Budgets are no partitions: what nobody else wants is free."""

    weight: Annotated[float, Field(ge=0.001, le=1000.0)] | None = None
    """Share of the engine beside others that want it at the same time; default: 1."""
    num_blocks: Annotated[int, Field(ge=0)] | None = None
    """Blocks of the pool beyond which its cached ones are evicted first; default: no such bound."""
    ram_bytes: Annotated[int, Field(ge=0), BeforeValidator(_bytes)] | None = None
    """The same for the RAM tier, in bytes or as ``2GiB``."""
    disk_bytes: Annotated[int, Field(ge=0), BeforeValidator(_bytes)] | None = None
    """The same for the disk tier."""


class SharedPrompt(_Section):
    """A system prompt that is public among some tenants: computed at start, kept, copied to who sends it."""

    name: Annotated[str, Field(min_length=1)]
    """For messages."""
    tenants: Annotated[tuple[TenantName, ...], Field(min_length=1)]
    """Who may read it; ``"*"`` is everybody."""
    system_prompt: str | None = None
    """Its text, or else"""
    file: Path | None = None
    """a UTF-8 file that holds it, to the last character."""

    @model_validator(mode="after")
    def _one_text(self) -> Self:
        if (self.system_prompt is None) == (self.file is None):
            raise ValueError("give one of system_prompt and file")
        return self


class TenantConfig(_Section):
    """Who may use the server, and what each may take."""

    api_keys_file: Path | None = None
    """Written by ``ostinato keys``; default: api-keys.jsonl in the data folder, if there is one."""
    limits: dict[TenantName, TenantLimits] = {}
    """By tenant; ``"*"`` holds for everybody, as far as their own entry says nothing else."""
    shared: tuple[SharedPrompt, ...] = ()
    """System prompts that several tenants may read."""


def _house_rules(name: str) -> str:
    """A name of `product.rules.HOUSE_RULES`."""
    try:
        return house_rules(name).name
    except ConfigError as error:
        raise ValueError(str(error)) from error


class ProductConfig(_Section):
    """What callers see of caching: counters, lifetimes, minimums."""

    house_rules: Annotated[str, AfterValidator(_house_rules)] = "local"
    """Whose rules for prompt caching hold: local counts exactly what was reused; anthropic-1024, openai-5.6,
    gemini-2048, deepseek and others do as those vendors do."""


class LedgerConfig(_Section):
    """Where a record of each request is kept."""

    url: str | None = Field(default=None, repr=False)
    """``off``, ``sqlite:///FILE`` or ``postgresql://…``. Default: ledger.sqlite3 in the data folder."""


class ResponsesConfig(_Section):
    """Responses that clients may continue and read again (``store``, on by default)."""

    disk_bytes: OptionalSize = 2**30
    """Bound of responses.sqlite3 in the data folder; the oldest go first. 0 or ``off`` keeps responses in
    memory, up to `memory_bytes`, and writes none to disk."""
    memory_bytes: OptionalSize = 64 * 2**20
    """Bound of responses in memory."""
    max_age_days: Annotated[float, Field(gt=0.0)] = 30.0
    """What is older is deleted."""


class ServerConfig(_Section):
    """HTTP."""

    host: str = "127.0.0.1"
    """Address to listen on. Without API keys only loopback is allowed; see `TenantConfig`."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    """0 lets the system choose a free port."""


class OstinatoConfig(BaseSettings):
    """The whole tree."""

    model_config = SettingsConfigDict(
        env_prefix=_PREFIX, env_nested_delimiter="__", frozen=True, extra="forbid"
    )

    model: str = DEFAULT_MODEL
    """A model's name, a GGUF file, or a folder of safetensors + config + tokenizer."""
    served_model_name: str | None = None
    """The name clients use; default: derived from `model`."""
    max_model_len: PositiveInt | None = None
    """Longest prompt + output in tokens; default: the model's own context."""
    backend: Literal["auto", "cpu", "reference"] = "auto"
    """Which kernels to run. auto takes the native ones where they work, else NumPy (reference)."""
    threads: Annotated[int, Field(ge=0)] = 0
    """Threads of the native kernels. 0 takes the CPUs that the process may really use."""
    weight_dtype: Literal["auto", "fp32", "fp16", "int8", "int4"] = "auto"
    """What the native kernels pack weights to. auto keeps the file's precision (K-quants become int8)."""
    activation_dtype: Literal["int8", "fp32"] = "int8"
    """int8 rounds activations before products with integer weights: faster. fp32 is exact."""
    tool_call_parser: Literal["auto", "hermes", "llama", "mistral", "none"] = "auto"
    """How the model writes tool calls. auto reads it off the chat template; none leaves calls in the text."""
    data_dir: Path = Field(default_factory=lambda: Path(platformdirs.user_data_dir("ostinato")))
    """Everything that is written lives below this folder (environment: OSTINATO_DATA_DIR)."""
    api_keys: SecretStr | None = None
    """``TENANT=KEY,TENANT=KEY``, from the environment (OSTINATO_API_KEYS); besides those of a file."""
    cache: CacheConfig = CacheConfig()
    tiers: TiersConfig = TiersConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    product: ProductConfig = ProductConfig()
    responses: ResponsesConfig = ResponsesConfig()
    server: ServerConfig = ServerConfig()
    ledger: LedgerConfig = LedgerConfig()
    tenants: TenantConfig = TenantConfig()

    @property
    def secret_file(self) -> Path:
        """What cache keys are made under; see `cache.namespace`."""
        return self.data_dir / "secret"

    @property
    def disk_tier_dir(self) -> Path:
        """Folder of the disk tier."""
        return self.tiers.disk_dir or self.data_dir / "kv"

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        toml = TomlConfigSettingsSource(settings_cls, cls._toml_file())
        return (init_settings, env_settings, toml)

    @classmethod
    def _toml_file(cls) -> Path | None:
        return None


def load_config(
    flags: dict[str, Any] | None = None, toml_file: Path | None = None
) -> OstinatoConfig:
    """Merge all sources and validate.

    Args:
        flags: nested mapping of what the command line set, e.g. ``{"cache": {"block_size": 32}}``. A pool
            size in it wins over one of the other kind from elsewhere.
        toml_file: configuration file; default: the one that ``OSTINATO_CONFIG`` names, if any.

    Raises:
        ConfigError: naming each setting that is wrong, what it was and what is allowed; also for an
            ``OSTINATO_*`` variable or an entry of the file that names no setting.
    """
    _refuse_unknown_variables(os.environ)
    _require_objects(os.environ)
    if toml_file is None and (named := os.environ.get(_CONFIG_VARIABLE)):
        toml_file = Path(named)
    if toml_file is not None and not toml_file.is_file():
        raise ConfigError(f"there is no configuration file {toml_file}")
    if toml_file is not None:
        _refuse_unknown_entries(toml_file)

    class _WithFile(OstinatoConfig):
        @classmethod
        def _toml_file(cls) -> Path | None:
            return toml_file

    try:
        return _WithFile(**_with_one_pool_size(flags or {}))
    except ValidationError as error:
        raise ConfigError(_explain(error)) from error
    except SettingsError as error:
        raise ConfigError(str(error)) from error


def _with_one_pool_size(flags: dict[str, Any]) -> dict[str, Any]:
    """`flags` in which a pool size takes the other kind back, wherever that was set."""
    kinds = ("num_blocks", "kv_memory_bytes")
    cache = flags.get("cache")
    if not isinstance(cache, Mapping) or not any(cache.get(kind) is not None for kind in kinds):
        return flags
    return {**flags, "cache": {**dict.fromkeys(kinds), **cache}}


def _sections() -> dict[str, type[_Section]]:
    return {
        name: kind
        for name, field in OstinatoConfig.model_fields.items()
        if isinstance(kind := field.annotation, type) and issubclass(kind, _Section)
    }


def _require_objects(environment: Mapping[str, str]) -> None:
    """A variable for a whole section holds JSON."""
    for name, kind in _sections().items():
        for variable, text in environment.items():
            if variable.upper() != _variable(name):
                continue
            try:
                value = json.loads(text)
            except ValueError:
                value = None
            if not isinstance(value, dict):
                example = _variable(name, next(iter(kind.model_fields)))
                raise ConfigError(
                    f"the environment variable {variable} must be a JSON object, not {text[:80]!r}; "
                    f"single settings have variables of their own, such as {example}"
                )


def _refuse_unknown_entries(toml_file: Path) -> None:
    try:
        entries = tomllib.loads(toml_file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{toml_file}: {error}") from error
    sections = _sections()
    outer = OstinatoConfig.model_fields.keys() - sections.keys()
    known = {
        *outer,
        *(f"{name}.{key}" for name, kind in sections.items() for key in kind.model_fields),
    }
    for name, value in entries.items():
        is_section = name in sections and isinstance(value, dict)
        for path in (f"{name}.{key}" for key in value) if is_section else (name,):
            if path in known or path in sections:  # a section that is no table: pydantic says so
                continue
            near = [setting for setting in sorted(known) if setting.endswith(f".{path}")]
            near += difflib.get_close_matches(path, sorted(known | sections.keys()), n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(sorted(known))}"
            raise ConfigError(f"{toml_file}: {path} names no setting: {hint}")


def _refuse_unknown_variables(environment: Mapping[str, str]) -> None:
    """A misspelt name would be ignored without a word. Below a section, pydantic refuses it itself."""
    fields = OstinatoConfig.model_fields
    sections = _sections()
    known = {_CONFIG_VARIABLE, _CLIENT_VARIABLE, *(_variable(name) for name in fields)}
    for variable, value in environment.items():
        name = variable.upper()
        is_ours = name.startswith(_PREFIX) and not _is_from_kubernetes(name, value)
        in_section = name.startswith(tuple(f"{_variable(section)}__" for section in sections))
        if not is_ours or name in known or in_section:
            continue
        inner = [_variable(s, key) for s, kind in sections.items() for key in kind.model_fields]
        outer = [_variable(field) for field in fields.keys() - sections.keys()]
        hint = _hint(name, sorted([_CONFIG_VARIABLE, *inner, *outer]))
        raise ConfigError(f"the environment variable {variable} names no setting: {hint}")


def _hint(name: str, settings: Sequence[str]) -> str:
    given = name.removeprefix(_PREFIX)
    near = [setting for setting in settings if setting.endswith(f"__{given}")]
    short = [setting.removeprefix(_PREFIX) for setting in settings]
    near += [f"{_PREFIX}{found}" for found in difflib.get_close_matches(given, short, n=1)]
    return f"did you mean {near[0]}?" if near else f"there are {', '.join(settings)}"


def _variable(*path: str) -> str:
    return _PREFIX + "__".join(path).upper()


def _is_from_kubernetes(name: str, value: str) -> bool:
    """Kubernetes sets such variables in every pod beside a service that is called ostinato."""
    return bool(_SERVICE_VARIABLE.fullmatch(name)) or value.startswith(("tcp://", "udp://"))


def _explain(error: ValidationError) -> str:
    lines = []
    for problem in error.errors():
        name = ".".join(str(part) for part in problem["loc"])
        lines.append(f"{name}: {problem['msg']} (got {problem['input']!r})")
    return "; ".join(lines)
