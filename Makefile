# remat's chores. Needs make, Python 3.10 or newer and pip; everything else is installed into $(VENV).
PYTHON ?= python3
VENV ?= .venv
DEMO_OUT ?= demo-out

PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help demo test lint bench plans clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(STAMP) ## Profile a U-Net training step, solve it at 60 % of its memory, check the plan and run it
	$(PY) benchmarks/demo.py --out $(DEMO_OUT)

test: $(STAMP) ## Run the tests
	$(PY) -m pytest

lint: $(STAMP) ## Check style (ruff) and types (mypy --strict)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

bench: $(STAMP) ## Run every benchmark in benchmarks/ and print its table
	@set -e; for script in benchmarks/bench_*.py; do \
		test -e "$$script" || { echo "benchmarks/ holds no bench_*.py"; exit 0; }; \
		echo "== $$script"; $(PY) "$$script"; \
	done

plans: $(STAMP) ## Make the golden plans in plans/ again
	$(PY) -m plans.regenerate

clean: ## Remove the virtual environment, caches and the demo's output
	rm -rf $(VENV) $(DEMO_OUT) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

# A failed installation leaves no stamp, so the next call tries again.
$(STAMP): setup.cfg setup.py
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
		{ echo "remat needs Python 3.10 or newer; name one with: make PYTHON=python3.12"; exit 1; }
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@
