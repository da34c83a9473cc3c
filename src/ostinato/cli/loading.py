"""From settings to an engine, from an engine to a server: what `serve`, `chat` and `demo` share."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ostinato.cli import console

if TYPE_CHECKING:
    from ostinato.config import OstinatoConfig
    from ostinato.engine.async_engine import AsyncEngine
    from ostinato.models.config import ModelConfig


def load_engine(config: OstinatoConfig) -> AsyncEngine:
    """Build the engine, with a bar while the weights are read.

    Raises:
        ConfigError: the settings do not fit the model or the memory.
        ModelError: the model is not here or cannot be read.
    """
    from ostinato.clock import SystemClock
    from ostinato.engine.build import build_engine
    from ostinato.models.loader import read_config
    from ostinato.models.registry import resolve_model

    total = num_parameters(read_config(resolve_model(config.model, config.data_dir)))
    with console.loading_bar(f"Loading {config.model}", total) as progress:
        return build_engine(config, clock=SystemClock(), progress=progress)


@contextlib.contextmanager
def started(engine: AsyncEngine) -> Iterator[AsyncEngine]:
    """Run an engine for as long as this lasts."""
    engine.start()
    try:
        yield engine
    finally:
        engine.stop()


@contextlib.contextmanager
def served(engine: AsyncEngine) -> Iterator[str]:
    """Run an engine and serve it on a free loopback port; gives the URL.

    Raises:
        EngineStoppedError: the server ended before it was ready.
    """
    from ostinato.api.app import create_app
    from ostinato.api.local import LocalBackend
    from ostinato.cli import server
    from ostinato.clock import SystemClock

    app = create_app(LocalBackend(engine), clock=SystemClock())
    with started(engine), server.background(app, engine.stop) as url:
        yield url


def num_parameters(config: ModelConfig) -> int:
    """Elements of all matrices; norms and biases are too small to count. Where only the file's tensors
    tell whether the output matrix is the embedding, it is taken to be."""
    heads = config.num_heads + config.num_kv_heads
    attention = 2 * heads * config.head_dim * config.hidden_size
    mlp = 3 * config.hidden_size * config.intermediate_size
    embeddings = 2 if config.tie_embeddings is False else 1
    return config.num_layers * (attention + mlp) + embeddings * (
        config.vocab_size * config.hidden_size
    )
