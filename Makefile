# Two commands do everything on a machine with Python and make:
#   make quickstart    install, then run the main job (writes runs/quickstart/)
#   make test          install, then lint, type check and run every test
PYTHON ?= python3
BIN = .venv/bin
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: quickstart test lint docs benchmarks clean

quickstart: .venv/.installed
	$(BIN)/linearizer quickstart

test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal

lint: .venv/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: .venv/.installed-dev
	$(BIN)/pdoc --docformat google -o docs/site linearizer
	@echo "wrote docs/site/index.html"

benchmarks: .venv/.installed-dev
	for name in memory_depth structured_operators glow_step training_loop readme_table; do \
		$(BIN)/python benchmarks/$$name.py || exit 1; done

.venv/.installed: pyproject.toml constraints.txt
	@echo "installing into .venv (a minute or two)"
	$(PYTHON) -m venv .venv
	$(INSTALL) -e .
	touch $@

.venv/.installed-dev: .venv/.installed
	@echo "installing what the tests need into .venv"
	$(INSTALL) -e ".[dev]"
	touch $@

clean:
	rm -rf .venv docs/site
