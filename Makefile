# Two commands matter: `make demo` and `make test`. Both create .venv from nothing but python3.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# xdist workers, for two cores: the engines are told to use one thread each, and a fifth of the time tests wait.
WORKERS ?= 3
# Each worker begins with a part of its own, so that the tests of a file share what is made for all of them.
PARALLEL := -n $(WORKERS) --dist worksteal

.PHONY: demo test test-all test-lowest test-peer test-ray test-torch fuzz bench bench-quick lint types imports bytecode site clean

$(VENV)/.demo: pyproject.toml alias/pyproject.toml
	$(PYTHON) -m venv $(VENV) || { echo "python3 cannot make a virtual environment: install python3-venv"; exit 1; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable . ./alias
	touch $@

$(VENV)/.test: $(VENV)/.demo
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[test]"
	touch $@

demo: $(VENV)/.demo
	$(BIN)/biopsy demo --force -o biopsy-demo

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.test
	$(BIN)/mypy

imports: $(VENV)/.test
	$(BIN)/lint-imports

# Tests start thousands of processes: none shall compile our modules again, whatever PYTHONDONTWRITEBYTECODE says.
bytecode: $(VENV)/.test
	$(BIN)/python -m compileall -q src

test: lint types imports bytecode
	$(BIN)/python -m pytest $(PARALLEL) tests

test-all: lint types imports bytecode
	$(BIN)/python -m pytest $(PARALLEL) --hypothesis-profile thorough -m "not peer and not ray and not torch" tests

# The oldest versions that pyproject.toml allows, on the oldest Python if there is one.
LOWEST_PYTHON ?= $(shell for p in python3.11 "$$HOME"/.pyenv/versions/3.11.*/bin/python $(PYTHON); do \
	"$$p" -c "import venv" 2>/dev/null && { echo "$$p"; break; }; done)

.venv-lowest/.ready: pyproject.toml alias/pyproject.toml
	"$(LOWEST_PYTHON)" -m venv --clear .venv-lowest
	.venv-lowest/bin/python -m pip install --quiet --disable-pip-version-check uv
	.venv-lowest/bin/uv pip install --quiet --python .venv-lowest/bin/python --resolution lowest-direct \
		--editable ".[test]" --editable ./alias
	touch $@

test-lowest: .venv-lowest/.ready
	.venv-lowest/bin/python -m pytest $(PARALLEL) tests

# The documentation as a site, in site/index.html.
site: $(VENV)/.test
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

MINUTES ?= 10
fuzz: $(VENV)/.test
	cd tests && OMP_NUM_THREADS=1 ../$(BIN)/python -m fuzz --minutes $(MINUTES)

# Polygraphy lives in an environment of its own: it must never share one with the alias.
.venv-peer/.ready:
	$(PYTHON) -m venv .venv-peer
	.venv-peer/bin/python -m pip install --quiet --disable-pip-version-check polygraphy==0.53.6 onnx onnxruntime onnx-graphsurgeon
	touch $@

test-peer: $(VENV)/.test .venv-peer/.ready
	BIOPSY_PEER=$(CURDIR)/.venv-peer/bin/polygraphy $(BIN)/python -m pytest -m peer tests

# Ray lives in an environment of its own: it is large, and nothing else needs it.
.venv-ray/.ready: pyproject.toml
	$(PYTHON) -m venv .venv-ray
	.venv-ray/bin/python -m pip install --quiet --disable-pip-version-check --editable ".[openvino,releases,ray]" pytest hypothesis linkify-it-py
	touch $@

test-ray: .venv-ray/.ready
	.venv-ray/bin/python -m pytest -m "ray and not slow" tests/session tests/cli tests/hunting tests/security tests/test_ray_executor.py

# PyTorch lives in an environment of its own: it is large. TORCH says which: the smallest build for a processor is best.
TORCH ?= torch==2.13.0
.venv-torch/.ready: pyproject.toml
	$(PYTHON) -m venv .venv-torch
	.venv-torch/bin/python -m pip install --quiet --disable-pip-version-check "$(TORCH)"
	.venv-torch/bin/python -m pip install --quiet --disable-pip-version-check --editable ".[openvino,surgeon,report,torch]" \
		pytest hypothesis
	touch $@

test-torch: .venv-torch/.ready
	.venv-torch/bin/python -m pytest -m torch tests/pytorch

# Writes benchmarks/RESULTS.md; about 30 minutes, of which most is waiting for the peer.
bench: bytecode .venv-peer/.ready .venv-ray/.ready
	$(BIN)/python -m benchmarks.side_by_side --peer .venv-peer --ray .venv-ray

bench-quick: bytecode .venv-peer/.ready
	$(BIN)/python -m benchmarks.side_by_side --peer .venv-peer --quick

clean:
	rm -rf $(VENV) .venv-lowest .venv-peer .venv-ray .venv-torch biopsy-demo build site .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
