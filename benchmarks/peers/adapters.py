"""Each engine's own way to be started. Everything else they share."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from benchmarks.peers.contract import Engine
from benchmarks.peers.http_engine import HttpEngine
from benchmarks.peers.processes import PeerProcess, free_port, usable_cores
from benchmarks.peers.worker_engine import WORKERS, WorkerEngine

_READY = re.compile(r"ready on (http://\S+)")
_SLOTS, _CONTEXT = 16, 32_768
"""llama.cpp's slots and the tokens that they share: what 16 requests of 1,152 tokens need, and more."""


class Ostinato(HttpEngine):
    """``ostinato serve`` with its defaults.

    Args:
        model: as ``--model`` takes it.
        flags: further flags of ``ostinato serve``.
        environment: settings as ``OSTINATO_…`` variables.
    """

    name, title = "ostinato", "Ostinato"

    def __init__(
        self, model: str, logs: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(logs)
        self._requested = model
        self._environment = dict(environment or {})

    def missing(self) -> str | None:
        return None

    def launch(self) -> tuple[PeerProcess, str]:
        command = [sys.executable, "-m", "ostinato.cli", "serve", "--port", "0"]
        command += ["--model", self._requested, "--log-level", "warning"]
        environment = {"PYTHONUNBUFFERED": "1", "COLUMNS": "200", **self._environment}
        process = PeerProcess(command, self.log(), environment)
        return process, first_url(process, self.title)


class LlamaCpp(HttpEngine):
    """llama.cpp's server out of the xllamacpp wheel, which is built for AVX2."""

    name, title = "llamacpp", "llama.cpp (xllamacpp)"
    extra: ClassVar[Mapping[str, Any]] = {"cache_prompt": True}

    def __init__(self, venv: Path, model: Path, logs: Path) -> None:
        super().__init__(logs)
        self._python = venv / "bin" / "python"
        self._file = model

    def missing(self) -> str | None:
        if self._python.exists():
            return None
        return f"not installed: python -m benchmarks.peers install {self.name}"

    def launch(self) -> tuple[PeerProcess, str]:
        script = str(WORKERS / "xllamacpp_server.py")
        sizes = [str(number) for number in (usable_cores(), _SLOTS, _CONTEXT)]
        process = PeerProcess(
            [str(self._python), script, str(self._file), *sizes],
            self.log(),
            {"PYTHONUNBUFFERED": "1"},
        )
        return process, first_url(process, self.title)


class LlamaServer(LlamaCpp):
    """``llama-server`` compiled on this machine, for its own instruction set."""

    name, title = "llama-server", "llama-server (native build)"

    def __init__(self, venv: Path, model: Path, logs: Path) -> None:
        super().__init__(venv, model, logs)
        self._binary = venv / "bin" / "llama-server"

    def missing(self) -> str | None:
        if self._binary.exists():
            return None
        return f"not installed: python -m benchmarks.peers install {self.name}"

    def launch(self) -> tuple[PeerProcess, str]:
        port, cores = str(free_port()), str(usable_cores())
        command = [str(self._binary), "-m", str(self._file), "--port", port, "-t", cores]
        command += ["-tb", cores, "-np", str(_SLOTS), "-c", str(_CONTEXT), "--kv-unified"]
        process = PeerProcess(command, self.log(), merge_output=True)
        url = f"http://127.0.0.1:{port}"
        self.wait_until_ready(process, url, "/health", 120.0)
        return process, url


class Vllm(HttpEngine):
    """vLLM's OpenAI server on CPU, float32, eager, blocks of 32 (its fastest settings on CPU).

    Args:
        folder: the model as safetensors; vLLM does not read the GGUF file.
    """

    name, title = "vllm", "vLLM"

    def __init__(self, venv: Path, folder: Path, logs: Path) -> None:
        super().__init__(logs)
        self._venv = venv
        self._folder = folder

    def missing(self) -> str | None:
        if not (self._venv / "bin" / "python").exists():
            return f"not installed: python -m benchmarks.peers install {self.name}"
        if not (self._folder / "config.json").exists():
            return (
                f"needs the model as safetensors in {self._folder.name}: install {self.name} again"
            )
        return None

    def launch(self) -> tuple[PeerProcess, str]:
        port, cores = free_port(), usable_cores()
        command = [str(self._venv / "bin" / "python"), "-m", "vllm.entrypoints.openai.api_server"]
        command += ["--model", str(self._folder), "--port", str(port), "--dtype", "float32"]
        command += ["--enforce-eager", "--block-size", "32", "--enable-prefix-caching"]
        command += ["--enable-prompt-tokens-details", "--host", "127.0.0.1"]
        environment = {
            "VLLM_CPU_OMP_THREADS_BIND": f"0-{cores - 1}",
            "VLLM_CPU_KVCACHE_SPACE": "2",
            "LD_PRELOAD": ":".join(self._preloads()),
        }
        process = PeerProcess(command, self.log(), environment, merge_output=True)
        url = f"http://127.0.0.1:{port}"
        self.wait_until_ready(process, url, "/health", 300.0)
        return process, url

    def _preloads(self) -> list[str]:
        """tcmalloc and Intel's OpenMP, which vLLM recommends, where they are."""
        roots = (Path("/usr/lib"), self._venv / "lib")
        patterns = ("**/libtcmalloc_minimal.so.4", "**/libiomp5.so")
        found = (
            next(root.glob(pattern), None) for root, pattern in zip(roots, patterns, strict=True)
        )
        return [str(path) for path in found if path is not None]


class OpenVino(WorkerEngine):
    """OpenVINO GenAI's ContinuousBatchingPipeline on the same file, prefix caching on."""

    name, title = "openvino", "OpenVINO GenAI"
    script = "openvino_worker.py"


class Transformers(WorkerEngine):
    """transformers' generate(), float32, static batches."""

    name, title = "transformers", "transformers"
    script = "transformers_worker.py"
    caches_prefixes = False


def first_url(process: PeerProcess, title: str) -> str:
    """Read standard output until it says ``ready on URL``.

    Raises:
        EngineError: the process ended first.
    """
    for line in process.stdout:
        if ready := _READY.search(line):
            return ready[1]
    raise process.failure(f"{title} did not start")


PEERS: tuple[type[Engine], ...] = (LlamaCpp, LlamaServer, OpenVino, Vllm, Transformers)


def build_engines(
    names: list[str],
    *,
    model: str,
    file: Path,
    peers_dir: Path,
    environment: Mapping[str, str] | None = None,
) -> list[Engine]:
    """Ostinato and the peers of these names, not started.

    Args:
        names: of peers.
        model: as Ostinato takes it.
        file: the model's GGUF file.
        peers_dir: holds a virtual environment a peer, ``logs`` and ``hf``.
        environment: settings for Ostinato.
    """
    logs = peers_dir / "logs"
    engines: list[Engine] = [Ostinato(model, logs, environment)]
    for kind in PEERS:
        if kind.name in names:
            source = hf_folder(peers_dir, file) if kind is Vllm else file
            engines.append(kind(peers_dir / kind.name, source, logs))  # type: ignore[call-arg]
    return engines


def hf_folder(peers_dir: Path, file: Path) -> Path:
    """Where the safetensors form of a GGUF file is kept."""
    return peers_dir / "hf" / file.stem
