# Everything sets itself up in .venv; only Python >= 3.11 is needed. On Windows use the commands in README.md.
PYTHON ?= python3
PORT ?= 8000
BUNDLE ?= demo
VENV := .venv
BIN := $(VENV)/bin
SERVE := $(VENV)/serve.stamp
DEV := $(VENV)/dev.stamp
LOCKS := deploy/locks
# Each worker runs whole files, as what a file sets up is its own; libraries get a thread each (tests/conftest.py).
WORKERS ?= 2
PYTEST := $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# uv makes the locks; it has a place of its own and is no dependency of the project.
UV := .venv-uv/bin/uv
LOWEST := .venv-lowest
# cosmic-ray makes the mutants; it has a place of its own too.
MUTANTS := .venv-mutants
MUTANT_SEED ?= 1
MUTANT_COUNT ?= 120
PEERS ?= build/peers
PEERS_OPTIONS ?=
QUALITY ?= build/quality
QUALITY_OPTIONS ?=
LOWEST_TESTS ?= $(addprefix tests/engine/,scheduling cache graphs text) $(addprefix tests/server/,requests routes writers http) \
	$(addprefix --ignore=tests/engine/text/,test_chat_template.py test_prompt.py)

.PHONY: serve test test-all test-real lint bench bench-large bench-peers bench-quality lock test-lowest mutants clean

serve: $(SERVE)
	$(BIN)/hexserve serve $(BUNDLE) --port $(PORT)

# Minutes, nothing but this machine: pure units, tiny graphs on the CPU, the server and its worker.
test: $(DEV)
	$(PYTEST) -m "not long and not real"

# The long rest: other people's clients in environments of their own, Qualcomm's emulator, Genie, large inputs.
test-all: $(DEV)
	$(BIN)/python -m tests.clients.environments
	$(PYTEST) -m "long and not real"
	$(MAKE) test-real

# Published models (0.8 GB, fetched once into ~/.cache/hexserve/real or REAL_MODELS) beside other people's programs.
# FULL=1 builds llama.cpp too (10 minutes or more) and takes the stored figures again (an hour and more).
test-real: $(DEV)
	$(BIN)/python -m tools.real_models
	$(PYTEST) -m "real$(if $(FULL),, and not full)"

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(DEV)
	$(BIN)/hexserve bench --bundle $(BUNDLE)

# A 0.6B-sized checkpoint with random weights: compile time, then 1 to 16 clients. Needs 3 GB of disk in build/.
bench-large: $(DEV)
	$(BIN)/python -m engine.compile.random_checkpoint --shape qwen3-0.6b -o build/qwen3-0.6b
	$(BIN)/hexserve compile build/qwen3-0.6b -o build/qwen3-0.6b-int4 --quant int4 --block 128 --quality fast --force
	$(BIN)/hexserve bench --bundle build/qwen3-0.6b-int4 --shared-prefix 1000

# hexserve beside llama-server on one random checkpoint, with a table of ratios and docs/peers.svg. The first run builds
# llama-server (10 minutes or more); PEERS=DIR keeps and finds all of it, PEERS_OPTIONS="--bundle DIR ..." changes a run.
bench-peers: $(DEV)
	$(BIN)/python deploy/bench_peers.py --folder $(PEERS) $(PEERS_OPTIONS)

# Quantised checkpoints against the bars, with a table and docs/quality.svg; QUALITY=DIR keeps what is made,
# QUALITY_OPTIONS="--english DIR --text DIR --rivals q4_0,q4_k_m ..." adds to it (docs/quality.md).
bench-quality: $(DEV)
	$(BIN)/python deploy/bench_quality.py --folder $(QUALITY) $(QUALITY_OPTIONS)

# Exact versions with hashes for the image, CI and `make serve`: what still fits stays, UPGRADE=1 takes the newest.
lock: $(UV)
	$(LOCKS)/remake.sh $(UV) $(if $(UPGRADE),--upgrade)

# The lowest versions that pyproject.toml allows, against the tests that need neither torch nor transformers.
test-lowest: $(UV)
	$(UV) venv --quiet --clear --python $(PYTHON) $(LOWEST)
	$(UV) pip install --quiet --python $(LOWEST) --resolution lowest-direct --excludes $(LOCKS)/not_lowest.txt --editable ".[dev]"
	$(LOWEST)/bin/python -m pytest $(LOWEST_TESTS)

# A seeded sample of small changes of the code, each against the tests that mirror its file; fails below 93 % noticed.
mutants: $(DEV) $(MUTANTS)/bin/cosmic-ray
	$(MUTANTS)/bin/python tests/mutants/draw.py $(MUTANT_SEED) $(MUTANT_COUNT) build/mutants.json
	nice -n 10 $(BIN)/python -m tests.mutants.measure build/mutants.json 93

clean:
	rm -rf $(VENV) .venv-uv $(MUTANTS) $(LOWEST) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "hexserve needs Python 3.11 or newer, this is " + sys.version.split()[0])'
	$(PYTHON) -m venv $(VENV)

$(UV):
	$(PYTHON) -m venv .venv-uv
	.venv-uv/bin/python -m pip install --quiet --disable-pip-version-check uv

$(MUTANTS)/bin/cosmic-ray:
	$(PYTHON) -m venv $(MUTANTS)
	$(MUTANTS)/bin/python -m pip install --quiet --disable-pip-version-check "cosmic-ray>=8.7"

# pip checks no hashes beside an editable project, so the locked packages come first and the project finds them there.
$(SERVE): pyproject.toml $(LOCKS)/compile.txt | $(BIN)/python
	@echo "installing what serving needs into $(VENV), about half a minute"
	$(PIP) --require-hashes -r $(LOCKS)/compile.txt
	$(PIP) --no-build-isolation --editable ".[compile]"
	touch $@

# The second command also takes torch, which no lock can hold (deploy/locks/torch.in).
$(DEV): pyproject.toml $(LOCKS)/dev.txt | $(BIN)/python
	@echo "installing what tests and linters need into $(VENV), one to three minutes"
	$(PIP) --require-hashes -r $(LOCKS)/dev.txt
	$(PIP) --no-build-isolation --editable ".[dev]"
	touch $@ $(SERVE)
