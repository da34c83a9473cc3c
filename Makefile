# Everything a newcomer or a developer does, one word each. `make help` lists them.

VENV          := .venv
BIN           := $(VENV)/bin
PARITY_VENV   := .venv-parity
PARITY_BIN    := $(PARITY_VENV)/bin
DEFAULT_MODEL := smollm2-135m-instruct
PIP_INSTALL   := -m pip install --disable-pip-version-check
# Flags of `ostinato serve`, e.g. make run SERVE="--port 9000 --kv-memory 2GiB"
SERVE         ?=
# What the parity suite installs PyTorch with, for those who want a CPU build from elsewhere.
TORCH_FLAGS   ?=
# Further arguments of `python -m benchmarks.peers`, e.g. make bench-peers PEERS="--quick"
PEERS         ?=
# Further arguments for pytest, e.g. make test PYTEST="-k radix"
PYTEST        ?=
# A model that calls tools for test-slow: a name, a GGUF file or a folder. Default: Qwen2.5 Coder 0.5B, if pulled.
TEST_TOOL_MODEL ?=

# What the native kernels are built from: when it changes, they are built again.
CSRC          := $(wildcard csrc/*.cpp csrc/*.hpp csrc/*/*.cpp csrc/*/*.hpp) csrc/CMakeLists.txt
comma         := ,

# Build the checks of csrc/tests in build/sanitize-$(1) with the sanitizers $(2), and run them.
define sanitize
cmake -S csrc -B build/sanitize-$(1) -DCMAKE_BUILD_TYPE=Release -DOSTINATO_SANITIZE=$(2)
cmake --build build/sanitize-$(1) --parallel 2
build/sanitize-$(1)/kernel_check
endef

# The first Python on the path that is new enough; override with make PYTHON=/path/to/python3.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo "$$p"; break; }; \
	done)

.PHONY: help run demo test test-slow test-fuzz test-parity test-sanitize check bench bench-peers bench-quality bench-kv model clean
.DEFAULT_GOAL := help

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

run: model ## Install what is needed, fetch the default model, start the server
	@exec $(BIN)/ostinato serve $(SERVE)

demo: model ## Play an agent's conversation with prefix caching off and on
	@exec $(BIN)/ostinato demo

test: $(VENV)/.installed-dev model ## Run the test-suite
	$(BIN)/python -m pytest -m "not slow and not parity" $(PYTEST)

test-slow: $(VENV)/.installed-dev model ## Run the tests that take minutes (TEST_TOOL_MODEL=... names the one that calls tools)
	TEST_TOOL_MODEL="$(TEST_TOOL_MODEL)" $(BIN)/python -m pytest -m slow $(PYTEST)

test-fuzz: $(VENV)/.installed-dev ## Send every dialect 10,000 malformed requests, and what OpenAPI allows
	$(BIN)/python -m pytest -m slow -s tests/e2e/test_fuzz.py tests/e2e/test_openapi.py $(PYTEST)

test-parity: $(PARITY_VENV)/.installed ## Compare logits with transformers, live (installs PyTorch apart)
	@$(PARITY_BIN)/ostinato pull $(DEFAULT_MODEL)
	$(PARITY_BIN)/python -m pytest -m parity $(PYTEST)

test-sanitize: ## Check the native kernels with address, undefined-behaviour and thread sanitizers
	$(call sanitize,address,address$(comma)undefined)
	$(call sanitize,thread,thread)

check: $(VENV)/.installed-dev ## Lint, formatting, types, import layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.installed-dev model ## Measure what caching saves on this machine
	$(BIN)/python -m benchmarks

bench-peers: $(VENV)/.installed-dev model ## Measure beside other engines (python -m benchmarks.peers --help)
	$(BIN)/python -m benchmarks.peers $(PEERS)

bench-quality: $(VENV)/.installed-dev model ## Measure what int8 activations cost, beside llama.cpp
	$(BIN)/python -m benchmarks.quality

bench-kv: $(VENV)/.installed-dev model ## Measure what each K/V format saves and costs (goes on where it was broken off)
	$(BIN)/python -m benchmarks.quality kv

model: $(VENV)/.installed ## Fetch the default model
	@$(BIN)/ostinato pull $(DEFAULT_MODEL)

clean: ## Remove everything that was built (models stay)
	rm -rf $(VENV) $(PARITY_VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis \
		.import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/bin/python $(PARITY_VENV)/bin/python:
ifeq ($(strip $(PYTHON)),)
	@echo "Ostinato needs Python 3.11 or newer, and none was found on the path." >&2
	@echo "Install one (Debian: apt install python3-venv; macOS: brew install python), or name it:" >&2
	@echo "    make run PYTHON=/path/to/python3.12" >&2
	@exit 1
else
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "Ostinato needs Python 3.11 or newer; $(PYTHON) is $$("$(PYTHON)" -V 2>&1)." >&2; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' || { \
		echo "$(PYTHON) cannot make virtual environments; on Debian: apt install python3-venv" >&2; exit 1; }
	"$(PYTHON)" -m venv $(dir $(@D))
endif

# The stamps make a second start quick: pip runs again only when pyproject.toml or the C++ changes.
$(VENV)/.installed: pyproject.toml $(CSRC) | $(VENV)/bin/python
	$(BIN)/python $(PIP_INSTALL) -e .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml $(CSRC) | $(VENV)/bin/python
	$(BIN)/python $(PIP_INSTALL) -e '.[dev]'
	@touch $@ $(VENV)/.installed

# PyTorch first and alone, so that nothing else decides which build comes; never in the default venv.
$(PARITY_VENV)/.installed: pyproject.toml $(CSRC) | $(PARITY_VENV)/bin/python
	$(PARITY_BIN)/python $(PIP_INSTALL) $(TORCH_FLAGS) 'torch==2.13.0'
	$(PARITY_BIN)/python $(PIP_INSTALL) -e '.[dev,parity]'
	@touch $@
