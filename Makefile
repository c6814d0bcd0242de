# make demo     install, and `multicard demo`: run a small sweep, say what to run, and write a page about the runs
# make example  measure the sweeps of docs/example, and make its report and the pictures of the pages (ten minutes on 2
#               quiet cores, and a Chromium)
# make test     install, lint, run the tests that start no processes and a chosen few that do (CONTRIBUTING.md has the tiers)
# make test-all `make test`, and then all other tests (those of a cluster where `tests/slurm/cluster up` has started one)
# make test-gpu what only a CUDA device can show
# make wheel    build a wheel into dist/, install it into an empty environment, and run `multicard demo` there
# make experiments  every table and figure of the papers, shrunk (scale=smoke), one after the other, and a report of them
#               (a nightly job: about twenty minutes on 2 quiet cores)
# make faults   every fault and mutant of tests/faults, and all other nightly tests (after `tests/slurm/cluster up`; some faults need root)
# make dali     install NVIDIA DALI too (loader=dali)
# make lint     ruff, basedpyright and the layers of imports alone
# make lock     pin the dependencies of requirements.txt and requirements-dev.txt again

PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
UV := uv==0.13.8

.PHONY: demo example test test-all test-gpu wheel experiments faults dali lint lock install quick-tests
install: .venv/installed

demo: install
	$(BIN)/python -m multicard demo

example: install
	$(BIN)/python train_vision.py -m name=first layout=nchw,nhwc gpus=1,2 batch_size=16 epochs=3 model.width=0.5 dataset.image_size=48
	$(BIN)/python train_vision.py -m name=example layout=nchw,nhwc gpus=1,2 precision=fp32,bf16 repeat=2 batch_size=16 epochs=3 model.width=0.5 dataset.image_size=48
	$(BIN)/python -m docs.pictures multirun

# Lint runs beside the tests: alone, it would leave a core idle
test: install
	$(MAKE) --no-print-directory -j 2 lint quick-tests

quick-tests: install
	$(BIN)/python -m pytest -m "core or not (process or slow or gpu or slurm)"

test-all: test
	$(BIN)/python -m pytest -n 4 -m "(process or slow) and not (core or gpu or slurm or nightly)"
	$(BIN)/python -m pytest -m "slurm and not nightly" -n 0 -rs

test-gpu: install
	$(BIN)/python -m pytest -n 0 -m gpu

# uv takes what the environment beside has from its cache
wheel: install
	rm -rf dist
	$(BIN)/python -m pip wheel -q --no-deps --no-build-isolation -w dist .
	$(PYTHON) -m venv --without-pip --clear dist/venv
	$(BIN)/python -m uv pip install -q --python dist/venv/bin/python dist/multicard-*.whl -c requirements.lock \
	  || $(BIN)/python -m pip --python dist/venv/bin/python install -q dist/multicard-*.whl -c requirements.lock
	cd dist && venv/bin/multicard demo

experiments: dali
	@failed=; \
	run() { \
	  begun=$$(date +%s); \
	  $(BIN)/python $$1 experiment=all name=smoke_$$2 scale=smoke rerun=true tracker.mode=disabled || failed="$$failed $$2"; \
	  echo "== $$2: $$(($$(date +%s) - begun)) s"; \
	}; \
	run train_vision.py vision; run tune_llm.py tuning; \
	$(BIN)/python -m analysis report multirun/smoke_vision multirun/smoke_tuning --out multirun/experiments.html \
	  || failed="$$failed report"; \
	test -z "$$failed" || { echo "failed:$$failed" >&2; exit 1; }

faults: install
	$(BIN)/python -m pytest -m "faults or nightly" -n 0 -rs

dali: install
	$(BIN)/python -m uv pip install -q -r requirements-dali.txt -c requirements.lock \
	  || $(BIN)/python -m pip install -q -r requirements-dali.txt -c requirements.lock

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m tools.reading
	$(BIN)/python -m tools.prose

lock: install
	$(BIN)/python -m uv pip compile -q --universal --python-version 3.11 --custom-compile-command "make lock" \
	  requirements.txt requirements-dev.txt -o requirements.lock

# uv installs several times faster than pip; where it cannot be had, pip does the same. Each process of a sweep imports
# torch: without bytecode that takes seconds
.venv/installed: requirements.lock pyproject.toml
	$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), "Python 3.11 or newer is needed (make PYTHON=...)"'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q $(UV) && $(BIN)/python -m uv pip install -q --compile-bytecode -r requirements.lock \
	  || $(BIN)/python -m pip install -q -r requirements.lock
	$(BIN)/python -m pip install -q --no-deps --no-build-isolation -e .
	touch $@
