PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin

.PHONY: verify test lint baseline clean
BASELINE := tests/accuracy/gate.jsonl.xz

verify: $(VENV)/installed
	$(BIN)/fa4verify run gate --baseline $(BASELINE)

test: $(VENV)/installed
	$(BIN)/python -m pytest -n 2

lint: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# What the gate gives from now on: told against what it gave, then kept. Say why in CHANGELOG.md.
baseline: $(VENV)/installed
	rm -rf build/baseline
	$(BIN)/fa4verify run gate --out build/baseline
	$(BIN)/fa4verify baseline build/baseline/runs/*/*.jsonl $(BASELINE)

# The development tools come with both, so that `make verify` and `make test` share one environment.
$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable . \
	  hypothesis import-linter ml-dtypes mypy playwright pytest-benchmark pytest-xdist ruff
	touch $@

clean:
	rm -rf $(VENV)
