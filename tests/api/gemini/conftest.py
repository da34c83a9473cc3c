"""An application over a tiny engine whose template knows tools, with a clock and a ledger of the tests' own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
from fastapi.testclient import TestClient

from ostinato.api.app import create_app
from ostinato.api.gemini.cache_store import CacheStore
from ostinato.api.gemini.cached_contents import CachedContents
from ostinato.api.local import LocalBackend
from ostinato.clock import ManualClock
from ostinato.config import OstinatoConfig
from ostinato.config_sections import CacheConfig
from ostinato.engine.async_engine import AsyncEngine
from ostinato.engine.build import build_engine
from ostinato.ledger.record import LedgerRecord
from ostinato.ledger.writer import LedgerStats, LedgerWriter
from ostinato.product.prompt_cache import PromptCache
from ostinato.product.rules import HouseRules
from tests.tiny import write_tiny_model

TOOL_TEMPLATE = (
    "{% if tools %}{{ '<|im_start|>tools\\n' }}{% for t in tools %}{{ t | tojson }}{{ '\\n' }}{% endfor %}"
    "{{ '<|im_end|>\\n' }}{% endif %}"
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content }}"
    "{% for c in m.tool_calls or [] %}{{ '\\n<tool_call>\\n' }}"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}'
    "{{ '\\n</tool_call>' }}{% endfor %}{{ '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


@dataclass
class Records:
    """A ledger that keeps its records in a list. It stands in for the writer's statistics, too."""

    all: list[LedgerRecord] = field(default_factory=list)

    def put(self, record: LedgerRecord) -> None:
        self.all.append(record)

    def stats(self) -> LedgerStats:
        return LedgerStats(len(self.all), 0, 0, 0)


@dataclass
class Place:
    """What a test talks to and looks into."""

    client: TestClient
    clock: ManualClock
    contents: CachedContents
    records: Records
    engine: AsyncEngine

    def post(self, path: str, body: Any, **more: Any) -> Any:
        return self.client.post(path, json=body, **more)

    def generate(self, body: Any) -> dict[str, Any]:
        response = self.post("/v1beta/models/tiny:generateContent", body)
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer

    @contextmanager
    def under(self, rules: HouseRules) -> Iterator[tuple[TestClient, Records]]:
        """The same engine behind another application with these rules and a ledger."""
        records = Records()
        cache = PromptCache(self.clock, bytes(32), rules, self.engine.limits.block_size)
        backend = LocalBackend(self.engine)
        app = create_app(
            backend,
            clock=self.clock,
            prompt_cache=cache,
            ledger=cast(LedgerWriter, records),
        )
        with TestClient(app, raise_server_exceptions=False) as client:
            yield client, records


@pytest.fixture(scope="session")
def tool_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_tiny_model(tmp_path_factory.mktemp("models") / "tiny")
    settings = folder / "tokenizer_config.json"
    settings.write_text(
        json.dumps({**json.loads(settings.read_text()), "chat_template": TOOL_TEMPLATE})
    )
    return folder


@pytest.fixture
def place(tool_model: Path, tmp_path: Path) -> Iterator[Place]:
    clock = ManualClock(1_796_000_000.0)
    config = OstinatoConfig(
        model=str(tool_model), data_dir=tmp_path / "data", cache=CacheConfig(num_blocks=64)
    )
    engine = build_engine(config, clock=clock)
    engine.start()
    records = Records()
    store = CacheStore(tmp_path / "cached_contents.sqlite3")
    contents = CachedContents(store, clock, records, "local")
    app = create_app(LocalBackend(engine), clock=clock, cached_contents=contents)
    try:
        with TestClient(app, raise_server_exceptions=False) as client:
            yield Place(client, clock, contents, records, engine)
    finally:
        engine.stop()
        store.close()
