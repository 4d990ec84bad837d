# Two commands for a newcomer: `make compile` and `make test`. Both need python3 (3.11 to 3.14) and make, nothing else.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
ARGS ?=

.PHONY: compile test install lint clean

compile: $(VENV)/.installed
	$(BIN)/python -m program.compile $(ARGS)

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -p no:cacheprovider -n auto --dist loadfile $(ARGS)

install: $(VENV)/.installed

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check --no-cache .
	$(BIN)/mypy --cache-dir=/dev/null
	$(BIN)/lint-imports --no-cache

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 11) <= v <= (3, 14) else "error: $(PYTHON) is Python %d.%d; 3.11 to 3.14 is needed (make PYTHON=python3.12 ...)" % v)'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	@touch $@

clean:
	rm -rf $(VENV)
