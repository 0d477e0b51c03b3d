# make demo  - set up and run the main job on built-in data
# make test  - the test suite;  make test-all adds the long checks
# make lint  - ruff and mypy
PYTHON ?= python3
BIN := .venv/bin

.PHONY: install demo test test-all lint format clean

install: .venv/installed

# one environment for use, tests, linters and benchmarks; made anew when what it holds has changed
.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[test,lint,benchmarks]'
	touch $@

demo: install
	$(BIN)/python -m esmc_pyro.demo

# a worker a core, and a thread a worker
test test-all: export OMP_NUM_THREADS = 1
test test-all: export OPENBLAS_NUM_THREADS = 1

test: install
	$(BIN)/python -m pytest -n auto --dist loadfile -m "not slow"

test-all: install
	$(BIN)/python -m pytest -n auto --dist loadfile

# type checkers do not follow the package-dir mapping of models/ and guides/: check a real installation
lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	rm -rf .lint build
	$(BIN)/pip install --quiet --no-deps --target .lint .
	rm -rf build
	cd .lint && ../$(BIN)/mypy --config-file ../pyproject.toml -p esmc_pyro

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv .lint build dist *.egg-info report
