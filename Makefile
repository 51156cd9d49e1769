# One environment, the same for a person and for CI. `make help` lists what there is.

PYTHON ?= python3
VENV ?= .venv
EXTRAS ?= visual,vlm,speech,voice,rewards,serve,ray,demo,docs,dev
# Without an NVIDIA GPU the tested versions are installed; with one, the newest that fit.
CONSTRAINTS ?= $(if $(shell command -v nvidia-smi),,-c constraints-cpu.txt)
PYTEST_ARGS ?=
# Processes of `make test` and `make test-slow`, each with one thread.
WORKERS ?= auto
# The rooms of tensors, and for the annotated functions of other rooms a file each.
SHAPES ?= tests/unit/advantages tests/unit/objectives tests/unit/diffusion tests/unit/policies tests/unit/test_rollout.py tests/unit/test_trainer.py \
	tests/unit/test_update.py tests/unit/test_ahead.py tests/unit/test_api_wiring.py tests/unit/rounds/test_steps.py tests/unit/engines tests/unit/prompts/test_samplers.py \
	tests/unit/data/test_changes.py tests/unit/toy/test_scenes.py tests/unit/toy/test_videos.py tests/unit/toy/test_worlds_stay.py
# The modules that state shapes, each of which is named: `mmgrpo` alone would check the types of all others, as pyright does.
STATING = $(subst /,.,$(basename $(patsubst %/__init__.py,%.py,$(shell grep -rl jaxtyping mmgrpo --include=*.py))))
# Of `make mutants`: which lines are drawn, how many, of which files, and the folder of the tests that are run.
SEED ?= 0
COUNT ?= 200
ONLY ?=
TESTS ?= tests
# The versions of Python that pyproject.toml names.
PYTHON_VERSIONS := 3.11 3.12 3.13
comma := ,
TESTED_EXTRAS := $(foreach extra,$(subst $(comma), ,$(EXTRAS)),--extra $(extra))
# Every package must have a wheel, except docopt (of num2words), which exists as source only and has nothing to compile.
SOURCES := --only-binary :all: --no-binary docopt

BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Files are compiled, and their assertions rewritten, once and not by every process of every run: half of collecting.
PYTEST = PYTHONDONTWRITEBYTECODE= OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

.DEFAULT_GOAL := help
.PHONY: help setup engine demo demo-duration demo-video test test-libraries test-slow test-rest test-nightly test-shapes test-roundings faults golden mutants planted check resolve lock lowest docs format bench twins twins-calibrate clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 22

setup: $(STAMP)  ## create the environment in .venv

# uv unpacks and compiles on all cores. It knows the indexes that pip's variables name, not pip's files; where it finds not
# everything, pip installs.
UV_LIKE_PIP = $(if $(PIP_FIND_LINKS),UV_FIND_LINKS="$(PIP_FIND_LINKS)") $(if $(PIP_INDEX_URL),UV_DEFAULT_INDEX="$(PIP_INDEX_URL)") \
	$(if $(PIP_EXTRA_INDEX_URL),UV_EXTRA_INDEX_URL="$(PIP_EXTRA_INDEX_URL)" UV_INDEX_STRATEGY=unsafe-best-match)
$(STAMP): pyproject.toml constraints-cpu.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet uv
	$(UV_LIKE_PIP) $(BIN)/uv pip install --quiet --python $(BIN)/python --compile-bytecode $(CONSTRAINTS) -e ".[$(EXTRAS)]" \
		|| $(BIN)/python -m pip install --quiet $(CONSTRAINTS) -e ".[$(EXTRAS)]"
	@touch $@

engine: $(STAMP)  ## make an environment with vLLM for CPUs in build/engine (3 GB), for the tests of rollout engines
	$(BIN)/python -m tests.libraries.engines.environment build/engine

