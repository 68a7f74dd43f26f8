# One way to run anything. `make demo` and `make test` need python3 (with venv) and make, nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
BENCH ?= --list

# One BLAS / OpenMP thread per process: two spinning threads on a busy machine are slower than one.
export OMP_NUM_THREADS ?= 1
export OPENBLAS_NUM_THREADS ?= 1
export MKL_NUM_THREADS ?= 1
# Data sets that lie beside a checkout are found; elsewhere the tests that need them skip.
ifneq ($(wildcard ../shared/data),)
export SKDML_DATA ?= $(abspath ../shared/data)
endif

.PHONY: help install demo test test-slow lint format doc bench clean

help:
	@echo "make demo       fit every estimator on small data; the report is skdml-demo/index.html"
	@echo "make test       the test suite (make test-slow: the slow part too)"
	@echo "make lint       ruff and mypy (make format: let ruff fix what it can)"
	@echo "make doc        the documentation, in doc/_build/html"
	@echo "make bench      a benchmark: make bench BENCH=gmml"

install: $(VENV)/.installed

# The stamp is made last, so an interrupted install is done again.
$(VENV)/.installed: pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[all,test]"
	@touch $@

$(VENV)/.installed-%: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[$*]"
	@touch $@

demo: install
	$(BIN)/python -m skdml demo

test: install
	$(BIN)/python -m pytest -n 2

test-slow: install
	$(BIN)/python -m pytest -n 2 -m "slow or not slow" --timeout 1800

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

doc: $(VENV)/.installed-doc
	$(BIN)/python -m sphinx -W --keep-going -b html doc doc/_build/html

bench: $(VENV)/.installed-bench
	$(BIN)/python -m benchmarks $(BENCH)

clean:
	rm -rf $(VENV) doc/_build doc/auto_examples skdml-demo
