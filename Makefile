# `make` alone says what there is.
SHELL := /bin/bash
.DEFAULT_GOAL := help
CARGO ?= cargo
TARGET := $(abspath $(or $(CARGO_TARGET_DIR),target))
# Cargo's own configuration may name another folder.
export CARGO_TARGET_DIR := $(TARGET)
BERTH := $(TARGET)/debug/berth
# What is generated must not depend on who generates it.
unexport BERTH_WEBHOOK_TIMEOUT VELERO_NAMESPACE
ARCHES ?= amd64 arm64

.PHONY: help build demo demo-stop test test-quick test-large lint bench manifests image image-check

help: ## This list.
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

build: ## The berth binary, for development.
	$(CARGO) build --locked

# What cannot be had at all, as without Go, is known at once, and not when cargo is done.
demo: ## Five Backups on a real control plane, queued and run. KEEP=1 leaves it up.
	@tests/control-plane/get etcd kube-apiserver kubectl velero-crds >/dev/null & programs=$$!; \
		trap 'kill $$programs 2>/dev/null' EXIT; \
		for _ in {1..10}; do kill -0 $$programs 2>/dev/null || break; sleep 0.1; done; \
		kill -0 $$programs 2>/dev/null || wait $$programs || exit; \
		$(CARGO) build --locked --package berth --package berth-demo --bins && \
		{ wait $$programs || { echo "The programs of the control plane are missing: tests/control-plane/get etcd kube-apiserver kubectl velero-crds says why" >&2; exit 1; }; }
	@$(TARGET)/debug/demo --berth $(BERTH)

demo-stop: ## Ends what `make demo KEEP=1` left up.
	@if [ -f .demo/state ]; then bash tests/support/janitor <.demo/state && rm .demo/state; fi

test: ## Every test, those on the real control plane included. THREADS=5 is how many of them run side by side.
	@tests/run

test-quick: ## Units, models, the router and a scripted API server: for between two saves.
	@tests/run quick

test-large: ## The large tests: certificates, replicas and versions change a thousand times under load, the previous commit's build among them; ten node-agents; ten thousand creates; leaders killed two hundred times between hooks and parts; a million files of a volume; an archive of ten GiB; facts about the pinned Velero.
	@git rev-parse --quiet --verify HEAD~1 >/dev/null || { echo "git does not know the previous commit, whose build is tested as well: is this a clone of one commit, or somebody else's?" >&2; exit 2; }
	$(CARGO) build --locked
	$(CARGO) test --locked --workspace --test main -- --ignored --nocapture --test-threads 2
	BERTH_CREATES=10000 $(CARGO) test --locked --workspace --test main -- --exact pressure::thousands_of_creates_at_once_all_get_a_place --nocapture | tee /dev/stderr | grep -q "^test result: ok. 1 passed"
	@git worktree remove --force target/previous 2>/dev/null; rm -rf target/previous; git worktree add --quiet --force target/previous HEAD~1
	cd target/previous && $(CARGO) build --locked --target-dir $(CURDIR)/target/previous-build
	@git worktree remove --force target/previous
	BERTH_PREVIOUS=$(CURDIR)/target/previous-build/debug/berth BERTH_LEAF_ROTATIONS=1000 BERTH_CA_ROTATIONS=20 \
		BERTH_CREATES_PER_SECOND=100 $(CARGO) test --locked --workspace --test main -- cluster::rotation --nocapture

lint: ## What CI refuses: formatting, clippy, what the house rules say of imports, names and lines, and dependencies that deny.toml does not allow or that advisories speak of.
	@$(CARGO) run --quiet --locked --package berth-test-tools --bin dependencies # First: what it refuses is not run.
	@$(CARGO) run --quiet --locked --package berth-test-tools --bin house
	$(CARGO) fmt --all --check
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings

bench: ## Speeds and memory, side by side with stock Velero: a table, and JSON in target/bench. ONLY="limits hostile" are parts of it, BENCH_FLAGS="--volume-files=200000" other sizes (target/release/bench --help).
	$(CARGO) build --locked --release --package berth --package berth-bench --bins
	@$(TARGET)/release/bench --berth $(TARGET)/release/berth $(addprefix --only=,$(ONLY)) $(BENCH_FLAGS)

manifests: ## Writes what is generated: definitions, the objects of the chart, and docs/reference.
	$(CARGO) build --quiet --locked
	$(BERTH) crd --write manifests/crd
	$(BERTH) crd --of garden --write manifests/garden/crd
	$(BERTH) crd --of garden-member --write manifests/components/garden-member/crd
	$(BERTH) crd --of pod-volumes --write manifests/components/pod-volumes/crd
	$(CARGO) build --quiet --locked # It carries them.
	@for executor in berth velero; do for certificates in self-managed cert-manager; do \
		$(BERTH) install --output yaml --namespace release-namespace --beside-velero=true --executor $$executor \
			--certificates $$certificates \
			| awk -v RS='---\n' '$$0 && !/kind: CustomResourceDefinition/ {printf "---\n%s", $$0}' \
			> manifests/chart/objects/$$executor-$$certificates.yaml || exit; \
	done; done
	@for part in "garden-member --garden-member" "garden-courier --hub-secret=berth-garden-hub"; do set -- $$part; \
		$(BERTH) install --output yaml --namespace release-namespace $$2 \
			| awk -v RS='---\n' '/\n  name: berth-garden-(agent|courier)\n/ {printf "---\n%s", $$0}' \
			> manifests/chart/objects/$$1.yaml || exit; \
	done
	@for part in "pod-volumes" "files-by-movers --files-by-movers"; do set -- $$part; \
		$(BERTH) install --output yaml --namespace release-namespace --pod-volumes $$2 \
			| awk -v RS='---\n' '/\n  name: berth-(node-agent|data-movers)\n/ {printf "---\n%s", $$0}' \
			> manifests/chart/objects/$$1.yaml || exit; \
	done
	$(BERTH) crd > manifests/chart/objects/definitions.yaml
	$(BERTH) crd --of garden > manifests/chart/objects/garden-definitions.yaml
	$(BERTH) crd --of garden-member > manifests/chart/objects/garden-member-definitions.yaml
	$(BERTH) crd --of pod-volumes > manifests/chart/objects/pod-volumes-definitions.yaml
	@rm -f docs/reference/commands/*.md # Those of commands that are gone, too.
	$(BERTH) reference --write docs/reference
	@mkdir -p manifests/krew
	$(BERTH) krew > manifests/krew/berth.yaml

image: ## The container image, in target/image: static, from scratch, for ARCHES="amd64 arm64".
	@image/build $(ARCHES)

image-check: ## Builds the image twice, in two folders: the same bytes?
	@image/check $(ARCHES)
