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

# Three lanes side by side: tests that mostly compute, those of the faces beside the broker, and all others, which mostly wait.
COMPUTING := tests/unit tests/scenarios tests/simulation
FACES := tests/spark tests/pipelines tests/http
PYTEST := $(BIN)/python -m pytest -m 'not interop'
test: setup ## Everything that needs only Python, Java (for Spark, and ZooKeeper, which comes with it) and PyPI
	@logs=$$(mktemp -d); \
	$(PYTEST) $(COMPUTING) >$$logs/computing 2>&1 & computing=$$!; \
	$(PYTEST) $(FACES) >$$logs/faces 2>&1 & faces=$$!; \
	trap "kill $$computing $$faces; rm -rf $$logs" INT TERM; \
	$(PYTEST) $(addprefix --ignore=,$(COMPUTING) $(FACES)); others_failed=$$?; \
	wait $$computing; computing_failed=$$?; wait $$faces; faces_failed=$$?; \
	cat $$logs/computing $$logs/faces; rm -rf $$logs; \
	exit $$((computing_failed + faces_failed + others_failed))

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

interop: setup ## Real Kafka, its Java tools, kcat, Chromium: says what it skips and why; screenshots in .artifacts
	CULVER_ARTIFACTS="$${CULVER_ARTIFACTS:-$(CURDIR)/.artifacts}" $(BIN)/python -m pytest -m interop

bench: setup ## Culver and Apache Kafka on the same machine, one table
	$(BIN)/python -m bench $(ARGS)

demo: setup ## A broker, a log stream with a spike, the logs pipeline, a search; KEEP=1 leaves its files
	$(BIN)/python -m culver.cli.demo $(if $(KEEP),--keep)

docs: setup ## Write the pages that are made from the code
	$(BIN)/python -m culver.config.reference > docs/configuration.md
	cd tests/interop && PYTHONPATH=../..:.. ../../$(BIN)/python -m differential.document

clean:
	rm -rf $(VENV) .artifacts build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
