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
from typing import Annotated, Any, Literal

import platformdirs
from pydantic import Field, SecretStr, ValidationError
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)

from ostinato.config_sections import (
    CacheConfig,
    LedgerConfig,
    PositiveInt,
    ProductConfig,
    ResponsesConfig,
    SchedulerConfig,
    Section,
    ServerConfig,
    TenantConfig,
    TiersConfig,
)
from ostinato.errors import ConfigError

DEFAULT_MODEL = "smollm2-135m-instruct"

_PREFIX = "OSTINATO_"
_CONFIG_VARIABLE = "OSTINATO_CONFIG"
_CLIENT_VARIABLE = "OSTINATO_API_KEY"
"""Read by ``ostinato chat``; no setting of a server."""
_SERVICE_VARIABLE = re.compile(r"OSTINATO_(SERVICE_(HOST|PORT(_\w+)?)|PORT_\d+_(TCP|UDP)(_\w+)?)")


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
    threads: Annotated[int, Field(ge=0, le=1024)] = 0
    """Threads of the native kernels. 0 takes the CPUs that the process may really use."""
    weight_dtype: Literal["auto", "fp32", "fp16", "int8", "int4"] = "auto"
    """What the native kernels pack weights to. auto keeps the file's precision (K-quants become int8)."""
    activation_dtype: Literal["int8", "fp32"] = "int8"
    """int8 rounds activations before products with integer weights: faster. fp32 is exact."""
    tool_call_parser: Literal["auto", "hermes", "llama", "mistral", "none"] = "auto"
    """How the model writes tool calls. auto reads it off the chat template; none leaves calls in the text."""
    reasoning_parser: Literal["auto", "think", "none"] = "auto"
    """How the model marks what it thinks. auto reads it off the chat template; none leaves it in the text."""
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


def _sections() -> dict[str, type[Section]]:
    return {
        name: kind
        for name, field in OstinatoConfig.model_fields.items()
        if isinstance(kind := field.annotation, type) and issubclass(kind, Section)
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