demo: $(STAMP)  ## train an image, a vision-language and a speech model with GRPO, and write reports
	$(BIN)/mmgrpo train --recipe visual/demo --overwrite
	$(BIN)/mmgrpo questions
	$(BIN)/mmgrpo train --recipe vlm/demo --overwrite
	$(BIN)/mmgrpo train --recipe speech/whisper_adapt --overwrite
	@echo "Look at them in a browser: $(BIN)/mmgrpo demo runs/demo runs/vlm_demo runs/whisper_adapt"

demo-duration: $(STAMP)  ## teach a policy pretrained to speak too fast a natural pace, judged by Whisper, and write a report
	$(BIN)/mmgrpo train --recipe speech/demo_duration --overwrite
	@echo "Listen to it in a browser: $(BIN)/mmgrpo demo runs/demo_duration"

demo-video: $(STAMP)  ## train a small video model, and write a report
	$(BIN)/mmgrpo train --recipe visual/demo_video --overwrite
	@echo "Look at it in a browser: $(BIN)/mmgrpo demo runs/demo_video"

test: $(STAMP)  ## run the unit tests, and short journeys through the commands
	$(PYTEST) -m "not slow and not learning and not nightly" tests/unit tests/journeys $(PYTEST_ARGS)

test-libraries: $(STAMP)  ## compare every family and reward with the libraries, and feed hostile input
	$(PYTEST) -m "not slow and not nightly" tests/libraries tests/faults tests/mutants $(PYTEST_ARGS)

test-slow: $(STAMP)  ## run what takes seconds: tests that train, start commands, are killed and resumed, use a browser
	$(PYTEST) -m "(slow or learning) and not nightly" $(PYTEST_ARGS)

# In one run, so files are collected once and no process is idle while others end theirs; and by one process more than
# there are cores, since tests of servers, browsers and killed runs wait for a fifth of their time.
test-rest: WORKERS = $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
test-rest: $(STAMP)  ## run test-libraries and test-slow at once, as CI does after test
	$(PYTEST) -m "not nightly and not quick" $(PYTEST_ARGS)

test-nightly: $(STAMP)  ## run the largest tests, and the seeds and cases beyond those of test-slow
	$(PYTEST) -m nightly $(PYTEST_ARGS)

# In a run of its own, since the checks lengthen what they check. Only files of tensors, and none that trains
# until something is learned: it would check the same few calls thousands of times.
test-shapes: $(STAMP)  ## run the tests of the core with every call of modules that state shapes checked against its signature
	$(PYTEST) -m "not slow and not learning and not nightly" --jaxtyping-packages=$(subst $() ,$(comma),$(STATING)),beartype.beartype $(SHAPES)

test-roundings: $(STAMP)  ## run the learning tests under two other roundings of sums
	ATEN_CPU_CAPABILITY=default OMP_WAIT_POLICY=PASSIVE MMGRPO_TEST_THREADS=2 $(BIN)/python -m pytest -m learning -n $(WORKERS)
	MKL_CBWR=COMPATIBLE ONEDNN_MAX_CPU_ISA=SSE41 $(BIN)/python -m pytest -m learning -n $(WORKERS)

faults: $(STAMP)  ## break runs, checkpoints, settings, rows, media and rewards on purpose, thousands of times (hours)
	MMGRPO_FAULTS=full $(BIN)/python -m pytest tests/faults
	OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m tests.faults.campaign --output build/faults.json
	$(BIN)/python -m tests.faults.table build/faults.json --output benchmarks/faults.md

golden: $(STAMP)  ## train whole runs and compare them with benchmarks/golden.json to the last digit (of one kind of CPU)
	OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m tests.golden run build/golden.json
	$(BIN)/python -m tests.golden compare benchmarks/golden.json build/golden.json

mutants: $(STAMP)  ## change COUNT lines, one at a time, and report which changes no fast test sees
	$(BIN)/python -m tests.mutants --seed $(SEED) --count $(COUNT) --only "$(ONLY)" --tests $(TESTS) --report benchmarks/mutants.md

