# Every target sets up what it needs in .venv first; nothing outside this directory is touched.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: run test check simulate chaos interop bench demo docs clean setup

setup: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Culver needs Python 3.11 or newer; call make PYTHON=...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

run: setup ## Serve on 127.0.0.1:9092, data in ./culver-data
	$(BIN)/culver serve

# Tests that mostly compute, and those that mostly wait for processes: the two halves run side by side.
COMPUTING := tests/unit tests/scenarios tests/simulation tests/pipelines tests/spark
test: setup ## Everything that needs only Python, Java (for Spark, and ZooKeeper, which comes with it) and PyPI
	@log=$$(mktemp); $(BIN)/python -m pytest -m 'not interop' $(COMPUTING) >$$log 2>&1 & computing=$$!; \
	$(BIN)/python -m pytest -m 'not interop' $(addprefix --ignore=,$(COMPUTING)); waiting=$$?; \
	wait $$computing; computed=$$?; cat $$log; rm -f $$log; exit $$((waiting + computed))

check: setup ## Style, types, layers, tidiness
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q tests/unit/test_tidy.py

SEEDS ?= 200
simulate: setup ## Simulated clusters under faults: SEEDS=200 of them, or SEED=17 alone with its trace
	$(BIN)/python -m culver.testing.simulation $(if $(SEED),--seed $(SEED),--seeds $(SEEDS)) $(ARGS)

chaos: setup ## Real brokers and ZooKeeper under faults: SECONDS=300 SEED=7 STORE=zookeeper or local
	$(BIN)/python -m culver.testing.chaos $(if $(SECONDS),--seconds $(SECONDS)) $(if $(SEED),--seed $(SEED)) \
		$(if $(STORE),--store $(STORE)) $(ARGS)

interop: setup ## Real Kafka, its Java tools, kcat: says what it skips and why
	$(BIN)/python -m pytest -m interop

bench: setup ## Culver and Apache Kafka on the same machine, one table
	$(BIN)/python -m bench $(ARGS)

demo: setup ## A broker, a log stream with a spike, the logs pipeline, a search; KEEP=1 leaves its files
	$(BIN)/python -m culver.cli.demo $(if $(KEEP),--keep)

docs: setup ## Write the pages that are made from the code
	$(BIN)/python -m culver.config.reference > docs/configuration.md
	cd tests/interop && PYTHONPATH=../..:.. ../../$(BIN)/python -m differential.document

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
