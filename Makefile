# The environment is .venv in this folder. `make lab` and `make test` set up what is missing.
.DEFAULT_GOAL := help
.PHONY: help setup env lab open test lint imports format slow proof gpu inspect triton36 notebooks artifacts clean

EXTRAS ?= dev
PY := .venv/bin/python
# Processes that share the default tests, each on one thread; WORKERS=0 runs them one after the other.
WORKERS ?= 2
# JupyterLab refuses to run as root (in a container, say) unless told.
ROOT_FLAG := $(shell [ "$$(id -u)" = 0 ] && echo --allow-root)

help:  ## this list
	@sed -n 's/^\([a-z0-9]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 20

setup:  ## the environment and the default model, then the doctor
	@.ci/setup.sh $(EXTRAS)

env:
	@SKIP_DOCTOR=1 .ci/setup.sh $(EXTRAS)

lab: setup  ## the course in JupyterLab (without a screen: make lab ARGS=--no-browser)
	@$(MAKE) --no-print-directory open

open:
	$(PY) -m jupyterlab $(ROOT_FLAG) --LabApp.default_url=/lab/tree/notebooks/00_start_here.ipynb $(ARGS)

test: lint  ## lint, the default tests, every notebook
	OMP_NUM_THREADS=1 $(PY) -m pytest -n $(WORKERS) --dist worksteal
	$(PY) -m pytest --nbval-lax --nbval-current-env --nbval-cell-timeout=120 -p no:xdist notebooks/

lint: env  ## ruff, mypy, the import rules
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	@$(MAKE) --no-print-directory imports

imports:
	$(PY) .venv/bin/lint-imports

format:  ## rewrite files in the one format
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

slow: env  ## the slow tests
	$(PY) -m pytest -m slow

proof: env  ## the long demonstrations, with one table at the end
	$(PY) -m pytest -m proof

gpu:  ## all measurements that need a GPU, at most 8 minutes, into build/gpu (ARGS=--quick)
	$(if $(wildcard $(PY)),$(PY),python3) -m workbench bench gpu --out build/gpu $(ARGS)

inspect: env triton36  ## registers, spills, matrix instructions of each Triton kernel, on both Tritons (ARGS=--check)
	$(PY) -m kernels.inspect $(ARGS)
	.triton36/bin/python -m kernels.inspect $(ARGS)

triton36: env  ## the oldest Triton that the kernels run on, in .triton36
	@.ci/triton36.sh

notebooks: env  ## run every notebook and write its outputs (one only, or a look: make notebooks ARGS="03 --check")
	$(PY) -m workbench.lab.write $(ARGS)

artifacts: env  ## the slow results that notebooks show, made here and kept (minutes; it goes on where it was stopped)
	$(PY) -m workbench.lab.quantized_models

clean:  ## remove the environment and all caches (models stay)
	rm -rf .venv .triton36 build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find workbench kernels tests notebooks -name __pycache__ -o -name .ipynb_checkpoints | xargs rm -rf
