# Everything a clean clone needs: make and a Python from 3.11 to 3.14. Works with GNU make 3.81 (macOS).
#   make dataset     set up .venv once and build the whole dataset into warehouse/releases/
#   make test        fast tests          make test-all   all tests          make check   style and types
#   make ui          the Dagster UI on this machine       make bench  how long a small build takes

PYTHON ?= $(shell for candidate in python3 python3.14 python3.13 python3.12 python3.11; do \
	"$$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' 2>/dev/null \
	&& echo "$$candidate" && break; done)
VENV := .venv
RUN := $(VENV)/bin/python
READY := $(VENV)/.ready
UI_PORT ?= 3000

export DAGSTER_DISABLE_TELEMETRY := 1

.PHONY: dataset setup test test-all check format ui bench clean
.DEFAULT_GOAL := dataset

dataset: $(READY)
	$(RUN) -m pipeline build

setup: $(READY)

# One stamp: made when every package of the lock file is in place, remade when the lock file changes.
$(READY): requirements.lock pyproject.toml
	@test -n "$(PYTHON)" || { echo "Tokcube needs Python 3.11 to 3.14; set PYTHON=/path/to/python3"; exit 1; }
	@echo "Setting up $(VENV) from requirements.lock: once, about two minutes"
	@$(RUN) -m pip --version >/dev/null 2>&1 || "$(PYTHON)" -m venv --clear $(VENV)
	$(RUN) -m pip install --disable-pip-version-check --quiet --require-hashes --no-deps -r requirements.lock
	$(RUN) -m pip install --disable-pip-version-check --quiet --no-deps --no-build-isolation --editable .
	@touch $@

test: $(READY)
	$(RUN) -m pytest -m "not slow"

test-all: $(READY)
	$(RUN) -m pytest

check: $(READY)
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy

format: $(READY)
	$(RUN) -m ruff check --fix .
	$(RUN) -m ruff format .

# All state of the UI (runs, logs, asset history) is kept in .dagster/, which git ignores.
ui: $(READY) .dagster/dagster.yaml
	@echo "http://127.0.0.1:$(UI_PORT) in about twenty seconds; stop it with Ctrl-C"
	DAGSTER_HOME="$(CURDIR)/.dagster" PYTHONWARNINGS=ignore $(VENV)/bin/dagster dev \
		--host 127.0.0.1 --port $(UI_PORT)

.dagster/dagster.yaml: dagster.yaml
	@mkdir -p .dagster
	cp dagster.yaml $@

# The small grid into a scratch folder; the table at the end says how long every step took.
bench: $(READY)
	rm -rf build/bench
	$(RUN) -m pipeline build --grid core --warehouse build/bench

clean:
	rm -rf build warehouse/stage warehouse/core .mypy_cache .pytest_cache .ruff_cache .hypothesis
