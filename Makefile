# Two commands on a fresh machine with Python 3.11 or newer:
#   make demo   the main job on real pictures: demo/report.html (make demo PICTURES=DIR: on yours)
#   make test   lint, types, room order and the whole test suite
# Also: make docs (the site, strictly,
# into site/), make results (the pages of figures from the files in results/), make figures (their
# pictures of numbers), make matrix (the suite on every Python of PYTHONS that is there), make lowest (the suite with the lowest versions that pyproject.toml promises).
SHELL       := /bin/bash
.SHELLFLAGS := -o pipefail -ec
PYTHON ?= python3
OUT    ?= demo
BIN    := .venv/bin
PYTHONS ?= python3.11 python3.12 python3.13
unexport PYTHONDONTWRITEBYTECODE
# A worker more than cores, since some always wait for a child or a disk; each takes 2 GB, so seventeen at most.
WORKERS ?= $(shell $(PYTHON) -c 'import os; print(min(os.cpu_count() or 1, 16) + 1)')
PYTEST := -n $(WORKERS) --dist worksteal --jaxtyping-packages=recollect,recollect_papers,beartype.beartype

.PHONY: demo test lint style types suite bench bench-gpu docs results figures notebooks matrix lowest setup clean

setup: .venv/.installed

.venv/.installed: pyproject.toml papers/pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "recollect needs Python 3.11 or newer; name one with: make PYTHON=python3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python .ci/install.py --constraint constraints.txt --editable '.[dev]' --editable ./papers
	touch $@

demo: setup
	$(BIN)/recollect demo --out $(OUT) $(if $(PICTURES),--pictures "$(PICTURES)")

lint: style types

style: setup
	$(BIN)/ruff check src papers tests benchmarks
	$(BIN)/ruff format --check src papers tests benchmarks

types: setup
	$(BIN)/mypy
	$(BIN)/lint-imports

# Every ratio of speed and memory, in one run; the JSON says on which machine.
bench: setup
	$(BIN)/python benchmarks/bench.py --out results/bench/cpu.json

bench-gpu: setup
	$(BIN)/python benchmarks/bench.py --scale gpu --out results/bench/gpu.json

# What takes a second comes first; mypy and the order of rooms keep one core busy, and go beside the tests.
test: style
	$(MAKE) --no-print-directory --jobs 2 types suite

suite: setup
	$(BIN)/pytest $(PYTEST)

# The outputs that the notebooks show.
notebooks: setup
	$(BIN)/python tests/guide_notebook.py docs/notebooks/*.ipynb

# A dead link or anchor and a name that is not there stop the build; so does a docstring that speaks of no parameter.
docs: setup
	$(BIN)/zensical build --strict --clean 2>&1 | tee .site.log
	! grep -E "^griffe:.*Parameter '[^,']*' does not appear|Warning|Error" .site.log
	@echo "site: site/index.html"

# Every table and figure between the marks of the pages, from the files in results/.
results: setup
	for page in $$(grep -rlE '<!-- (table|cell|words|value) ' README.md docs --include=*.md); do $(BIN)/recollect-papers results $$page; done

# The guide's pictures of numbers, from the files in results/ that keep their points.
figures: setup
	for name in lixp/figure-4 reco/figure-3; do $(BIN)/recollect-papers $$name --kept results/$$name.json --out docs/images; done

matrix:
	for python in $(PYTHONS); do \
	  $$python --version > /dev/null 2>&1 || { echo "$$python: not here, left out"; continue; }; \
	  test -x .venv-$$python/bin/python || $$python -m venv .venv-$$python; \
	  .venv-$$python/bin/pip install --quiet --constraint constraints.txt --editable '.[dev]' --editable ./papers; \
	  .venv-$$python/bin/pytest $(PYTEST); \
	done

# The versions are those of pyproject.toml; tools of tests come in any version that goes with them.
lowest:
	test -x .venv-lowest/bin/python || $(PYTHON) -m venv .venv-lowest
	$(PYTHON) .ci/lowest.py > .venv-lowest/constraints.txt
	.venv-lowest/bin/pip install --quiet --constraint .venv-lowest/constraints.txt --editable '.[adapters,index,milvus,onnx,starter,web]' --editable ./papers \
	  beartype build grimp hypothesis pytest pytest-xdist sentence-transformers setuptools
	.venv-lowest/bin/pytest -n $(WORKERS) --dist worksteal # the lowest jaxtyping cannot watch a package that a plugin has imported

clean:
	rm -rf .venv .venv-* site .site.log build dist *.egg-info src/*.egg-info papers/src/*.egg-info
