"""Who multiplies: each takes a stack of weights once and then walks through it as often as it is asked to."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from benchmarks.linear.pinning import available_cpus, workers_pinned
from benchmarks.linear.weights import Float32Array, QuantisedWeights
from ostinato import _native

INSTALL = "pip install onnxruntime onnx"


class Stack(Protocol):
    """Matrices in an engine's own form: number i has its rows shifted by i, so that no two are the same."""

    def walk(self, x: Float32Array, count: int) -> Callable[[], None]:
        """What multiplies `x` (tokens, cols) with the first `count` matrices, one after the other, when called.

        The products overwrite one another, as in a model whose next layer has used them.
        """

    def product(self, x: Float32Array, index: int) -> Float32Array:
        """(tokens, rows): `x` times matrix `index`."""


class LinearEngine(Protocol):
    title: str

    def pack(self, weights: QuantisedWeights, count: int) -> Stack: ...


class Ostinato:
    """The native kernels with int8 activations, one call from Python a product."""

    title = "Ostinato"

    def __init__(self, threads: int) -> None:
        with workers_pinned(available_cpus()):
            self._runtime = _native.Runtime(threads=threads)

    @property
    def isa(self) -> str:
        return self._runtime.isa

    def pack(self, weights: QuantisedWeights, count: int) -> Stack:
        (rows, cols), raw = weights.shape, weights.gguf()
        form, encoding = ("int4_minimum", "Q4_1") if weights.bits == 4 else ("int8", "Q8_0")
        matrices = []
        for index in range(count):
            matrix = _native.PackedMatrix(form, rows, cols)
            matrix.put(encoding, raw, ((np.arange(rows) + index) % rows).astype(np.int32))
            matrices.append(matrix)
        return _NativeStack(self._runtime, matrices, rows)


class _NativeStack:
    def __init__(self, runtime: Any, matrices: list[Any], rows: int) -> None:
        self._runtime, self._matrices, self._rows = runtime, matrices, rows

    def walk(self, x: Float32Array, count: int) -> Callable[[], None]:
        linear, matrices = self._runtime.linear, self._matrices[:count]
        out = np.empty((len(x), self._rows), np.float32)

        def walk() -> None:
            for matrix in matrices:
                linear(matrix, x, out)

        return walk

    def product(self, x: Float32Array, index: int) -> Float32Array:
        out = np.full((len(x), self._rows), np.nan, np.float32)
        self._runtime.linear(self._matrices[index], x, out)
        return out


class OnnxRuntime:
    """com.microsoft.MatMulNBits at accuracy level 4 (int8 activations); a walk is one run of one graph.

    Raises:
        ModuleNotFoundError: `onnxruntime` or `onnx` is not installed.
    """

    title = "ONNX Runtime"

    def __init__(self, threads: int) -> None:
        self._runtime = importlib.import_module("onnxruntime")
        self._onnx = importlib.import_module("onnx")
        self._threads = threads
        self._cpus = available_cpus()

    @property
    def version(self) -> str:
        return str(self._runtime.__version__)

    def pack(self, weights: QuantisedWeights, count: int) -> Stack:
        return _OnnxStack(self, weights, count)

    def session(self, weights: QuantisedWeights, count: int) -> Any:
        """A graph of independent products of one input: ``x`` to ``y0``, ``y1`` …"""
        options = self._runtime.SessionOptions()
        options.intra_op_num_threads = self._threads
        # Its workers would otherwise go on spinning into the other engine's turn.
        options.add_session_config_entry("session.force_spinning_stop", "1")
        graph = self._graph(weights, count).SerializeToString()
        with workers_pinned(self._cpus):
            return self._runtime.InferenceSession(graph, options, ["CPUExecutionProvider"])

    def on_cpu(self, values: Float32Array) -> Any:
        return self._runtime.OrtValue.ortvalue_from_numpy(values)

    def _graph(self, weights: QuantisedWeights, count: int) -> Any:
        helper, float32 = self._onnx.helper, self._onnx.TensorProto.FLOAT
        (rows, cols), inputs = weights.shape, weights.matmul_nbits()
        nodes, constants, outputs = [], [], []
        for index in range(count):
            names = [f"{name}{index}" for name in inputs]
            constants += [
                self._onnx.numpy_helper.from_array(np.roll(values, index, axis=0), name)
                for name, values in zip(names, inputs.values(), strict=True)
            ]
            nodes.append(
                helper.make_node(
                    "MatMulNBits",
                    ["x", *names],
                    [f"y{index}"],
                    domain="com.microsoft",
                    K=cols,
                    N=rows,
                    bits=weights.bits,
                    block_size=32,
                    accuracy_level=4,
                )
            )
            outputs.append(helper.make_tensor_value_info(f"y{index}", float32, ["tokens", rows]))
        x = helper.make_tensor_value_info("x", float32, ["tokens", cols])
        graph = helper.make_graph(nodes, "products", [x], outputs, constants)
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)


class _OnnxStack:
    """A session runs its whole graph, so each length of walk has one of its own; it keeps the last."""

    def __init__(self, engine: OnnxRuntime, weights: QuantisedWeights, count: int) -> None:
        self._engine, self._weights = engine, weights
        self._session, self._length = engine.session(weights, count), count

    def walk(self, x: Float32Array, count: int) -> Callable[[], None]:
        if count != self._length:
            self._session = self._engine.session(self._weights, count)
            self._length = count
        session, binding = self._session, self._session.io_binding()
        given = self._engine.on_cpu(x)
        out = self._engine.on_cpu(np.empty((len(x), self._weights.shape[0]), np.float32))
        binding.bind_ortvalue_input("x", given)
        for index in range(count):
            binding.bind_ortvalue_output(f"y{index}", out)

        def walk() -> None:
            session.run_with_iobinding(binding)

        return walk

    def product(self, x: Float32Array, index: int) -> Float32Array:
        result: Float32Array = self._session.run([f"y{index}"], {"x": x})[0]
        return result


def installed_engines(threads: int) -> tuple[list[LinearEngine], str]:
    """Ostinato and, where it is installed, ONNX Runtime; and who is left out, with the remedy."""
    engines: list[LinearEngine] = [Ostinato(threads)]
    try:
        engines.append(OnnxRuntime(threads))
    except ModuleNotFoundError as error:
        return engines, f"Without ONNX Runtime: no module {error.name}. Install it: {INSTALL}"
    return engines, ""
