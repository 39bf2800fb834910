# Needs Python 3.11+, Java 17+ and make; everything else is fetched by `setup`, which the other
# verbs run first and which costs nothing once done. Kept to what GNU make 3.81 understands.

PYTHON ?= python3
BIN := .venv/bin

.DEFAULT_GOAL := help
.PHONY: help setup check format lock test demo bench bench-writer torture clean

# Somebody else's virtual environment or module path must not reach ours.
unexport PYTHONPATH PYTHONHOME VIRTUAL_ENV

help:  ## list the verbs
	@echo "usage: make <verb>   (PYTHON=python3.12 chooses the interpreter)"
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s  %s\n", $$1, $$2 }' Makefile

setup:  ## make .venv from requirements.lock and fetch Spark's jars; nothing to do the second time
	@$(PYTHON) scripts/setup.py

check: setup  ## formatting, lint, types, import layers, dependencies, known vulnerabilities, bill of materials
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/deptry .
	$(BIN)/python scripts/audit.py
	$(BIN)/python scripts/sbom.py

format: setup  ## format the code and mend what the linter can mend
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

# A wheel directory of this machine must decide nothing here and be named nowhere in the file.
lock: setup  ## write requirements.lock from pyproject.toml; ARGS=--upgrade takes newer versions
	unset UV_FIND_LINKS PIP_FIND_LINKS; \
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-header \
	    --no-emit-find-links --all-extras --group dev --python-version 3.11 $(ARGS) \
	    pyproject.toml -o requirements.lock

test: setup  ## run the tests, three files at a time; ARGS="-k name" chooses some, ARGS="-n 0 -s" shows output
	$(BIN)/pytest -n 3 --dist loadgroup -m "not torture" $(ARGS)

demo: setup  ## rows from a producer to a table and its readers, on temporary data
	$(BIN)/python examples/demo.py

bench: setup  ## run the benchmarks
	@set -e; for benchmark in benchmarks/*.py; do \
	    name=$$(basename $$benchmark .py); \
	    echo "$(BIN)/python -m benchmarks.$$name"; $(BIN)/python -m "benchmarks.$$name"; \
	done

bench-writer: setup  ## run the benchmarks of the writer; takes minutes and 3 GiB of temporary files
	$(BIN)/python -m benchmarks.writer
	$(BIN)/python -m benchmarks.offset_commits
	$(BIN)/python -m benchmarks.verify

torture: setup  ## run the long tests, those marked torture; takes hours
	$(BIN)/pytest -m torture --timeout 0 $(ARGS)

clean:  ## remove the environment and whatever was built here; the per-user caches stay
	rm -rf .venv .build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
