# Two commands do everything on a machine with Python and make:
#   make quickstart    install, then run the main job (writes runs/quickstart/)
#   make test          install, then lint, type check and run every test
# and `make studio` opens the studio, with the shipped models.
PYTHON ?= python3
BIN = .venv/bin
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check
# Files with other hashes than the lock's are refused. torch is not in it: each index builds its own.
LOCKED = $(INSTALL) --require-hashes --no-deps

.PHONY: quickstart studio test lint lock docs browser benchmarks reproduce clean
AXE = 4.14.0

quickstart: .venv/.installed
	$(BIN)/linearizer quickstart

studio: .venv/.installed
	$(BIN)/linearizer serve --open

test: lint docs browser
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal

lint: .venv/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: .venv/.installed-dev
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "wrote docs/site/index.html"

# What the tests of the studio drive. Where CI runs as root on Debian it is installed; elsewhere these
# tests are skipped with the reason.
browser: .venv/.installed-dev
	@if [ "$$CI" = true ] && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && ! command -v chromium >/dev/null; then \
		echo "installing chromium"; { apt-get update -qq && apt-get install -y -qq chromium >/dev/null; } || true; fi
	@if command -v npm >/dev/null && [ ! -f .venv/node/node_modules/axe-core/axe.min.js ]; then \
		npm install --silent --no-save --no-audit --no-fund --prefix .venv/node axe-core@$(AXE) || true; fi

# Speed and memory; the last one writes the tables of the documents.
benchmarks: .venv/.installed-dev
	for name in memory_depth structured_operators algebra_overhead glow_step training_loop readme_table; do \
		$(BIN)/python benchmarks/$$name.py || exit 1; done

# The paper's experiments again, training included: some hours; the same command goes on after a stop.
reproduce: .venv/.installed-dev
	$(BIN)/python -m paper all

# After a change of constraints.txt or pyproject.toml; commit locks/ with it.
lock: .venv/.installed-dev
	$(BIN)/python locks/make_locks.py

.venv/.installed: pyproject.toml constraints.txt locks/use.txt
	@echo "installing into .venv (a minute or two)"
	$(PYTHON) -m venv .venv
	$(LOCKED) -r locks/use.txt
	$(INSTALL) -c constraints.txt -e ".[studio,tensorboard]"
	touch $@

.venv/.installed-dev: .venv/.installed locks/dev.txt
	@echo "installing what the tests need into .venv"
	$(LOCKED) -r locks/dev.txt
	$(INSTALL) -c constraints.txt -e ".[dev]"
	touch $@

clean:
	rm -rf .venv docs/site
