PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP := $(BIN)/python -m pip install -c constraints.txt

.DEFAULT_GOAL := help
.PHONY: help env lint test zoo fuzz bench bench-digits demo docs docs-plots docs-serve clean

help:  ## Show this help
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

env: $(STAMP)  ## Create .venv with everything needed for development

# torch goes in first, by its exact version: asked for loosely, it brings the CUDA packages.
# The model zoos are installed without their dependencies for the same reason.
$(STAMP): setup.cfg constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) torch==2.13.0
	$(PIP) -e '.[dev,onnx,plots,lightning,docs]'
	$(PIP) requests
	$(PIP) --no-deps torchvision pytorchcv torch-pruning
	touch $@

lint: $(STAMP)  ## Run ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/mypy

test: lint  ## Run ruff, mypy and the test suite
	$(BIN)/python -m pytest --timeout 600 -n auto --dist worksteal

$(VENV)/.zoo: $(STAMP)
	$(PIP) transformers
	$(PIP) --no-deps timm segmentation-models-pytorch
	touch $@

zoo: $(VENV)/.zoo  ## Run over the model zoos (long)
	$(BIN)/python benchmarks/zoo.py

fuzz: $(STAMP)  ## Run the randomized tests (long)
	$(BIN)/python -m pytest -m fuzz

bench: $(STAMP)  ## Measure times: analysis, export, training steps, slim nets, budgets of latency (long; a quiet machine)
	$(BIN)/python benchmarks/analysis_time.py
	$(BIN)/python benchmarks/export_time.py
	$(BIN)/python benchmarks/step_time.py
	$(BIN)/python benchmarks/follow.py
	$(BIN)/python benchmarks/scaling.py
	$(BIN)/python benchmarks/slim_time.py
	$(BIN)/python benchmarks/malloc_time.py
	$(BIN)/python benchmarks/latency_budget.py

bench-digits: $(STAMP)  ## Compare all methods and Torch-Pruning on handwriting (less than ten minutes on two cores)
	$(BIN)/fxprune compare benchmarks/compare_digits.toml --jobs 2 --out benchmarks/results/compare_digits

demo: $(STAMP)  ## Cut and prune a residual net on real handwriting (a minute or two)
	$(BIN)/fxprune demo

docs: $(STAMP)  ## Build the documentation into site/
	$(BIN)/python docs/generated.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "site/index.html"

docs-plots: $(STAMP)  ## Draw the figures of the documentation anew
	$(BIN)/python docs/plots.py

docs-serve: $(STAMP)  ## Show the documentation while you write
	$(BIN)/mkdocs serve

clean:  ## Remove .venv, caches and build output
	rm -rf $(VENV) build dist site *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
