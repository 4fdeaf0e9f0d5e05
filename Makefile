# Each target does the set-up that it needs, once; `make clean` removes it.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help demo test test-all lint docs bench gpu gpu-kernels clean

help:
	@echo "make demo    compile a ResNet-50 through torch.compile and compare it with eager"
	@echo "make test    run the tests            (PYTEST_ARGS=... is passed on)"
	@echo "make test-all  the same with what takes hours: proofs marked long, every program at independent symbolic sizes"
	@echo "make lint    ruff, mypy --strict and pyright"
	@echo "make docs    build the documentation into site/; a broken link or an undocumented public name fails"
	@echo "make bench   measure the models and write the tables"
	@echo "make gpu     check and measure everything on a GPU (OUT=folder of the results, GPU_ARGS='--resume --only matmul'); needs no network"
	@echo "make gpu-kernels  compile beforehand, without a GPU, what make gpu runs (GPU_ARGS='--gpu H100 H200')"
	@echo "make clean   remove the virtual environment and all that was built"

demo: $(VENV)/.base
	$(BIN)/python examples/demo_resnet50.py

# Two workers, because one test often waits for a compiler. They share the cores, so a thread that waits must not spin.
test: $(VENV)/.test
	OMP_WAIT_POLICY=passive $(BIN)/python -m pytest --dist=worksteal -n $(or $(TEST_WORKERS),2) $(PYTEST_ARGS)

test-all: $(VENV)/.test
	OMP_WAIT_POLICY=passive $(BIN)/python -m pytest --long --dist=worksteal -n $(or $(TEST_WORKERS),2) $(PYTEST_ARGS)

lint: $(VENV)/.test $(VENV)/.lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy -p taskmap -p tests -p benchmarks -p examples
	$(BIN)/basedpyright

docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: $(VENV)/.bench
	$(BIN)/python -m benchmarks

# Installs nothing: the machine's own Python, where there is no virtual environment, has PyTorch.
OUT ?= gpu-results
gpu:
	PYTHONPATH=. $(or $(wildcard $(BIN)/python),$(PYTHON)) -m $(GPU_STAND_IN) benchmarks.gpu --out "$(OUT)" $(GPU_ARGS)

# On a machine without a GPU: what `make gpu` compiles, into a folder that travels with the checkout.
gpu-kernels: $(VENV)/.cuda
	PYTHONPATH=. $(BIN)/python -m benchmarks.gpu.prebuild $(GPU_ARGS)

# One stamp for each set of extras. It is older than its inputs when they change, and absent when an install was cut off.
$(VENV)/.%: pyproject.toml setup.py requirements/dev.txt scripts/setup.sh
	PYTHON="$(PYTHON)" VENV="$(VENV)" scripts/setup.sh $*
	@touch $@

clean:
	rm -rf $(VENV) site .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
