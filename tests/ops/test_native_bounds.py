"""Guards against access outside of an array: a wrong shape or index is a ValueError before a kernel runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from ostinato.cache.layout import KVCacheSpec, KVDtype
from tests.ops.backends import ISAS, cpu_backend, needs_native
from tests.ops.dense import random_decoder

pytestmark = needs_native

HIDDEN, INNER, HEADS, KV_HEADS, DIM, VOCAB = 12, 20, 4, 2, 16, 30
NUM_BLOCKS, BLOCK_SIZE, NUM_LAYERS, MAX_POSITION = 6, 4, 2, 64


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int32)


def floats(*shape: int) -> np.ndarray:
    return np.zeros(shape, dtype=np.float32)


@dataclass
class Call:
    """A call that works, by argument name, so that a test can spoil one argument."""

    run: Callable[..., None]
    arguments: dict[str, Any]

    def __call__(self, **changes: Any) -> None:
        assert changes.keys() <= self.arguments.keys()
        self.run(*{**self.arguments, **changes}.values())


def calls() -> dict[str, Call]:
    """Three tokens of two requests: the first at positions 8 and 9, the second at 0."""
    ops = cpu_backend(ISAS[0])
    runtime = ops._runtime
    decoder = random_decoder(np.random.default_rng(0), head_dim=DIM)
    layer = ops.load_layer(decoder.shape, decoder.layers[0]).weights
    head = ops.load_head(decoder.shape, decoder.head).weights
    rope = ops.load_rope(decoder.cos, decoder.sin)
    kv = ops.allocate_kv(
        KVCacheSpec(NUM_LAYERS, KV_HEADS, DIM, KVDtype.FP16, BLOCK_SIZE), NUM_BLOCKS
    )
    hidden, heads, positions = floats(3, HIDDEN), floats(3, HEADS, DIM), ints(8, 9, 0)
    slots = np.array([20, 21, 4], dtype=np.int64)
    tables = np.array([[0, 2, 5], [1, 0, 0]], dtype=np.int32)
    place = {"kv": kv.array, "layer_index": 1}
    return {
        "embed": Call(runtime.embed, {"head": head, "token_ids": ints(0, 29, 5), "hidden": hidden}),
        "qkv": Call(
            runtime.qkv,
            {
                "layer": layer,
                "rope": rope,
                "hidden": hidden,
                "positions": positions,
                "slots": slots,
                **place,
                "query": heads,
            },
        ),
        "attention": Call(
            runtime.attention,
            {
                "layer": layer,
                "query": heads,
                "positions": positions,
                "query_start": ints(0, 2, 3),
                "block_tables": tables,
                **place,
                "output": heads.copy(),
            },
        ),
        "attention_mass": Call(
            runtime.attention_mass,
            {
                "layer": layer,
                "query": heads,
                "positions": positions,
                "query_start": ints(0, 2, 3),
                "block_tables": tables,
                **place,
                "observed": 3,
                "sums": floats(2, 3),
            },
        ),
        "attention_output": Call(
            runtime.attention_output, {"layer": layer, "context": heads, "hidden": hidden}
        ),
        "mlp": Call(runtime.mlp, {"layer": layer, "hidden": hidden}),
        "layers": Call(
            runtime.layers,
            {
                "layers": [layer, layer],
                "rope": rope,
                "hidden": hidden,
                "positions": positions,
                "slots": slots,
                "query_start": ints(0, 2, 3),
                "block_tables": tables,
                "wanted": ints(2, 1),
                "kv": kv.array,
            },
        ),
        "logits": Call(
            runtime.logits,
            {
                "head": head,
                "hidden": hidden,
                "indices": ints(2, 0),
                "argmax_only": np.array([True, False]),
                "out": floats(2, VOCAB),
            },
        ),
        "top_k": Call(
            runtime.top_k,
            {
                "logits": floats(2, VOCAB),
                "scale": 1.0,
                "ids": np.zeros((2, 5), np.int32),
                "values": floats(2, 5),
                "log_sums": floats(2),
            },
        ),
        "find_largest": Call(
            runtime.find_largest,
            {
                "logits": floats(2, VOCAB),
                "limit": 1.0,
                "ids": np.zeros(2, np.int32),
                "within": np.zeros(2, np.bool_),
            },
        ),
    }


def kv_of(*shape: int, dtype: Any = np.float16) -> np.ndarray:
    return np.zeros(shape, dtype)


def quantised(open_slot: np.ndarray, num_open: int = 3, num_kv_heads: int = KV_HEADS) -> Any:
    """int8 K/V of the same shape as that of `calls`."""
    from ostinato import _native

    record = BLOCK_SIZE * DIM + 16
    sealed = np.zeros((NUM_BLOCKS, NUM_LAYERS * 2 * num_kv_heads * record), np.uint8)
    open_blocks = kv_of(num_open, NUM_LAYERS, 2, num_kv_heads, BLOCK_SIZE, DIM)
    return _native.QuantisedKV("int8", open_blocks, sealed, open_slot)


WRONG: dict[str, list[dict[str, Any]]] = {
    "embed": [
        {"token_ids": ints(0, VOCAB, 0)},
        {"token_ids": ints(0, -1, 0)},
        {"token_ids": ints(0, 1)},
        {"hidden": floats(3, HIDDEN + 1)},
    ],
    "qkv": [
        {"hidden": floats(3, HIDDEN - 1)},
        {"hidden": floats(2, HIDDEN)},
        {"positions": ints(8, MAX_POSITION, 0)},
        {"positions": ints(8, -1, 0)},
        {"positions": ints(8, 9)},
        {"slots": np.array([20, NUM_BLOCKS * BLOCK_SIZE, 4])},
        {"slots": np.array([20, -1, 4])},
        {"slots": np.array([2**40, 21, 4])},
        {"slots": np.array([20, 21])},
        {"layer_index": NUM_LAYERS},
        {"layer_index": -1},
        {"query": floats(3, HEADS + 1, DIM)},
        {"query": floats(2, HEADS, DIM)},
        {"kv": kv_of(NUM_BLOCKS, NUM_LAYERS, 2, KV_HEADS + 1, BLOCK_SIZE, DIM)},
        {"kv": kv_of(NUM_BLOCKS, NUM_LAYERS, 2, KV_HEADS, BLOCK_SIZE, 2 * DIM)},
        {"kv": kv_of(NUM_BLOCKS, NUM_LAYERS, 1, KV_HEADS, BLOCK_SIZE, DIM)},
        {"kv": kv_of(NUM_BLOCKS, NUM_LAYERS, 2, KV_HEADS, 0, DIM)},
        {"kv": kv_of(NUM_BLOCKS, NUM_LAYERS, 2, KV_HEADS, BLOCK_SIZE, DIM, dtype=np.int16)},
        {"kv": kv_of(NUM_BLOCKS, NUM_LAYERS, 2, KV_HEADS, BLOCK_SIZE, DIM, dtype=np.float64)},
    ],
    "attention": [
        {"query": floats(3, HEADS, 2 * DIM)},
        {"query": floats(2, HEADS, DIM)},
        {"output": floats(3, KV_HEADS, DIM)},
        {"output": floats(2, HEADS, DIM)},
        {"layer_index": NUM_LAYERS},
        {"layer_index": -1},
        {"positions": ints(8, 9, 12)},
        {"positions": ints(8, 8, 0)},
        {"positions": ints(9, 8, 0)},
        {"positions": ints(-2, 9, 0)},
        {"query_start": ints(0, 3)},
        {"query_start": ints(0, 2, 4)},
        {"query_start": ints(0, 4, 3)},
        {"query_start": ints(1, 2, 3)},
        {"query_start": ints(0, -1, 3)},
        {"query_start": ints()},
        {"block_tables": np.array([[0, 2, NUM_BLOCKS], [1, 0, 0]], np.int32)},
        {"block_tables": np.array([[-1, 2, 5], [1, 0, 0]], np.int32)},
        {"block_tables": np.array([[0, 2], [1, 0]], np.int32)},
        {"block_tables": np.zeros((2, 0), np.int32)},
        {"block_tables": np.array([[0, 2, 5]], np.int32)},
        {"kv": kv_of(5, NUM_LAYERS, 2, KV_HEADS, BLOCK_SIZE, DIM)},
    ],
    "attention_mass": [
        {"query": floats(2, HEADS, DIM)},
        {"sums": floats(2, 2)},
        {"sums": floats(1, 3)},
        {"observed": -1},
        {"layer_index": NUM_LAYERS},
        {"positions": ints(8, 8, 0)},
        {"query_start": ints(0, 3)},
        {"block_tables": np.array([[0, 2, NUM_BLOCKS], [1, 0, 0]], np.int32)},
        {"kv": kv_of(5, NUM_LAYERS, 2, KV_HEADS, BLOCK_SIZE, DIM)},
    ],
    "attention_output": [
        {"context": floats(3, HEADS, DIM + 16)},
        {"context": floats(2, HEADS, DIM)},
        {"hidden": floats(3, HIDDEN + 1)},
    ],
    "mlp": [{"hidden": floats(3, HIDDEN + 1)}],
    "layers": [
        {"hidden": floats(3, HIDDEN - 1)},
        {"hidden": floats(2, HIDDEN)},
        {"positions": ints(8, MAX_POSITION, 0)},
        {"positions": ints(9, 8, 0)},
        {"positions": ints(8, 9)},
        {"slots": np.array([20, NUM_BLOCKS * BLOCK_SIZE, 4])},
        {"slots": np.array([20, -1, 4])},
        {"slots": np.array([20, 21])},
        {"query_start": ints(0, 2, 4)},
        {"query_start": ints()},
        {"block_tables": np.array([[0, 2, NUM_BLOCKS], [1, 0, 0]], np.int32)},
        {"block_tables": np.array([[0, 2], [1, 0]], np.int32)},
        {"wanted": ints(3)},
        {"wanted": ints(0, -1)},
        {"kv": kv_of(NUM_BLOCKS, NUM_LAYERS - 1, 2, KV_HEADS, BLOCK_SIZE, DIM)},
        {"kv": kv_of(NUM_BLOCKS, NUM_LAYERS, 2, KV_HEADS + 1, BLOCK_SIZE, DIM)},
        {"kv": kv_of(5, NUM_LAYERS, 2, KV_HEADS, BLOCK_SIZE, DIM)},
    ],
    "logits": [
        {"indices": ints(3, 0)},
        {"indices": ints(-1, 0)},
        {"indices": ints(0)},
        {"argmax_only": np.array([True])},
        {"out": floats(2, VOCAB - 1)},
        {"hidden": floats(3, HIDDEN + 1)},
    ],
    "top_k": [
        {"ids": np.zeros((2, VOCAB + 1), np.int32)},
        {"ids": np.zeros((2, 0), np.int32)},
        {"values": floats(2, 4)},
        {"log_sums": floats(1)},
        {"scale": float("nan")},
        {"scale": -1.0},
    ],
    "find_largest": [
        {"logits": floats(3, VOCAB)},
        {"logits": floats(2, 0)},
        {"ids": np.zeros(3, np.int32)},
        {"within": np.zeros(1, np.bool_)},
    ],
}


@pytest.mark.parametrize("name", WRONG)
def test_a_correct_call_is_accepted(name: str) -> None:
    calls()[name]()


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        pytest.param(name, changes, id=f"{name}-{index}-{next(iter(changes))}")
        for name, wrong in WRONG.items()
        for index, changes in enumerate(wrong)
    ],
)
def test_a_wrong_argument_is_a_value_error(name: str, changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r".+"):
        calls()[name](**changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"hidden": floats(3, HIDDEN).astype(np.float64)},
        {"positions": np.zeros(3, np.int64)},
        {"slots": ints(1, 2, 3)},
        {"query": floats(HEADS, 3, DIM).transpose(1, 0, 2)},
    ],
)
def test_a_wrong_type_or_stride_is_a_type_error(changes: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        calls()["qkv"](**changes)


@needs_native
def test_quantised_memory_is_checked_as_plain_memory_is() -> None:
    some = ints(0, 2, -1, -1, -1, 1)
    calls()["qkv"](kv=quantised(some))
    calls()["layers"](kv=quantised(some))
    for name in ("attention", "attention_mass"):
        calls()[name](kv=quantised(some))
        for wrong in (ints(0, 2, 3, -1, -1, 1), ints(0, 99, -1, -1, -1, 1)):
            with pytest.raises(ValueError, match="outside the open memory"):
                calls()[name](kv=quantised(wrong))
        with pytest.raises(ValueError, match="other heads"):
            calls()[name](kv=quantised(some, num_kv_heads=4))
        with pytest.raises(ValueError, match="no such layer"):
            calls()[name](kv=quantised(some), layer_index=NUM_LAYERS)
    for wrong in (
        ints(0, -1, -1, -1, -1, -1),
        ints(0, 3, -1, -1, -1, 1),
        ints(0, 2, -1, -1, -1, 3),
    ):
        for name in ("qkv", "layers"):
            with pytest.raises(ValueError, match="not open"):
                calls()[name](kv=quantised(wrong))


@needs_native
def test_arrays_of_quantised_memory_must_fit_each_other() -> None:
    from ostinato import _native

    fine: dict[str, Any] = {
        "format": "int4",
        "open": kv_of(3, 2, 2, 1, 4, 32),
        "sealed": np.zeros((5, 2 * (64 + 128 + 64 + 16)), np.uint8),
        "open_slot": ints(-1, -1, -1, -1, 2),
    }
    _native.QuantisedKV(**fine)
    for changes in (
        {"format": "int5"},
        {"format": "fp8"},
        {"open": kv_of(3, 2, 1, 1, 4, 32)},
        {"open": kv_of(3, 2, 2, 2, 4, 32)},
        {"open": kv_of(3, 2, 2, 1, 4, 24)},
        {"open": kv_of(3, 2, 2, 1, 0, 32)},
        {"open": kv_of(3, 2, 2, 1, 4, 32, dtype=np.float32)},
        {"sealed": fine["sealed"][:, :-1].copy()},
        {"sealed": fine["sealed"][:4].copy()},
        {"open_slot": ints(-1, -1)},
    ):
        with pytest.raises(ValueError, match=r".+"):
            _native.QuantisedKV(**{**fine, **changes})


def test_blocks_that_no_token_sees_need_not_exist() -> None:
    calls()["attention"](block_tables=np.array([[0, 2, 5], [1, 99, -7]], np.int32))


def test_an_empty_step_does_nothing() -> None:
    call = calls()["attention"]
    nothing = floats(0, HEADS, DIM)
    call(
        query=nothing,
        output=nothing.copy(),
        positions=ints(),
        query_start=ints(0),
        block_tables=np.zeros((0, 1), np.int32),
    )


def test_rows_outside_of_a_matrix_are_refused() -> None:
    from ostinato import _native

    matrix = _native.PackedMatrix("fp32", 4, 8)
    rows = floats(1, 8).view(np.uint8)
    for target in (-1, 4):
        with pytest.raises(ValueError, match="outside the matrix"):
            matrix.put("F32", rows, ints(target))
        with pytest.raises(ValueError, match="outside the matrix"):
            matrix.get(target, floats(8))
    with pytest.raises(ValueError, match="do not fit"):
        matrix.put("F32", rows[:, :-1].copy(), ints(0))
    with pytest.raises(ValueError, match="do not fit"):
        matrix.put("F32", rows, ints(0, 1))
    with pytest.raises(ValueError, match="wrong size"):
        matrix.get(0, floats(7))
    for wrong in (matrix.nbytes - 1, matrix.nbytes + 1):
        with pytest.raises(ValueError, match="wrong size"):
            matrix.set_bytes(np.zeros(wrong, np.uint8))
        with pytest.raises(ValueError, match="wrong size"):
            matrix.get_bytes(np.zeros(wrong, np.uint8))


@pytest.mark.parametrize(("rows", "columns"), [(0, 8), (8, 0), (-1, 8), (8, -1), (2**30, 8)])
def test_a_matrix_without_rows_or_columns_is_refused(rows: int, columns: int) -> None:
    from ostinato import _native

    with pytest.raises(ValueError, match="rows and columns"):
        _native.PackedMatrix("fp32", rows, columns)


@pytest.mark.parametrize(
    "shape",
    [(12, 4, 3, 16), (12, 4, 2, 8), (0, 4, 2, 16), (12, 0, 2, 16), (12, 4, 0, 16), (12, 4, 2, -16)],
)
def test_a_shape_that_no_kernel_can_run_is_refused(shape: tuple[int, int, int, int]) -> None:
    from ostinato import _native

    with pytest.raises(ValueError, match=r"positive|multiple"):
        _native.DecoderShape(*shape, 1e-5, 1.0)
    with pytest.raises(ValueError, match="window must be positive"):
        _native.DecoderShape(12, 4, 2, 16, 1e-5, 1.0, sliding_window=0)


def test_weights_that_contradict_the_shape_are_refused() -> None:
    from ostinato import _native

    shape = _native.DecoderShape(HIDDEN, HEADS, KV_HEADS, DIM, 1e-5, 1.0)

    def layer(**changes: Any) -> Any:
        fine = {
            "norm": floats(HIDDEN),
            "qkv": ((HEADS + 2 * KV_HEADS) * DIM, HIDDEN),
            "output": (HIDDEN, HEADS * DIM),
            "gate_up": (52, HIDDEN),
            "down": (HIDDEN, INNER),
            "bias": None,
            "q_norm": None,
        }
        given = {**fine, **changes}
        matrices = [
            _native.PackedMatrix("fp32", *given[name])
            for name in ("qkv", "output", "gate_up", "down")
        ]
        return _native.LayerWeights(
            shape,
            INNER,
            given["norm"],
            floats(HIDDEN),
            *matrices,
            qkv_bias=given["bias"],
            q_norm=given["q_norm"],
        )

    assert layer() is not None
    for changes in (
        {"norm": floats(HIDDEN + 1)},
        {"qkv": (HEADS * DIM, HIDDEN)},
        {"output": (HIDDEN, HEADS * DIM + 1)},
        {"gate_up": (40, HIDDEN)},
        {"down": (HIDDEN, INNER + 1)},
        {"bias": floats(HEADS * DIM)},
        {"q_norm": floats(DIM - 1)},
    ):
        with pytest.raises(ValueError, match="does not fit the shape"):
            layer(**changes)
    embedding = _native.PackedMatrix("fp32", VOCAB, HIDDEN)
    with pytest.raises(ValueError, match="differ in width"):
        _native.HeadWeights(1e-5, floats(HIDDEN), embedding, _native.PackedMatrix("fp32", 9, 8))
    with pytest.raises(ValueError, match="final norm"):
        _native.HeadWeights(1e-5, floats(HIDDEN + 1), embedding, embedding)
    with pytest.raises(ValueError, match="differ in shape"):
        _native.RopeTables(floats(4, 8), floats(4, 7))
