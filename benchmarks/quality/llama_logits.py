"""Logits of every position from llama.cpp, through a worker in its own virtual environment."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.peers.contract import EngineError
from benchmarks.peers.processes import usable_cores

WORKER = Path(__file__).parent / "workers" / "llama_logits.py"


class LlamaLogits:
    """llama.cpp with its defaults (activations in int8, K/V in fp16), one window a call.

    Args:
        venv: made by ``python -m benchmarks.peers install llamacpp``.
        model: the GGUF file.
        vocab: columns of the logits.
        window: tokens of the longest window.
        log: where llama.cpp's own messages go.
    """

    title = "llama.cpp (xllamacpp), its defaults"

    def __init__(self, venv: Path, model: Path, vocab: int, window: int, log: Path) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        command = [str(venv / "bin" / "python"), str(WORKER), str(model), str(window)]
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [*command, str(usable_cores())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        self._vocab = vocab
        self._log = log

    @staticmethod
    def missing(venv: Path) -> str | None:
        """Why it cannot run; None if it can."""
        if (venv / "bin" / "python").exists():
            return None
        return "llama.cpp is not installed: python -m benchmarks.peers install llamacpp"

    def window(self, token_ids: npt.NDArray[np.int32]) -> npt.NDArray[np.float32]:
        """``(T, vocab)``.

        Raises:
            EngineError: llama.cpp ended.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        header = np.array([len(token_ids)], dtype=np.int32)
        self._process.stdin.write(header.tobytes() + token_ids.astype(np.int32).tobytes())
        self._process.stdin.flush()
        size = 4 * len(token_ids) * self._vocab
        data = self._process.stdout.read(size)
        if len(data) != size:
            tail = self._log.read_text(errors="replace")[-600:]
            raise EngineError(f"llama.cpp ended; its log ends: {tail}")
        return np.frombuffer(data, dtype=np.float32).reshape(len(token_ids), self._vocab)

    def close(self) -> None:
        """End the worker."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()
