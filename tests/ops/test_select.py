"""Guards the choice of kernels: a machine without the extension must still serve, and be told so once."""

from __future__ import annotations

import logging
import sys

import pytest

from ostinato.errors import ConfigError
from ostinato.ops.reference import ReferenceBackend
from ostinato.ops.select import KernelOptions, select_backend
from tests.ops.backends import ISAS, needs_native


@pytest.fixture
def _no_extension(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where it could not be built: importing it fails."""
    for module in ("ostinato.ops.cpu", "ostinato.ops.cpu_weights"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.delattr("ostinato._native", raising=False)
    monkeypatch.delattr("ostinato.ops.cpu", raising=False)
    monkeypatch.setitem(sys.modules, "ostinato._native", None)


@pytest.mark.usefixtures("_no_extension")
def test_auto_without_the_extension_warns_once_and_runs_numpy(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        backend = select_backend("auto")
    assert isinstance(backend, ReferenceBackend)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "C++20 compiler" in record.getMessage()
    assert "NumPy backend runs instead" in record.getMessage()


@pytest.mark.usefixtures("_no_extension")
def test_asking_for_the_native_kernels_without_the_extension_is_an_error() -> None:
    with pytest.raises(ConfigError, match="native kernels are not installed"):
        select_backend("cpu")


@pytest.mark.usefixtures("_no_extension")
def test_the_reference_needs_no_extension(caplog: pytest.LogCaptureFixture) -> None:
    assert select_backend("reference").info.name == "reference"
    assert not caplog.records


@needs_native
def test_auto_takes_the_native_kernels_where_they_run(caplog: pytest.LogCaptureFixture) -> None:
    backend = select_backend("auto", KernelOptions(threads=1))
    assert backend.info.name == "cpu"
    assert backend.info.facts["isa"] == ISAS[-1]
    assert not caplog.records


@needs_native
def test_the_options_reach_the_native_kernels() -> None:
    options = KernelOptions(threads=3, weight_dtype="int8", activation_dtype="fp32")
    facts = select_backend("cpu", options).info.facts
    assert (facts["threads"], facts["weights"], facts["activations"]) == ("3", "int8", "fp32")


@needs_native
def test_an_instruction_set_that_this_cpu_lacks_is_an_error_that_names_it() -> None:
    from ostinato.ops.cpu import CpuBackend

    with pytest.raises(ConfigError, match="sse9000"):
        CpuBackend(isa="sse9000")


@needs_native
def test_a_cpu_that_runs_no_kernels_is_told_so_in_whole_sentences(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def lacks(*_: object, **__: object) -> None:
        raise ValueError("this CPU lacks something")

    monkeypatch.setattr("ostinato._native.Runtime", lacks)
    assert isinstance(select_backend("auto"), ReferenceBackend)
    (record,) = caplog.records
    said = "The native kernels cannot run here: this CPU lacks something. The NumPy backend runs"
    assert record.getMessage().startswith(said)
