# Two commands for a newcomer: `make compile` and `make test`. Both need python3 (3.11 to 3.14) and make, nothing else.
# PERMISSIVE=1 with any of them: without pyiqa (noncommercial) and pillow-heif (GPL parts), in an environment of its own.
# UV=0 with any of them: pip installs, not uv.
PYTHON ?= python3
VENV ?= $(if $(PERMISSIVE),.venv-permissive,.venv)
BIN := $(VENV)/bin
ARGS ?=
UV ?= 1
INSTALL := $(PYTHON) install.py $(VENV) $(if $(PERMISSIVE),--permissive) $(if $(filter 0,$(UV)),--pip)
LISTS := pyproject.toml requirements.lock constraints.txt

.PHONY: compile runs test test-slow install lint lock clean

compile: $(VENV)/.installed
	$(BIN)/python -m program.compile $(ARGS)

runs: $(VENV)/.installed
	$(BIN)/python -m program.runs $(ARGS)

# In each process one thread of BLAS and PyTorch: those of several would spin while they wait for each other.
test test-slow: export OMP_NUM_THREADS ?= 1
# Compiled code is kept, even where the environment says not to: else each of their processes compiles all it loads.
test test-slow $(VENV)/.installed-dev: export PYTHONDONTWRITEBYTECODE :=
test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -p no:cacheprovider -n auto --dist loadfile $(ARGS)

test-slow: $(VENV)/.installed-slow
	$(BIN)/python -m pytest -p no:cacheprovider -n auto --dist loadfile -m slow $(ARGS)

install: $(VENV)/.installed

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check --no-cache .
	$(BIN)/mypy --cache-dir=/dev/null
	$(BIN)/lint-imports --no-cache

# The README's commands need these two extras as well.
$(VENV)/.installed: $(LISTS)
	@$(INSTALL) gallery serve
	@touch $@

# uv compiles no bytecode: loaded here, the tests and what they load are compiled once, not by two processes at a time.
LOADED := dspy, litellm, mlflow.pyfunc, mlflow.server, torch, torchvision, scipy.stats, sklearn.linear_model, \
  matplotlib.pyplot, datasets, fastapi, hypothesis, playwright.sync_api
$(VENV)/.installed-dev: $(LISTS)
	@$(INSTALL) dev
	@$(BIN)/python -W ignore -c "import $(LOADED)"
	@$(BIN)/python -m pytest -p no:cacheprovider --collect-only -qq > /dev/null
	@touch $(VENV)/.installed $@

$(VENV)/.installed-slow: $(LISTS)
	@$(INSTALL) slow
	@touch $(VENV)/.installed $(VENV)/.installed-dev $@

# Versions stay where pyproject.toml allows them; ARGS=--upgrade takes the newest, ARGS="--upgrade-package NAME" one.
# Cut is what each line of the lock would say: for Python before 3.15, and not for a browser's.
P := python_full_version < '3\.15'
B := sys_platform != 'emscripten'
CUT := sed -e "s/$P and //g" -e "s/ and $P//g" -e "s/ ; $P//" -e "s/$B and //g" -e "s/ and $B//g" -e "s/ ; $B//"
lock:
	@test -x $(BIN)/uv || { $(PYTHON) -m venv $(VENV) && $(BIN)/python -m pip install --quiet -c constraints.txt uv; }
	@$(BIN)/uv pip compile pyproject.toml --universal --python-version 3.11 --all-extras --generate-hashes \
	  --custom-compile-command "make lock" --quiet --output-file requirements.lock $(ARGS)
	@$(CUT) requirements.lock > requirements.cut && mv requirements.cut requirements.lock
	@{ echo "# For pip: the versions of requirements.lock, which has the hashes too. \`make lock\` writes both."; \
	  sed -e "/^ *#/d" -e "/^ *--hash/d" -e 's/ \\$$//' requirements.lock; } > constraints.txt

clean:
	rm -rf $(VENV)
