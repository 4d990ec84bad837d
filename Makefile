# Two commands for a newcomer: `make compile` and `make test`. Both need python3 (3.11 to 3.14) and make, nothing else.
# PERMISSIVE=1 with any of them: without pyiqa (noncommercial) and pillow-heif (GPL parts), in an environment of its own.
PYTHON ?= python3
VENV ?= $(if $(PERMISSIVE),.venv-permissive,.venv)
BIN := $(VENV)/bin
ARGS ?=
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
# pip cannot leave one dependency of a project out: it gets the others by name.
OTHERS := $(BIN)/python -c 'import sys, tomllib; project = tomllib.load(open("pyproject.toml", "rb"))["project"]; extras = project["optional-dependencies"]; names = sys.argv[1:] and list(extras); listed = sum((extras[name] for name in names), project["dependencies"]); print(*(each for each in listed if not each.startswith(("pyiqa", "pillow-heif", "agentic-iqa["))), sep="\n")'

.PHONY: compile runs test install lint clean

compile: $(VENV)/.installed
	$(BIN)/python -m program.compile $(ARGS)

runs: $(VENV)/.installed
	$(BIN)/python -m program.runs $(ARGS)

# In each process one thread of BLAS and PyTorch: those of several would spin while they wait for each other.
test: export OMP_NUM_THREADS ?= 1
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
	@$(if $(PERMISSIVE),$(OTHERS) > $(VENV)/others.txt && $(PIP) -r $(VENV)/others.txt && $(PIP) --no-deps -e .,$(PIP) -e .)
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	@$(if $(PERMISSIVE),$(OTHERS) all > $(VENV)/others.txt && $(PIP) -r $(VENV)/others.txt,$(PIP) -e ".[dev]")
	@touch $@

clean:
	rm -rf $(VENV)
