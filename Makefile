# make serve   a real photo answered by a real TorchServe, and the page   make test   everything checked
.DEFAULT_GOAL := help
.PHONY: help full serve stop demo demo-ants captions-build captions-run captions-ask docs test test-full long campaign lint format constraints clean
BIN := .venv/bin
# three processes on two cores: most tests wait for servers that start and end
PYTEST := $(BIN)/python -m pytest -q -n 3 --durations=20
# a run of tests starts thousands of processes: where this is set, each of them compiles every module anew
unexport PYTHONDONTWRITEBYTECODE

help: ## say what there is
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/make \1\t\2/' | expand -t 18

serve: ## install, build, start TorchServe (or SERVER=slotwise) and the gateway, say what a photo shows
	@PYTHON="$(or $(PYTHON),python3)" scripts/setup.sh serve
	@$(BIN)/slotwise serve efficientnet digits --server $(or $(SERVER),torchserve) --detach
	@$(BIN)/slotwise gateway --detach
	@$(BIN)/slotwise predict efficientnet models/efficientnet/examples/chelsea.png

stop: ## stop what `make serve` started
	@$(BIN)/slotwise stop

demo: ## 32 digits at once, 3 of them bad (after `make serve`)
	@$(BIN)/slotwise demo

demo-ants: ## ants and bees from DATA=FOLDER with train/ and val/: train, build, serve, and the page
	@[ -d "$(DATA)/val" ] || { echo "error: there is no folder $(DATA)/val" >&2; \
	  echo "hint: make demo-ants DATA=FOLDER, with train/ants train/bees val/ants val/bees in it" >&2; exit 2; }
	@PYTHON="$(or $(PYTHON),python3)" scripts/setup.sh serve
	@$(BIN)/slotwise train ants_bees --data "$(DATA)"
	@$(BIN)/slotwise build ants_bees
	@$(BIN)/slotwise serve ants_bees --detach
	@$(BIN)/slotwise gateway --detach
	@$(BIN)/slotwise predict ants_bees "$$(find -L "$(DATA)/val" -type f -name '*.jpg' | sort | head -n 1)"

CAPTIONS := docker compose -f $(or $(COMPOSE_FILE),compose.cuda.yaml)

captions-build: ## the image of captions on GPUs (COMPOSE_FILE=compose.text.yaml: on CPUs)
	@$(CAPTIONS) build

captions-run: ## start it; returns when the model is READY
	@$(CAPTIONS) up --detach --wait

captions-ask: ## caption PICTURE=FILE
	@curl -fsS -H 'Accept: text/plain' --data-binary @"$(or $(PICTURE),models/efficientnet/examples/chelsea.png)" \
	  http://127.0.0.1:8000/caption

test: lint ## lint, type-check and run the tests, real servers and a real browser included
	@scripts/test-tools.sh
	@$(PYTEST) -m "not slow and not long"

test-full: full lint ## the tests that are slow besides, on Ray and Triton, too: run both before a change lands
	@scripts/test-tools.sh
	@$(PYTEST) -o addopts="-ra --strict-markers" -m "slow and not long" tests benchmarks/tests

long: full ## what is too long for every landing (PARTS="models servers thirty histories tests coverage stalls python-3.12 python-3.13", or --due); its result is kept in .ci/long.json
	@scripts/test-tools.sh
	@$(BIN)/python scripts/long_run.py $(PARTS)

campaign: full ## try to break it: a tenth of docs/reliability.md's cases, 5 or 9 minutes a part at most
	@$(BIN)/python -m tests.campaign archives fuzz batches --scale 0.1 --minutes 5
	@$(BIN)/python -m tests.campaign management overload register chaos hostile soak --scale 0.1 --minutes 9

full:
	@PYTHON="$(or $(PYTHON),python3)" scripts/setup.sh full

lint: ## ruff, mypy, and which room may import which
	@PYTHON="$(or $(PYTHON),python3)" scripts/setup.sh test
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache > .slotwise/lint-imports.log || { cat .slotwise/lint-imports.log; exit 1; }

docs: ## the documentation as a site, in .slotwise/docs; a dead link fails
	@PYTHON="$(or $(PYTHON),python3)" scripts/setup.sh test
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build
	@echo "look at it: $(BIN)/python -m http.server --bind 127.0.0.1 --directory .slotwise/docs 8088"

format: ## let ruff put the code in order
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

constraints: ## write constraints.txt anew: the newest versions that fit together
	@PYTHON="$(or $(PYTHON),python3)" scripts/setup.sh constraints

clean: ## forget what was trained and built (not the environment)
	@rm -rf .slotwise/cache
	@for report in model_store/*.report.json; do rm -f "$$report" "$${report%.report.json}.mar"; done # others' archives stay
