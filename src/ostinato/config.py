"""Every setting of Ostinato: one frozen tree, read once.

Sources, strongest first: command-line flags, ``OSTINATO_*`` environment variables (nested names joined with
two underscores, e.g. ``OSTINATO_CACHE__BLOCK_SIZE``), a TOML file named by ``--config`` or
``OSTINATO_CONFIG``, the defaults below. Nobody else reads the environment.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal

import platformdirs
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from ostinato.cache.layout import KVDtype
from ostinato.errors import ConfigError

DEFAULT_MODEL = "smollm2-135m-instruct"

PositiveInt = Annotated[int, Field(ge=1)]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class CacheConfig(_Section):
    """K/V memory and prefix caching."""

    block_size: PositiveInt = 16
    """Tokens a block."""
    kv_dtype: KVDtype = KVDtype.FP16
    """Element type of stored K/V. fp32 doubles the memory and is bit-exact for tests."""
    kv_memory_bytes: PositiveInt | None = None
    """Bytes for the pool. Default: a quarter of the memory that is free, at most what 64 full contexts take."""
    num_blocks: PositiveInt | None = None
    """Blocks in the pool; overrides `kv_memory_bytes`."""
    prefix_index: Literal["radix", "block_hash", "none"] = "radix"
    """radix reuses to the token, block_hash whole blocks only, none switches prefix caching off."""


class SchedulerConfig(_Section):
    """How requests share the engine."""

    max_num_seqs: PositiveInt = 64
    """Most sequences running at once; the rest wait."""
    max_num_batched_tokens: PositiveInt = 512
    """Token budget of one step, shared by decodes and prefill chunks."""
    max_waiting: PositiveInt = 1024
    """Most requests waiting; one more is refused with 503."""
    watermark: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.01
    """Share of the pool that admission leaves free for running requests to grow into."""
    age_weight: Annotated[float, Field(ge=0.0)] = 64.0
    """Order of waiting = cached tokens + this × seconds waited, so that nobody starves. 0 is pure
    longest-prefix-first."""


class ServerConfig(_Section):
    """HTTP."""

    host: str = "127.0.0.1"
    """Address to listen on. Without API keys only loopback is allowed."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    """0 lets the system choose a free port."""


class OstinatoConfig(BaseSettings):
    """The whole tree."""

    model_config = SettingsConfigDict(
        env_prefix="OSTINATO_", env_nested_delimiter="__", frozen=True, extra="forbid"
    )

    model: str = DEFAULT_MODEL
    """A model's name, a GGUF file, or a folder of safetensors + config + tokenizer."""
    served_model_name: str | None = None
    """The name clients use; default: derived from `model`."""
    max_model_len: PositiveInt | None = None
    """Longest prompt + output in tokens; default: the model's own context."""
    backend: Literal["auto", "reference"] = "auto"
    """Which kernels to run. auto takes the fastest that works here."""
    data_dir: Path = Field(default_factory=lambda: Path(platformdirs.user_data_dir("ostinato")))
    """Everything that is written lives below this folder (environment: OSTINATO_DATA_DIR)."""
    cache: CacheConfig = CacheConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    server: ServerConfig = ServerConfig()

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
        flags: nested mapping of what the command line set, e.g. ``{"cache": {"block_size": 32}}``.
        toml_file: configuration file; default: the one that ``OSTINATO_CONFIG`` names, if any.

    Raises:
        ConfigError: naming each setting that is wrong, what it was and what is allowed.
    """
    if toml_file is None and (named := os.environ.get("OSTINATO_CONFIG")):
        toml_file = Path(named)
    if toml_file is not None and not toml_file.is_file():
        raise ConfigError(f"there is no configuration file {toml_file}")

    class _WithFile(OstinatoConfig):
        @classmethod
        def _toml_file(cls) -> Path | None:
            return toml_file

    try:
        return _WithFile(**(flags or {}))
    except ValidationError as error:
        raise ConfigError(_explain(error)) from error
    except ValueError as error:  # a TOML file that does not parse
        raise ConfigError(f"{toml_file}: {error}") from error


def _explain(error: ValidationError) -> str:
    lines = []
    for problem in error.errors():
        name = ".".join(str(part) for part in problem["loc"])
        lines.append(f"{name}: {problem['msg']} (got {problem['input']!r})")
    return "; ".join(lines)
