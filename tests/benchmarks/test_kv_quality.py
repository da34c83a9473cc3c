"""Guards the price list of K/V formats: sealed K/V really read back, nothing measured twice, real text."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from benchmarks.quality.divergence import Divergence
from benchmarks.quality.handbook import plain_text, read_pages
from benchmarks.quality.kv import MEASURED, merged
from benchmarks.quality.kv_windows import PagedText, Window, WindowLog, score_window

from ostinato.cache.layout import KVDtype
from ostinato.models.loader import LoadedModel
from ostinato.ops.reference import ReferenceBackend
from tests.engine.tiny_engine import load_tiny

OPS = ReferenceBackend()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load_tiny(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def tokens() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, 70).astype(np.int32)


def test_chunks_over_fp32_give_the_logits_of_one_pass(
    model: LoadedModel, tokens: np.ndarray
) -> None:
    whole = PagedText(model, OPS, KVDtype.FP32, 70, 70).logits(tokens, 0)
    text = PagedText(model, OPS, KVDtype.FP32, 70, 16)
    for _ in range(2):  # a second text finds nothing of the first
        parts = [text.logits(tokens[start : start + 16], start) for start in range(0, 70, 16)]
        np.testing.assert_allclose(np.concatenate(parts), whole, atol=1e-4)


def test_each_format_costs_what_its_steps_suggest_and_nothing_in_the_first_block(
    model: LoadedModel, tokens: np.ndarray
) -> None:
    texts = {dtype: PagedText(model, OPS, dtype, 70, 16) for dtype in MEASURED}
    reference = PagedText(model, OPS, KVDtype.FP16, 70, 16)
    own, found = score_window(tokens, reference, texts, 16)
    assert own.mean == 0
    assert own.scored == 69
    means = [found[dtype].mean for dtype in (KVDtype.FP32, KVDtype.INT8, KVDtype.FP8, KVDtype.INT4)]
    assert means == sorted(means)
    assert means[0] < 1e-6 < means[1]
    assert means[-1] < 0.1
    for divergence in found.values():
        assert max(divergence.kl[:16]) < 1e-6


def window(index: int, kl: float) -> Window:
    found = {dtype: Divergence([kl, kl + 1], 1, 2, 3.0, 1) for dtype in MEASURED}
    return Window("text", index, 1.5, Divergence([0.0, 0.0], 2, 2, 2.0, 1), found)


def test_a_run_that_was_broken_off_finds_its_finished_windows(tmp_path: Path) -> None:
    settings = {"chunk": 16}
    for index in range(2):
        WindowLog(tmp_path, settings).add(window(index, float(index)))
    (file,) = tmp_path.iterdir()
    with file.open("a") as log:
        log.write('{"text": "cut off')
    log = WindowLog(tmp_path, settings)
    assert list(log.windows()) == [window(0, 0.0), window(1, 1.0)]
    log.add(window(2, 2.0))
    assert [one.index for one in WindowLog(tmp_path, settings).windows()] == [0, 1, 2]
    assert list(WindowLog(tmp_path, {"chunk": 32}).windows()) == []


def test_windows_are_merged_format_by_format() -> None:
    own, found = merged([window(0, 0.0), window(1, 5.0)])
    assert own.positions == 4
    assert set(found) == set(MEASURED)
    assert all(one.kl == [0.0, 1.0, 5.0, 6.0] for one in found.values())


PAGE = """<html><head><title>no</title></head><body><div id="banner"><a>no</a></div>
<p id="title"><img alt="x" /><br>no</p><ul class="docnav top"><li><p>no</p></li></ul>
<h2>6.2.\n<code>apt</code></h2><div class="para">Two
   lines<a id="x" /> joined.</div><pre>$ one\n  two</pre><ul class="docnav"><li>no</li></ul></body></html>"""


def test_a_page_s_text_has_a_line_a_paragraph_and_no_navigation(tmp_path: Path) -> None:
    assert plain_text(PAGE) == "6.2. apt\nTwo lines joined.\n$ one\ntwo"
    (tmp_path / "b.html").write_text("<body><p>second</p></body>", encoding="utf-8")
    (tmp_path / "a.html").write_text(PAGE, encoding="utf-8")
    assert read_pages(tmp_path).endswith("two\n\nsecond")
