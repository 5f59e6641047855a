# The commands of this checkout. `make demo` and `make test` need nothing prepared: they set up the
# environment (tools/bootstrap.sh) and build first.
.DEFAULT_GOAL := help
.PHONY: help setup build demo test test-all test-versions test-clients wheels lint cpp-test clean

# Read when a recipe runs, because the setup step writes the file.
PY = "$$(cat build/python)"

help:
	@echo "make demo      train a transformer under three allocators, side by side"
	@echo "make test      a test of every behaviour, in minutes"
	@echo "make test-all  that, then sanitizers, fuzzing, long seeds, other versions, real programs;"
	@echo "               PARTS=\"asan tsan\" chooses, and PARTS=list says what there is and what it takes"
	@echo "make test-versions  build and test with torch 2.11 to 2.15; VERSIONS=\"2.12 2.15\" chooses"
	@echo "make test-clients   test with Trainer, DeepSpeed and others; CLIENTS=\"trainer rmm\" chooses"
	@echo "make wheels    a wheel for each of torch 2.11 to 2.15 in dist, tested; VERSIONS chooses too"
	@echo "make build     the extension and the simulated GPU, in place"
	@echo "make lint      the linters alone"
	@echo "make cpp-test  the C++ tests alone"
	@echo "make setup     the Python environment alone"
	@echo "make clean     removes what was built"

setup:
	@tools/bootstrap.sh

build: setup
	@$(PY) tools/build.py

demo: build
	@$(PY) -m benchmarks.demo

# AGAIN=1: also what passed before with exactly these files.
test: build
	@$(PY) tools/test.py $(if $(AGAIN),--again)

# Begins with the parts of `make test`. MINUTES=40: then as many of the others as fit.
test-all: $(if $(filter list,$(PARTS)),setup,build)
	@$(PY) tools/test.py $(if $(AGAIN),--again) $(if $(MINUTES),--minutes $(MINUTES)) \
	  $(if $(filter list,$(PARTS)),--list,$(if $(PARTS),--parts $(PARTS),--all))

test-versions: build
	@VERSIONS="$(VERSIONS)" $(PY) tools/versions.py

test-clients: build
	@CLIENTS="$(CLIENTS)" $(PY) tools/clients.py

wheels: setup
	@VERSIONS="$(VERSIONS)" $(PY) tools/wheels.py

lint: setup
	@$(PY) tools/test.py --parts lint

cpp-test: setup
	@$(PY) tools/test.py --parts cpp

clean:
	rm -rf build dist demo-out ferro_alloc/sim/lib ferro_alloc/_build_info.py ferro_alloc/*.so
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
