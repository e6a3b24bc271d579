# Two commands on a fresh machine with Python 3.11 or newer:
#   make demo   the main job, on the built-in data: demo/report.html
#   make test   lint, types, room order and the whole test suite
PYTHON ?= python3
SCALE  ?= default
OUT    ?= demo
BIN    := .venv/bin

.PHONY: demo test lint setup clean

setup: .venv/.installed

.venv/.installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "recollect needs Python 3.11 or newer; name one with: make PYTHON=python3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: setup
	$(BIN)/recollect demo --out $(OUT) --scale $(SCALE)

lint: setup
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/mypy
	$(BIN)/lint-imports

test: lint
	$(BIN)/pytest -n auto --dist worksteal --jaxtyping-packages=recollect,beartype.beartype

clean:
	rm -rf .venv build dist *.egg-info src/*.egg-info
