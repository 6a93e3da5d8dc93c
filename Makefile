# Everything sets itself up in .venv; only Python >= 3.11 is needed. On Windows: docs/quickstart/windows.md.
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
PYTEST = $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder --durations 25 --durations-min 2
# uv installs and makes the locks; pip fetches it, and says where packages are (tools/packages.py).
UV := $(BIN)/uv
INSTALL := $(BIN)/python -m tools.packages $(BIN)/python
# Some machines forbid bytecode files; servers that tests start again and again would compile every module each time.
export PYTHONDONTWRITEBYTECODE :=
LOWEST := .venv-lowest
# cosmic-ray makes the mutants; it has a place of its own too.
MUTANTS := .venv-mutants
MUTANT_SEED ?= 1
MUTANT_COUNT ?= 120
PEERS ?= build/peers
PEERS_OPTIONS ?=
PEERS_WITH ?=
QUALITY ?= build/quality
QUALITY_OPTIONS ?=
REAL := tests/real $(if $(FULL),,-m "not full")
LOWEST_TESTS ?= $(addprefix tests/engine/,core runtime text) $(addprefix tests/server/,api generation http) \
	$(addprefix --ignore=tests/engine/text/,test_chat_template.py test_prompt.py)

.PHONY: serve test test-all test-real lint bench bench-large bench-peers bench-quality lock test-lowest mutants clean

serve: $(SERVE)
	$(BIN)/hexserve serve $(BUNDLE) --port $(PORT)

# Minutes, nothing but this machine: pure units, tiny graphs on the CPU, the server and its worker.
test: $(DEV)
	$(PYTEST) --ignore tests/long --ignore tests/real

# The long rest: other people's clients in environments of their own, Qualcomm's emulator, Genie, large inputs; then
# what `make test-real` runs. Much of it waits for other processes, so one more runs than on two cores otherwise.
test-all: WORKERS := $(if $(filter environment,$(origin WORKERS)),$(WORKERS),3)
test-all: $(DEV)
	$(BIN)/python -m tests.clients.environments
	$(BIN)/python -m tools.real_models
	$(PYTEST) tests/long $(REAL)

# Published models (0.9 GB, fetched once into ~/.cache/hexserve/real or REAL_MODELS) beside other people's programs.
# FULL=1 builds llama.cpp too (10 minutes or more) and takes the stored figures again (an hour and more).
test-real: $(DEV)
	$(BIN)/python -m tools.real_models
	$(PYTEST) $(REAL)

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(DEV)
	$(BIN)/hexserve bench $(BUNDLE)

# A 0.6B-sized checkpoint with random weights: compile time, then 1 to 16 clients. Needs 3 GB of disk in build/.
bench-large: $(DEV)
	$(BIN)/python -m tools.random_checkpoint --shape qwen3-0.6b -o build/qwen3-0.6b
	$(BIN)/hexserve compile build/qwen3-0.6b -o build/qwen3-0.6b-int4 --quant int4 --block 128 --quality fast --force
	$(BIN)/hexserve bench build/qwen3-0.6b-int4 --shared-prefix 1000

# hexserve beside llama-server on Qwen2.5-Coder 0.5B, with a table of ratios. The first run builds
# llama.cpp (10 minutes or more); PEERS=DIR keeps and finds it, PEERS_OPTIONS="--gguf FILE ..." changes a run, and
# PEERS_WITH=ik,openvino,vllm takes these servers instead, each in an environment of its own.
bench-peers: $(DEV)
	$(BIN)/python -m tools.peers --folder $(PEERS) --with "$(PEERS_WITH)" $(PEERS_OPTIONS)

# Quantised models against the bars, with a table; QUALITY=DIR keeps what is made,
# QUALITY_OPTIONS="--models smollm2 --forms w4,w4a16 ..." takes less (docs/benchmarks/quality.md).
bench-quality: $(DEV)
	$(BIN)/python -m tools.quality --folder $(QUALITY) $(QUALITY_OPTIONS)

# Exact versions with hashes for the image, CI and `make serve`: what still fits stays, UPGRADE=1 takes the newest.
lock: $(UV) $(DEV)
	$(LOCKS)/remake.sh $(UV) $(if $(UPGRADE),--upgrade)
	$(BIN)/python deploy/check_wheels.py

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
	rm -rf $(VENV) $(MUTANTS) $(LOWEST) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "hexserve needs Python 3.11 or newer, this is " + sys.version.split()[0])'
	$(PYTHON) -m venv $(VENV)

$(UV): $(LOCKS)/uv.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $(LOCKS)/uv.txt
	touch $@

$(MUTANTS)/bin/cosmic-ray:
	$(PYTHON) -m venv $(MUTANTS)
	$(MUTANTS)/bin/python -m pip install --quiet --disable-pip-version-check "cosmic-ray>=8.7"

# No hashes are checked beside an editable project, so the locked packages come first and the project finds them there.
$(SERVE): pyproject.toml $(LOCKS)/compile.txt | $(UV)
	@echo "installing what serving needs into $(VENV), some seconds"
	$(INSTALL) --require-hashes -r $(LOCKS)/compile.txt
	$(INSTALL) --no-build-isolation --editable ".[compile]"
	touch $@

# The second command also takes torch, which no lock can hold (deploy/locks/torch.in).
$(DEV): pyproject.toml $(LOCKS)/dev.txt | $(UV)
	@echo "installing what tests and linters need into $(VENV), up to a minute"
	$(INSTALL) --require-hashes -r $(LOCKS)/dev.txt
	$(INSTALL) --no-build-isolation --editable ".[dev]"
	touch $@ $(SERVE)
