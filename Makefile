# Two commands do everything on a machine with Python and make:
#   make quickstart    install, then run the main job (writes runs/quickstart/)
#   make test          install, then lint, type check and run every test
PYTHON ?= python3
BIN = .venv/bin
INSTALLED = .venv/.installed

.PHONY: quickstart test lint docs benchmarks clean

quickstart: $(INSTALLED)
	$(BIN)/linearizer quickstart

test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(INSTALLED)
	$(BIN)/pdoc --docformat google -o docs/site linearizer

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

clean:
	rm -rf .venv docs/site
