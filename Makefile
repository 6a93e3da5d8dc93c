# Everything sets itself up in .venv; only Python >= 3.11 is needed. On Windows use the commands in README.md.
PYTHON ?= python3
PORT ?= 8000
BUNDLE ?= demo
VENV := .venv
BIN := $(VENV)/bin
SERVE := $(VENV)/serve.stamp
DEV := $(VENV)/dev.stamp
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: serve test test-all lint bench bench-large clean

serve: $(SERVE)
	$(BIN)/hexserve serve $(BUNDLE) --port $(PORT)

# Minutes, nothing but this machine: pure units, tiny graphs on the CPU, the server and its worker.
test: $(DEV)
	$(BIN)/python -m pytest -m "not long"

# The long rest: other people's clients in environments of their own, Qualcomm's emulator, Genie, large inputs.
test-all: $(DEV)
	$(BIN)/python -m tests.clients.environments
	$(BIN)/python -m pytest -m long

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(DEV)
	$(BIN)/hexserve bench --bundle $(BUNDLE)

# A 0.6B-sized checkpoint with random weights: compile time, then 1 to 16 clients. Needs 3 GB of disk in build/.
bench-large: $(DEV)
	$(BIN)/python -m engine.compile.random_checkpoint --shape qwen3-0.6b -o build/qwen3-0.6b
	$(BIN)/hexserve compile build/qwen3-0.6b -o build/qwen3-0.6b-int4 --quant int4 --block 128 --force
	$(BIN)/hexserve bench --bundle build/qwen3-0.6b-int4 --shared-prefix 1000

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "hexserve needs Python 3.11 or newer, this is " + sys.version.split()[0])'
	$(PYTHON) -m venv $(VENV)

$(SERVE): pyproject.toml | $(BIN)/python
	@echo "installing what serving needs into $(VENV), about half a minute"
	$(PIP) --editable ".[compile]"
	touch $@

$(DEV): pyproject.toml | $(BIN)/python
	@echo "installing what tests and linters need into $(VENV), one to three minutes"
	$(PIP) --editable ".[dev]"
	touch $@ $(SERVE)