planted: $(STAMP)  ## break the formulas of papers one after the other, and report what their tests do not see
	$(BIN)/python -m tests.mutants.planted

check: $(STAMP)  ## check format, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright --pythonpath $(BIN)/python

# Once with the tested versions, and once with the newest that fit, as users without them get.
# uv asks PyPI; another index is named by UV_DEFAULT_INDEX.
resolve: $(STAMP)  ## check that the requirements can be met on every version of Python that is named
	for version in $(PYTHON_VERSIONS); do \
		for set in "$(TESTED_EXTRAS) --constraints constraints-cpu.txt" "--all-extras"; do \
			echo "Python $$version: $$set"; \
			$(BIN)/uv pip compile --quiet --python $(BIN)/python --python-version $$version \
				$(SOURCES) $$set pyproject.toml >/dev/null || exit 1; \
		done; \
	done

# Every version, also of what the packages need themselves, for each Python and system that is named, with hashes and
# without the name of an index. What stands there is kept where it still fits; `rm requirements.lock` renews all.
lock: $(STAMP)  ## write requirements.lock from pyproject.toml and constraints-cpu.txt
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --python-version $(firstword $(PYTHON_VERSIONS)) $(SOURCES) \
		$(TESTED_EXTRAS) --constraints constraints-cpu.txt --no-annotate --no-emit-index-url --no-emit-find-links \
		--custom-compile-command "make lock" pyproject.toml --output-file requirements.lock

# By hand or nightly, since it installs: the lowest versions that pyproject.toml names, on the oldest Python. LOWEST_TESTS
# are those that such versions break first (about 6 minutes of one core); torch is the tested one where there is no GPU, for
# its size. Packages that several extras name have one lowest version in all, so one run tests it.
LOWEST ?= build/lowest
LOWEST_EXTRAS := --extra visual --extra vlm --extra speech
LOWEST_TESTS ?= tests/unit/test_update.py tests/unit/test_trainer.py tests/unit/data tests/libraries/families/test_battery.py
lowest: $(STAMP)  ## install the lowest versions that are named into build/lowest, and run some tests with them
	mkdir -p build
	grep -E '^torch==' constraints-cpu.txt > build/torch.txt
	$(BIN)/uv venv --quiet --clear --python $(firstword $(PYTHON_VERSIONS)) $(LOWEST)
	$(BIN)/uv pip compile --quiet --resolution lowest-direct --python-version $(firstword $(PYTHON_VERSIONS)) $(SOURCES) \
		$(LOWEST_EXTRAS) --override build/torch.txt pyproject.toml --output-file build/lowest.txt
	$(BIN)/uv pip install --quiet --python $(LOWEST)/bin/python -r build/lowest.txt pytest pytest-timeout beartype jiwer
	$(BIN)/uv pip install --quiet --python $(LOWEST)/bin/python --no-deps -e .
	OMP_NUM_THREADS=1 $(LOWEST)/bin/python -m pytest -q -m "not slow" $(LOWEST_TESTS)

# Not with --quiet, under which mkdocs counts no warnings.
docs: $(STAMP)  ## build the documentation as a site in build/site; warnings are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

format: $(STAMP)  ## format the code and mend what lint can mend
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(STAMP)  ## measure sampling and training speed on this machine
	$(BIN)/mmgrpo bench visual

twins: $(STAMP)  ## train every recipe, scaled down to CPU-seconds, and compare what it learns with stored thresholds
	$(BIN)/python -m benchmarks twins

# After a change of worlds, recipes or presets: thresholds are those of runs of equal settings (about an hour of one core).
twins-calibrate: $(STAMP)  ## make the runs from which the thresholds of twins are derived, under two roundings
	$(BIN)/python -m benchmarks twins --calibrate --resume --seeds 5
	ATEN_CPU_CAPABILITY=default $(BIN)/python -m benchmarks twins --calibrate --resume --seeds 5

clean:  ## remove the environment and caches
	rm -rf .venv .pytest_cache .ruff_cache build dist
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
