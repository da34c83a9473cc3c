"""Guards the arrays of a step: every token at its own position and in its own slot."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from ostinato.engine.request import Request
from ostinato.engine.runner import build_batch
from ostinato.engine.scheduler import ScheduledRequest
from tests.engine.harness import namespace_of, request


def scheduled(name: str, length: int, start: int, end: int, blocks: list[int]) -> ScheduledRequest:
    source = request(name, range(10, 10 + length))
    made = Request(source, namespace_of(source), 4, 0.0)
    made.num_computed_tokens = start
    made.table = SimpleNamespace(block_ids=np.array(blocks, np.int32), num_blocks=len(blocks))
    return ScheduledRequest(made, start, end)


def test_a_chunk_a_whole_prompt_and_a_decode_share_a_batch() -> None:
    batch = build_batch(
        [
            scheduled("chunk", 12, 3, 6, [7, 2, 5]),
            scheduled("prompt", 2, 0, 2, [1]),
            scheduled("decode", 9, 8, 9, [3, 4, 0]),
        ],
        block_size=4,
    )
    assert batch.token_ids.tolist() == [13, 14, 15, 10, 11, 18]
    assert batch.positions.tolist() == [3, 4, 5, 0, 1, 8]
    assert batch.slot_mapping.tolist() == [7 * 4 + 3, 2 * 4, 2 * 4 + 1, 4, 5, 0]
    assert batch.query_start.tolist() == [0, 3, 5, 6]
    assert batch.seq_lens.tolist() == [6, 2, 9]
    assert batch.block_tables.tolist() == [[7, 2, 0], [1, 0, 0], [3, 4, 0]]
    # The chunk does not reach the last token of its prompt, so it gets no logits.
    assert batch.logits_indices.tolist() == [4, 5]


def test_the_arrays_have_the_types_that_kernels_expect() -> None:
    batch = build_batch([scheduled("a", 5, 0, 5, [0, 1])], block_size=4)
    for name in ("token_ids", "positions", "query_start", "seq_lens", "block_tables"):
        assert getattr(batch, name).dtype == np.int32, name
    assert batch.slot_mapping.dtype == np.int64
    assert batch.logits_indices.dtype == np.int32


def test_a_step_without_any_last_token_wants_no_logits() -> None:
    batch = build_batch([scheduled("a", 9, 0, 4, [0, 1, 2])], block_size=4)
    assert batch.logits_indices.shape == (0,)


def test_a_request_keeps_its_tokens_when_its_buffer_grows() -> None:
    source = request("a", [1, 2, 3], max_tokens=500)
    grown = Request(source, namespace_of(source), 500, 0.0)
    for token_id in range(300):
        grown.append(token_id)
    assert grown.token_ids.tolist() == [1, 2, 3, *range(300)]
    assert grown.prompt_token_ids.tolist() == [1, 2, 3]
    assert grown.num_output_tokens == 300


def test_a_row_of_which_only_the_largest_logit_is_wanted_says_so() -> None:
    plain = request("plain", [1, 2], temperature=0.0)
    drawn = request("drawn", [1, 2], temperature=0.7)
    unfinished = request("unfinished", [1, 2, 3], temperature=0.0)
    parts = []
    for source, end in ((drawn, 2), (unfinished, 2), (plain, 2)):
        made = Request(source, namespace_of(source), 4, 0.0)
        made.table = SimpleNamespace(block_ids=np.array([0], np.int32), num_blocks=1)
        parts.append(ScheduledRequest(made, 0, end))
    batch = build_batch(parts, block_size=4)
    assert batch.argmax_only is not None
    assert batch.argmax_only.tolist() == [False, True]
