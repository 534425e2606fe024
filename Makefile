# Everything happens in .venv, installed from hashed locks: nothing needed but Python 3.11+ and make.
PYTHON ?= python3
BIN := .venv/bin
# Processes that share the tests. Each starts its own database servers, and waits often: one more than most machines have cores.
WORKERS ?= 3
CODE = $(wildcard src tests bench)

.PHONY: install up test test-quick check bench bench-peers lock clean

install: .venv/.installed

# The stamp is written last: an installation that was interrupted is made again.
.venv/.installed: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Tallystick needs Python 3.11 or newer; choose one: make PYTHON=python3.12")'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

up: install
	$(BIN)/tally up

# The tests start hundreds of processes: each would compile Tallystick anew where bytecode is not to be written.
test: export PYTHONDONTWRITEBYTECODE =
test: install
	scripts/test-servers
	scripts/test-kafka
	$(BIN)/pytest --numprocesses $(WORKERS) --dist worksteal $(PYTEST_ARGS)

# The inner loop: laws, rules, documents, and one path through each room on the embedded server alone.
QUICK = tests/test_rooms.py tests/docs/test_decisions.py tests/docs/test_reasons.py tests/money tests/keys tests/access \
 tests/commit/test_fair_queue.py tests/ledger/test_claims.py tests/movement/test_mark.py tests/movement/test_steps.py tests/webhooks/test_record.py \
 $(shell find tests -name test_rules.py) tests/http/test_problem.py tests/http/test_openapi.py \
 tests/checkout/order/test_flow.py tests/checkout/payment/test_flow.py tests/checkout/saga/test_flow.py \
 tests/checkout/refund/request/test_flow.py tests/settlement/tick/test_flow.py tests/webhooks/test_flow.py

test-quick: install
	$(BIN)/pytest --quiet --numprocesses 2 --dist worksteal -k "not postgres15 and not mariadb" $(PYTEST_ARGS) $(QUICK)

check: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy $(CODE)

bench: install
	$(BIN)/tally bench all

# Beside DBOS and a plain SQL function (bench/README.md). BENCH_ARGS: --seconds 3 --runs 3 --json
bench-peers: .venv-peers/.installed
	.venv-peers/bin/python -m bench.peers $(BENCH_ARGS)

# Both locks: the peers' has what runs, ours the build backend. Their common packages have the same versions.
.venv-peers/.installed: requirements.lock requirements-peers.lock pyproject.toml
	$(PYTHON) -m venv .venv-peers
	.venv-peers/bin/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock -r requirements-peers.lock
	.venv-peers/bin/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

# One lock for every Python from 3.11 on; the resolver is pinned, so that only the packages move.
LOCK = .venv-lock/bin/uv pip compile --quiet --upgrade --universal --python-version 3.11 \
	--generate-hashes --no-emit-index-url --no-header pyproject.toml
lock:
	$(PYTHON) -m venv .venv-lock
	.venv-lock/bin/pip install --quiet --disable-pip-version-check uv==0.13.7
	$(LOCK) --extra mysql --extra kafka --extra dev --output-file requirements.lock
	$(LOCK) --extra peers --constraint requirements.lock --output-file requirements-peers.lock
	@! grep -nE '://|file:|(^|[ =])/' requirements.lock requirements-peers.lock || { echo 'A lock names a host or a path.'; exit 1; }

# Leaves .tally alone: it may hold somebody's data.
clean:
	rm -rf .venv .venv-lock .venv-peers .kafka build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
