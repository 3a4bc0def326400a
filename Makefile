# Needs Python 3.11 or newer, a C++ compiler and CMake; everything else is installed into .venv.
PYTHON ?= python3
BIN := .venv/bin
# Processes that share the tests, file by file: three for two cores, as each waits a quarter of its time. In the order of the
# files, as the last ones are short; by default those with few tests are last, and these take longest: one would be waited for.
JOBS ?= 3
SHARED := $(if $(filter-out 1,$(JOBS)),-n $(JOBS) --dist loadfile --no-loadscope-reorder)
# They also share the cores: with as many threads in each as there are cores, threads wait for each other at barriers.
CORES := $(shell nproc 2>/dev/null || sysctl -n hw.ncpu 2>/dev/null || echo $(JOBS))
THREADS := $(if $(SHARED),OMP_THREAD_LIMIT=$(shell expr $(CORES) / $(JOBS) '|' 1))

# Tests start hundreds of processes; without bytecode, each of them would compile all modules again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run setup test lint tools test-clients test-long test-builds test-gpu test-vllm screenshots bench format docs clean help

run: ## Start a worker on http://127.0.0.1:8080. Options: make run ARGS="--port 9000"
	@$(PYTHON) -m deploy.setup
	@FIRSTTOKEN_WEIGHTS=$${FIRSTTOKEN_WEIGHTS-package} $(BIN)/firsttoken serve $(ARGS)

setup: ## Create .venv with everything needed for development
	@$(PYTHON) -m deploy.setup --dev

test: setup ## Run the linter, type checker and all tests. Options: make test JOBS=1 ARGS="-k tenants"
	@$(MAKE) --no-print-directory -j2 lint tools
	@$(THREADS) $(BIN)/pytest -q $(SHARED) $(ARGS)

# One of them computes, the other mostly downloads.
lint:
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/mypy --no-error-summary

tools:
	@deploy/browser.sh >/dev/null
	@deploy/pooler.sh >/dev/null
	@deploy/balancer.sh >/dev/null
	@$(BIN)/python -m deploy.clients
	@$(BIN)/python -m deploy.weights

test-clients: setup ## Run the tests with Codex and Claude Code themselves; the first run downloads 340 MB
	@$(BIN)/python -m deploy.clients programs
	@$(BIN)/python -m deploy.weights
	@$(BIN)/pytest -q -m programs tests/clients $(ARGS)

test-long: setup ## Run the fault-injection tests and the rest of the matrices; takes many minutes
	@$(BIN)/pytest -q -m long $(ARGS)

test-builds: setup ## Run all tests on each build of llama.cpp for this CPU, with one and two threads; takes hours
	@$(BIN)/python -m deploy.builds $(ARGS)

test-gpu: setup ## Run the engine tests on a software GPU (Vulkan on llvmpipe); the first run compiles for minutes
	@$(BIN)/python -m deploy.gpu_tests $(ARGS)

test-vllm: setup ## Run the tests against a vLLM server. Options: make test-vllm VLLM_URL=http://... VLLM_MODEL=model.gguf
	@VLLM_URL=$(VLLM_URL) VLLM_MODEL=$(VLLM_MODEL) $(BIN)/pytest -q -m vllm tests/vllm $(ARGS)

screenshots: setup ## Retake the screenshots in docs/images
	@deploy/browser.sh >/dev/null
	@$(BIN)/pytest -q -m screenshots tests/pages/test_screenshots.py

bench: setup ## Compare with llama-server on this machine within ten minutes; the first time compiles it
	@$(BIN)/python -m benchmarks.engine.today $(ARGS)

format: setup ## Format the code
	@$(BIN)/ruff check --fix --quiet . || true
	@$(BIN)/ruff format .

docs: setup ## Regenerate docs/settings.md
	@$(BIN)/python -m deploy.settings_page > docs/settings.md

clean: ## Remove .venv and tool caches; keep your data and the compiled wheel
	rm -rf .venv build *.egg-info artifacts .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

help: ## List the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## /  make \1	/' | expand -t 20
