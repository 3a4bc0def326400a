# Needs Python 3.11 or newer, a C++ compiler and cmake; everything else is installed into .venv.
PYTHON ?= python3
BIN := .venv/bin
# Processes that share the tests, file by file: most tests wait more than they compute. What trains comes last in each.
JOBS ?= 2
SHARED := $(if $(filter-out 1,$(JOBS)),-n $(JOBS) --dist loadfile --no-loadscope-reorder)

# Tests start hundreds of processes, each of which would compile all modules anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run setup test test-long test-builds test-gpu test-vllm screenshots bench format docs clean help

run: ## Start everything on http://127.0.0.1:8080. Options: make run ARGS="--port 9000"
	@$(PYTHON) -m deploy.setup
	@$(BIN)/firsttoken serve $(ARGS)

setup: ## Create .venv with everything that development needs
	@$(PYTHON) -m deploy.setup --dev

test: setup ## Lint, types, layers and all tests. Options: make test JOBS=1 ARGS="-k tenants"
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/mypy --no-error-summary
	@deploy/browser.sh >/dev/null
	@deploy/pooler.sh >/dev/null
	@deploy/balancer.sh >/dev/null
	@$(BIN)/python -m deploy.clients
	@$(BIN)/pytest -q $(SHARED) $(ARGS)

test-long: setup ## Tests that repeat a fault at many moments; takes many minutes
	@$(BIN)/pytest -q -m long $(ARGS)

test-builds: setup ## All tests on each build of llama.cpp for this CPU, with one thread and with two; takes hours
	@$(BIN)/python -m deploy.builds $(ARGS)

test-gpu: setup ## The engine's tests on a GPU in software (Vulkan on llvmpipe); compiles for minutes the first time
	@$(BIN)/python -m deploy.gpu_tests $(ARGS)

test-vllm: setup ## What workers need of a vLLM server. Options: make test-vllm VLLM_URL=http://... VLLM_MODEL=model.gguf
	@VLLM_URL=$(VLLM_URL) VLLM_MODEL=$(VLLM_MODEL) $(BIN)/pytest -q -m vllm tests/vllm $(ARGS)

screenshots: setup ## Take the pictures of docs/images anew
	@deploy/browser.sh >/dev/null
	@$(BIN)/pytest -q -m screenshots tests/pages/test_screenshots.py

bench: setup ## Measure the spans of a turn
	@$(BIN)/python -m benchmarks.turn $(ARGS)

format: setup ## Format the source
	@$(BIN)/ruff check --fix --quiet . || true
	@$(BIN)/ruff format .

docs: setup ## Write docs/settings.md from the settings
	@$(BIN)/python -m deploy.settings_page > docs/settings.md

clean: ## Remove .venv and the caches of the tools; keeps your data and the compiled wheel
	rm -rf .venv build *.egg-info artifacts .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

help: ## List the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## /  make \1	/' | expand -t 20
