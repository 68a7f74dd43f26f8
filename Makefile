# One way to run anything. `make demo` and `make test` need python3 (with venv) and make, nothing else.
PYTHON ?= python3
PYTHON_NEWEST ?= python3.13
VENV := .venv
# Windows, where make needs a shell such as that of Git, has the commands elsewhere.
SCRIPTS := $(if $(filter Windows_NT,$(OS)),Scripts,bin)
BIN := $(VENV)/$(SCRIPTS)
BENCH ?= --list

# One BLAS / OpenMP thread per process: two spinning threads on a busy machine are slower than one.
export OMP_NUM_THREADS ?= 1
export OPENBLAS_NUM_THREADS ?= 1
export MKL_NUM_THREADS ?= 1
# Data sets that lie beside a checkout are found; elsewhere the tests that need them skip.
ifneq ($(wildcard ../shared/data),)
export SKDML_DATA ?= $(abspath ../shared/data)
endif

.PHONY: help install demo test test-slow test-mutations test-site test-numerics test-oldest test-newest
.PHONY: fuzz kill-matrix lint format doc bench clean

help:
	@echo "make demo       fit every estimator on small data; the report is skdml-demo/index.html"
	@echo "make test       the test suite (test-slow: the slow part too)"
	@echo "make test-mutations  wrong changes of the code, one by one: the tests must notice each"
	@echo "make test-numerics  the numerical tests under the BLAS kernels of several processors"
	@echo "make kill-matrix  processes of fits killed and interrupted at random moments"
	@echo "make fuzz       valid and wrong inputs at random: make fuzz FUZZ=\"--inputs 20000 --seed 3\""
	@echo "make test-oldest    the core on the oldest versions (test-newest: all on the newest)"
	@echo "make test-site  the documentation and the demo's report in a browser, where there is one"
	@echo "make lint       ruff and mypy (make format: let ruff fix what it can)"
	@echo "make doc        the documentation, in doc/_build/html"
	@echo "make bench      a benchmark: make bench BENCH=gmml"

install: $(VENV)/.installed

# The stamp is made last, so an interrupted install is done again.
$(VENV)/.installed: pyproject.toml constraints.txt
	@echo "Setting up $(VENV), once: a virtual environment, and about 80 packages, torch among them."
	@echo "That is some hundred megabytes and takes minutes. pip says what it is at:"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --progress-bar off --disable-pip-version-check \
	    -c constraints.txt -e ".[all,test]"
	@echo "$(VENV) is set up."
	@touch $@

$(VENV)/.installed-%: $(VENV)/.installed
	@echo "Adding what \"$*\" needs to $(VENV), once: a minute or two."
	$(BIN)/python -m pip install --progress-bar off --disable-pip-version-check -c constraints.txt -e ".[$*]"
	@touch $@

demo: install
	@echo "Fitting every estimator on small data, which takes less than a minute:"
	$(BIN)/python -m skdml demo

# The tests of a file share their models, ranks and clusters, so they run in one process; files
# in the order of the folders, as the small ones of the documentation come last.
PYTEST := -m pytest -n 2 --dist loadfile --no-loadscope-reorder

test: install
	$(BIN)/python $(PYTEST)

test-slow: install
	$(BIN)/python $(PYTEST) -m "slow or not slow" --timeout 1800

# Two at a time; MUTATIONS="linear plot" tries those of files with one of these words.
test-mutations: install
	$(BIN)/python tests/mutations/run.py $(MUTATIONS)

# Builds the site and opens it in Chromium, from the system packages chromium and chromium-driver.
test-site: doc
	$(BIN)/python -m pytest -m slow tests/doc -rs

# The numerical tests as on other processors, with one and two threads; half an hour.
test-numerics: install
	$(BIN)/python tests/numerics.py

# 100 kills and 50 interrupts of fits; an hour. KILLS="--kills 10 --modes dask" for fewer.
kill-matrix: install
	$(BIN)/python -m tests.kills.run $(KILLS)

# Two processes; FUZZ="--case 1234" runs one case and shows it.
fuzz: install
	$(BIN)/python -m tests.fuzz $(FUZZ)

# The core alone, on the oldest versions that pyproject.toml admits.
test-oldest: .venv-oldest/.installed
	.venv-oldest/$(SCRIPTS)/python $(PYTEST) tests --ignore=tests/test_benchmarks.py

.venv-oldest/.installed: pyproject.toml
	@echo "Setting up .venv-oldest, once: some minutes."
	@test -x .venv-oldest/$(SCRIPTS)/python || $(PYTHON) -m venv .venv-oldest
	.venv-oldest/$(SCRIPTS)/python -m pip install --progress-bar off --disable-pip-version-check \
	    numpy==1.26.4 scipy==1.12.0 scikit-learn==1.6.1 joblib==1.4.2 threadpoolctl==3.1.0 \
	    tqdm==4.60.0 pytest pytest-xdist pytest-timeout -e .
	@touch $@

# All of it on the newest releases, without constraints.txt; torch brings gigabytes of CUDA packages.
test-newest:
	@echo "Setting up .venv-newest, or bringing it up to date: some minutes."
	@test -x .venv-newest/$(SCRIPTS)/python || $(PYTHON_NEWEST) -m venv .venv-newest
	.venv-newest/$(SCRIPTS)/python -m pip install --progress-bar off --disable-pip-version-check \
	    --upgrade --upgrade-strategy eager -e ".[all,test]"
	.venv-newest/$(SCRIPTS)/python $(PYTEST)

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_typing.py -k have_types

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

doc: $(VENV)/.installed-doc
	$(BIN)/python -m sphinx -W --keep-going -b html doc doc/_build/html

bench: $(VENV)/.installed-bench
	$(BIN)/python -m benchmarks $(BENCH)

clean:
	rm -rf $(VENV) .venv-oldest .venv-newest doc/_build doc/auto_examples skdml-demo
