# Two commands: `make compare` runs the lab, `make test` proves it. Each sets up .venv first if it is missing.
PYTHON ?= .venv/bin/python

.PHONY: compare quick test test-full mutants lint readme clean

compare: .venv/ready
	$(PYTHON) compare.py $(ARGS)

quick: .venv/ready
	$(PYTHON) compare.py --quick $(ARGS)

test: .venv/ready
	$(PYTHON) -m pytest $(ARGS)

test-full: .venv/ready
	$(PYTHON) -m pytest -m "" $(ARGS)

mutants: .venv/ready
	$(PYTHON) -m tests.gallery $(ARGS)

lint: .venv/ready
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .

readme: .venv/ready
	$(PYTHON) -m speclab.readme

.venv/ready: requirements.txt
	@if [ "$(PYTHON)" = .venv/bin/python ]; then \
		python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
			|| { echo "error: Python 3.11 or newer is needed, this is $$(python3 --version); install one"; exit 3; }; \
		python3 -m venv .venv \
			|| { echo "error: no venv module; on Debian or Ubuntu: apt install python3-venv"; exit 3; }; \
		.venv/bin/python -m pip install --quiet --disable-pip-version-check -r requirements.txt; \
	fi
	@mkdir -p .venv && touch .venv/ready

clean:
	rm -rf .venv build .pytest_cache .ruff_cache .hypothesis
