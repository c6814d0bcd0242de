# make demo     install, run a small sweep and one tuning run, print what was measured
# make test     install, lint, run the tests (those of a cluster where `tests/slurm/cluster up` has started one)
# make test-gpu what only a CUDA device can show
# make dali     install NVIDIA DALI too (loader=dali)
# make lint     ruff and basedpyright alone
# make lock     pin all dependencies of requirements.txt again

PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
UV := uv==0.13.8

.PHONY: demo test test-gpu dali lint lock install
install: .venv/installed

demo: install
	$(BIN)/python train_vision.py -m precision=fp32,bf16 gpus=1,2 layout=nhwc batch_size=16
	$(BIN)/python tune_llm.py method=qlora template=grammar max_steps=100

test: lint
	$(BIN)/python -m pytest -m "not gpu and not slurm"
	$(BIN)/python -m pytest -m slurm -n 0 -rs

test-gpu: install
	$(BIN)/python -m pytest -n 0 -m gpu

dali: install
	$(BIN)/python -m uv pip install -q -r requirements-dali.txt -c requirements.lock \
	  || $(BIN)/python -m pip install -q -r requirements-dali.txt -c requirements.lock

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright

lock: install
	$(BIN)/python -m uv pip compile -q --universal --python-version 3.11 --custom-compile-command "make lock" \
	  requirements.txt -o requirements.lock

# uv installs several times faster than pip; where it cannot be had, pip does the same
.venv/installed: requirements.lock
	$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), "Python 3.11 or newer is needed (make PYTHON=...)"'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q $(UV) && $(BIN)/python -m uv pip install -q -r requirements.lock \
	  || $(BIN)/python -m pip install -q -r requirements.lock
	touch $@
