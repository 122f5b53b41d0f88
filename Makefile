# Each goal sets itself up in .venv; only Python 3.10 or newer and make are needed.
PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3.10 python3; do \
	command -v $$p >/dev/null && $$p -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2])' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin

.PHONY: help demo lab test clean

help:
	@echo "make demo   run the first tutorial and print the doctor's verdict"
	@echo "make lab    open the tutorials in JupyterLab"
	@echo "make test   lint, types, tests, tutorials: what CI runs"
	@echo "make clean  remove what these made"

demo: $(VENV)/.demo
	$(BIN)/python -m cuda_magic.testing.demo notebooks/01_first_steps.ipynb

# The address that it prints opens the tutorial too, as one needs where the browser is on another machine.
lab: $(VENV)/.demo
	$(BIN)/jupyter lab --ServerApp.root_dir=. --LabApp.default_url=/lab/tree/notebooks/01_first_steps.ipynb \
		$(if $(filter 0,$(shell id -u)),--allow-root)

test: $(VENV)/.test
	$(BIN)/python tests/run.py

clean:
	rm -rf $(VENV) .stacks demo build dist .mypy_cache .ruff_cache .pytest_cache

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "make: no Python 3.10 or newer found; set PYTHON=/path/to/python3"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check -U "pip>=25.1"

# What the installed package is built from; without the shim's source its library in the source tree would be old.
BUILD := pyproject.toml hatch_shim.py cuda_magic/allocation/shim.c constraints/tests.txt

$(VENV)/.demo: $(BUILD) | $(BIN)/python
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints/tests.txt -e . --group demo
	touch $@

$(VENV)/.test: $(BUILD) tests/setup.sh | $(BIN)/python
	BIN=$(BIN) sh tests/setup.sh
	touch $@
