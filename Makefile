# Every target sets up what it needs; `make venv` is a no-op while constraints.txt is older.
#
#   PYTHON   the interpreter that makes the environment, 3.11 or newer
#   VENV     where the environment lies
#   JOBS     processes of make sweep-cpu and make stress-mutants

PYTHON ?= python3
VENV ?= .venv
JOBS ?= 2
BIN := $(VENV)/bin
PIP_INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt
INSTALLED := $(VENV)/.installed

# The tests start some hundreds of processes, which would compile every module anew where the
# environment forbids to write byte code: half of all that they compute. `make clean` removes it.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help venv demo test test-fast test-gpu sweep-cpu sweep-gpu mutants stress-mutants fuzz check format clean
.DEFAULT_GOAL := help

help:
	@echo "make demo       replay a real request trace through a daemon and check every byte"
	@echo "make test       all tests that need neither a GPU nor minutes"
	@echo "make test-fast  the same without those that take longer than a second"
	@echo "make test-gpu   the tests of the CUDA device, which need a GPU"
	@echo "make sweep-cpu  the long sweeps, which take a quarter of an hour and more"
	@echo "make sweep-gpu  50,000 operations of the stress harness on a GPU"
	@echo "make mutants    leave out every rule that keeps pages apart and print which test notices"
	@echo "make fuzz       send a million damaged frames to a daemon; half an hour"
	@echo "make stress-mutants  plant every fault, run the stress harness, write tests/stress/MUTANTS.md"
	@echo "make check      ruff, mypy, pyright and the architecture rules"
	@echo "make format     let ruff format and sort the imports"
	@echo "make venv       make or update the environment in $(VENV)"
	@echo "make clean      remove the environment and all caches"

venv: $(INSTALLED)

# --no-compile: byte code of what is never imported costs half of the time, torch's above all. The
# last line compiles what is imported, so that the first start is as fast as the second.
# The build backend comes first, pinned like the rest, because build isolation would fetch any version.
$(INSTALLED): constraints.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("kvd needs Python 3.11 or newer; set PYTHON=")'
	$(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) hatchling editables
	$(PIP_INSTALL) --no-build-isolation -e '.[client,dev]'
	@$(BIN)/python -c 'import numpy, prometheus_client, rich.progress, rich.table, torch, uvloop, zmq'
	@touch $@

demo: venv
	$(BIN)/kvd replay --demo

# Half of the tests' time is waiting for processes, so two files run at a time, also
# on a small machine. The tests of one file stay together, because they share daemons.
test: venv
	$(BIN)/python -m pytest -q -m "not gpu and not sweep" -n 2 --dist loadfile

test-fast: venv
	$(BIN)/python -m pytest -q -m "not gpu and not slow and not sweep" -n 2 --dist loadfile

test-gpu: venv
	$(BIN)/python -m pytest -q -m "gpu and not sweep" tests/gpu

# 2,002,000 operations over 440 seeds, 40 on each of 11 shapes; a tenth of all answers is found again
# by trying every layout. Then 200,200 through a real daemon with faults.
sweep-cpu: venv
	$(BIN)/kvd stress --seeds 440 --ops 4550 --jobs $(JOBS) --oracle-share 100 --coverage
	$(BIN)/kvd stress --backend daemon --seeds 110 --ops 1820 --jobs $(JOBS)
	$(BIN)/python -m pytest -q -m "sweep and not gpu" --timeout=0 --durations=0

sweep-gpu: venv
	$(BIN)/kvd stress --backend cuda --seeds 55 --ops 1000 --jobs $(JOBS)

mutants: venv
	$(BIN)/python -m tests.mutation

fuzz: venv
	$(BIN)/python -m tests.fuzz

stress-mutants: venv
	$(BIN)/kvd stress --mutants --jobs $(JOBS) --table tests/stress/MUTANTS.md

check: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/python -m pytest -q tests/arch

format: venv
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis dist build
	find kvd client proto tests -name __pycache__ -type d -prune -exec rm -rf {} +
