"""Servers for end-to-end tests. Each is started once; tests must not count on an empty cache."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ostinato.config import OstinatoConfig
from ostinato.errors import ModelNotFoundError
from ostinato.models.registry import resolve_model
from tests.e2e.server import ENDLESS_CONTEXT, Server, running_server
from tests.tiny import write_tiny_model


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model that answers nonsense quickly."""
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny-llama")


@pytest.fixture(scope="session")
def tiny_server(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The tiny model with a pool of 1,024 tokens, so that it is soon full."""
    exact = ("--kv-dtype", "fp32", "--activation-dtype", "fp32")
    flags = ("--num-blocks", "64", "--max-model-len", "1000", *exact)
    with running_server(str(tiny_model), tmp_path_factory.mktemp("data"), *flags) as server:
        yield server


@pytest.fixture(scope="session")
def endless_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model whose context no test will ever see the end of."""
    folder = tmp_path_factory.mktemp("models") / "tiny-endless"
    return write_tiny_model(folder, max_position=ENDLESS_CONTEXT)


@pytest.fixture(scope="session")
def endless_server(
    endless_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """The endless model with a pool for one whole context."""
    data_dir = tmp_path_factory.mktemp("data")
    flags = ("--num-blocks", str(ENDLESS_CONTEXT // 16))
    with running_server(str(endless_model), data_dir, *flags) as server:
        yield server


@pytest.fixture(scope="session")
def sdk_cache(request: pytest.FixtureRequest) -> Path:
    """Where folders of `sdk_folder` are kept from one run to the next."""
    cache: pytest.Cache = request.config.cache
    return Path(cache.mkdir("sdks"))


TOOL_MODEL_VARIABLE = "TEST_TOOL_MODEL"
"""No setting of a server, so it does not begin with OSTINATO_: unknown ones of those are refused."""
TOOL_MODEL = "qwen2.5-coder-0.5b-instruct"


@pytest.fixture(scope="session")
def tool_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A real small model that calls tools: the one that ``TEST_TOOL_MODEL`` names (a name, a GGUF file or a
    folder), or `TOOL_MODEL` if that was pulled."""
    name = os.environ.get(TOOL_MODEL_VARIABLE) or TOOL_MODEL
    try:
        resolve_model(name, OstinatoConfig().data_dir)
    except ModelNotFoundError as error:
        pytest.skip(f"{name} is not here: {error}")  # ok: 478 MB, fetched by who wants it
    flags = ("--kv-memory", "256MiB", "--max-model-len", "8192", "--disk-tier", "off")
    with running_server(name, tmp_path_factory.mktemp("data"), *flags) as server:
        yield server


@pytest.fixture(scope="session")
def real_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The default model, which `make` installs."""
    data_dir = tmp_path_factory.mktemp("data")
    with running_server("smollm2-135m-instruct", data_dir, "--kv-memory", "128MiB") as server:
        yield server
