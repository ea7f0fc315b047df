# From a bare clone with Python 3.11 or newer and pip:
#   make run       learn 90 glyphs in five steps, with and without Weight Aligning, and compare
#   make test      check the code and run all tests
#   make coverage  run all tests and print line and branch coverage
#   make matrix    build the package and test it with every Python found, and with the oldest packages promised;
#                  ONLY="core 3.12" runs some of it (see tools/matrix.py)
#   make torture   interrupt every command at every change of a file: by SIGKILL, and by errors of the system (hours);
#                  OPTIONS="--every 61" tries a sample
#   make fuzz      give 200,000 damaged and hostile inputs to every reader, and count what they do (20 minutes);
#                  OPTIONS="--seconds 60" or OPTIONS="--only recipes --inputs 5000" for fewer
#   make mutants   change one thing at a time in the modules that compute figures, and see whether tests fail (half an hour);
#                  OPTIONS="--every 20" or OPTIONS="--only learn/ridge.py" for fewer
#   make bench     measure it, in ratios of one run
#   make lock      write requirements.lock, with the hashes of all packages
#   make audit     look for known vulnerabilities in them (asks the Python package index), and watch that none contacts its makers
#   make readme    run the README's commands in order, and print how long each takes
#   make results   write docs/results.md from the runs in results/
#   make docs      build the documentation site in site/; open site/index.html
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check -q

.PHONY: run test torture fuzz mutants coverage matrix figures check format bench lock audit readme results docs clean

run: $(VENV)/.core
	$(BIN)/equipoise compare glyphs --methods ce+kd,wa --seeds 0 --launcher processes --out runs/demo

# Three processes for two cores: tests often wait for processes that they started.
test: check
	$(BIN)/python -m pytest -n 3 --dist worksteal

torture: $(VENV)/.dev
	$(BIN)/python -m tests.faults.torture --lanes 2 $(OPTIONS)

fuzz: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzz $(OPTIONS)

mutants: $(VENV)/.dev
	$(BIN)/python tools/mutants.py $(OPTIONS)

coverage: $(VENV)/.dev
	$(BIN)/python -m pytest -n 2 --dist worksteal --cov --cov-report=term
	@$(BIN)/coverage json -q -o - | $(BIN)/python -c 'import json, sys; total = json.load(sys.stdin)["totals"]; \
	  print("lines {:.1f} %, branches {:.1f} %".format(total["percent_statements_covered"], total["percent_branches_covered"]))'

matrix: $(VENV)/.dev
	$(BIN)/python tools/matrix.py $(ONLY)

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.dev
	$(BIN)/python benchmarks/bench.py

figures: $(VENV)/.dev
	$(BIN)/python tools/check_figures.py

# Hashes and `-e .` exclude each other in pip, so set-up uses constraints.txt, and only continuous integration the lock file.
lock: $(VENV)/.audit
	$(BIN)/uv pip compile -q --universal --python-version 3.11 --all-extras --generate-hashes -c constraints.txt \
	  --no-header --no-annotate --no-emit-index-url -o requirements.lock pyproject.toml

audit: $(VENV)/.audit
	$(BIN)/pip-audit --disable-pip --require-hashes -r requirements.lock
	EQUIPOISE_WATCH=1 $(BIN)/python -m pytest tests/test_telemetry.py

readme:
	$(PYTHON) tools/run_readme.py $(OPTIONS)

results: $(VENV)/.dev
	$(BIN)/python results/render.py

docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 OMP_NUM_THREADS=1 $(BIN)/python -m mkdocs build --quiet --strict
	@echo "Built the site: open site/index.html"

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage .coverage.*

# One stamp per set of packages: a second call installs nothing; when the requirements change, they are installed again.
$(VENV)/.core: pyproject.toml constraints.txt src/equipoise/version.py
	@echo "Setting up $(VENV) (once; PyTorch is large, this takes a minute or two)…"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "equipoise needs Python 3.11 or newer: run make with PYTHON=python3.11")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) install -c constraints.txt -e '.[report,pretrained,serve]'
	@touch $@

$(VENV)/.dev: $(VENV)/.core
	@$(PIP) install -c constraints.txt -e '.[dev]'
	@$(BROWSER)
	@touch $@

$(VENV)/.audit: $(VENV)/.dev
	@$(PIP) install -c constraints.txt uv pip-audit
	@touch $@

$(VENV)/.docs: $(VENV)/.core
	@$(PIP) install -c constraints.txt -e '.[docs]'
	@touch $@

# Tests open the reports in Chromium. It is installed where that is allowed; otherwise those tests are skipped.
define BROWSER
command -v chromium >/dev/null || ! command -v apt-get >/dev/null || test "$$(id -u)" != 0 \
  || { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium; } \
  >/dev/null 2>&1 || true
endef
