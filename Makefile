# Two commands do everything on a fresh machine: make sweep, make test. Each sets up its own .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
REPORTS := seed-table ladder suite suite-chained short drawn map

.PHONY: sweep test test-results test-gpu verify verify-cpu wheel wheel-test release dsl-range operators vllm lint types notebooks pages headline data chapters reports docs clean

# The main job: the seed sweep, on a Hopper GPU if there is one, otherwise replayed from the recorded measurements.
sweep: $(VENV)/.ready
	$(BIN)/hopper-gemm sweep sweeps/seed-table.toml

# Everything: the style, the types, and all tests, recorded results last; those on a GPU skip themselves where there is none.
test: lint types $(VENV)/.ready
	$(MAKE) test-gpu
	$(BIN)/pytest -n auto --dist worksteal -m "not gpu and not results"
	$(MAKE) test-results

# Whether all recorded rows read, pages, pictures and the index are what the rows give, and every notebook runs.
test-results: $(VENV)/.ready
	$(BIN)/pytest -n auto --dist worksteal -m results tests

# Tests on Hopper GPUs, a worker for each GPU; their kernels are compiled first, on all cores.
test-gpu: $(VENV)/.ready
	$(BIN)/pytest -n auto --dist worksteal -m gpu tests/gpu

# Never wrong, never stuck: drawn pairs and every kind of kernel under load, on the GPU; both go on where they stopped.
# Options: .venv/bin/python -m tests.verify --help.
verify: $(VENV)/.ready
	$(BIN)/python -m tests.verify --report docs/verification.md
	$(BIN)/python -m tests.verify --batch-invariant

# The same of the protocols, in every order of events, and of runs that are damaged and killed; needs no GPU.
verify-cpu: $(VENV)/.ready
	$(BIN)/python -m tests.tune.run.verify
	$(BIN)/python -m tests.verify --cpu --report docs/verification.md

# Build the wheel with machine code, into dist: of PARTS of the menu, by default bf16-kk.
wheel: $(VENV)/.ready
	rm -f dist/*.whl
	$(BIN)/python .ci/machine-code $(PARTS)
	$(BIN)/python -m pip wheel --quiet --no-deps -w dist .

# Build the wheel and use it in clean environments, with pip and with uv, on each Python that starts here.
wheel-test:
	$(PYTHON) .ci/wheel

# Compile with both ends of the ranges of the DSL and of TVM-FFI, in new environments: a minute.
dsl-range:
	$(PYTHON) .ci/dsl-range

# The provider of CUTLASS Operators beside that package, whose files go to build/operators; needs no GPU.
operators: $(VENV)/.ready
	$(BIN)/python -m pip install --quiet --no-deps --upgrade --target build/operators -c constraints.txt nvidia-cutlass-operators
	PYTHONPATH=build/operators:. $(BIN)/pytest tests/test_operators.py

# The plug-in of vLLM in a running engine on a CPU, in an environment of its own, build/vllm: some minutes and 4 GB.
vllm:
	$(PYTHON) examples/vllm-plugin/check.py build/vllm

# The release: every check, the wheel with the machine code of the whole menu (some minutes of all cores), its size held to
# 30 MB, and that wheel used on each Python that starts here; the table names those that are untested.
release: CHECKS := test dsl-range
release: PARTS := menu
release:
	$(MAKE) $(CHECKS)
	$(MAKE) wheel PARTS="$(PARTS)"
	$(PYTHON) .ci/wheel dist/*.whl

lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.ready
	$(BIN)/mypy

# Write pages and pictures of results, their index and the generated parts of the docs anew. Where the kernel's sources
# changed, the kernels behind marked figures are compiled first, for minutes; no GPU is needed.
pages: $(VENV)/.ready
	$(BIN)/python -m docs.generate

# List what README and the pages claim, whose machine code was measured, and the command that measures it; on a Hopper GPU
# run the commands of what is not of this version, and go on where the last run stopped. ARGS=--list only lists;
# ONLY="a claim's name" measures that one anew, whatever was measured before.
headline: $(VENV)/.ready
	$(BIN)/python -m docs.generate.headline $(if $(ONLY),--only "$(ONLY)") $(ARGS)

# Every recorded row as one Parquet file: build/rows.parquet. Needs pyarrow.
data: $(VENV)/.ready
	$(BIN)/python -m docs.generate.data

# Build the code of the chapters of docs/learn; on a Hopper GPU check and time it. Options: .venv/bin/python -m
# docs.generate.chapters --help.
chapters: $(VENV)/.ready
	$(BIN)/python -m docs.generate.chapters

# One interactive HTML file each for each of the main studies: build/reports/NAME.html.
reports: $(VENV)/.ready
	mkdir -p build/reports
	for name in $(REPORTS); do \
	    $(BIN)/hopper-gemm report results/h200/$$name --out build/reports/$$name.html || exit 1; \
	done

# The documentation as a site, strictly: build/site/index.html. A warning ends it, such as one of a link that leads nowhere
# or of an argument that its function has not. (With --quiet mkdocs would count no warnings.)
docs: $(VENV)/.ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

# Execute every notebook from its paired script, in place.
notebooks: $(VENV)/.ready
	PYTHONWARNINGS="ignore:IProgress not found" $(BIN)/jupytext --to ipynb --execute notebooks/[0-9]*_*.py

$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) results/local
