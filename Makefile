# `make` alone lists the targets. Each is one plain command; those that need the build make it first.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
PARTS := admin client console node operator replication spark store testing
unexport PYTHONDONTWRITEBYTECODE # tests start hundreds of processes: each of them would compile the product again
KERNEL_SOURCES := $(wildcard store/kernel/src/*.rs store/kernel/src/*/*.rs) store/kernel/Cargo.toml store/kernel/Cargo.lock

.DEFAULT_GOAL := help
.PHONY: help build run test bench loadgen lint types kernel-test peer crash mqadmin clean

help: ## this list
	@grep -hE '^[a-z0-9/-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "%-16s %s\n", $$1, $$2}'

build: $(VENV)/.built ## .venv with the product in it: .venv/bin/tally

MAKE_VENV = test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || python3 -m venv $(VENV)
# LOCKED=1: the versions of requirements/*.txt, whose hashes pip verifies, those of the build's own tools included. They were chosen
# for Python 3.11. Otherwise the newest versions that pyproject.toml allows.
PINNED = $(BIN)/python -m pip install --quiet --require-hashes --no-build-isolation
INSTALL = $(MAKE_VENV); $(if $(LOCKED),$(PINNED) -r requirements/build.txt && $(PINNED) -r requirements/$1.txt &&) \
    $(BIN)/python -m pip install --quiet $(if $(LOCKED),--no-deps --no-build-isolation) --editable client --editable

$(VENV)/.built: pyproject.toml client/pyproject.toml $(KERNEL_SOURCES)
	$(call INSTALL,node) .
	touch $@

$(VENV)/.dev: pyproject.toml client/pyproject.toml $(KERNEL_SOURCES) # checkers, the operator's libraries and Spark as well: half a gigabyte
	$(call INSTALL,dev) '.[dev]'
	touch $(VENV)/.built $@

# Without the index's address and other settings of the machine that makes them.
COMPILE = build/supply-chain/bin/uv pip compile --quiet --python-version 3.11 --generate-hashes --no-header --no-emit-index-url \
    $(if $(UPGRADE),--upgrade)

.PHONY: lock sbom audit
lock: build/supply-chain/.built build/lock/pyproject.toml ## requirements/*.txt from pyproject.toml, with the hashes of all packages: UPGRADE=1 takes new versions
	$(COMPILE) -o requirements/build.txt requirements/build.in
	$(COMPILE) -o requirements/supply-chain.txt requirements/supply-chain.in
	$(COMPILE) --extra backup -o requirements/node.txt build/lock/pyproject.toml client/pyproject.toml
	$(COMPILE) --extra operator -o requirements/operator.txt build/lock/pyproject.toml client/pyproject.toml
	$(COMPILE) --extra spark --extra bodies --extra backup -o requirements/jobs.txt build/lock/pyproject.toml client/pyproject.toml
	$(COMPILE) --extra dev -o requirements/dev.txt build/lock/pyproject.toml client/pyproject.toml

# The client's wheel comes from this repository.
build/lock/pyproject.toml: pyproject.toml
	mkdir -p $(@D)
	grep -v '"tallystick-client==' $< >$@

sbom: build/supply-chain/.built ## CycloneDX documents of the wheel and the images, in dist/sbom
	build/supply-chain/bin/python requirements/sbom.py build/supply-chain/bin/cyclonedx-py

audit: build/supply-chain/.built ## known vulnerabilities of all locked packages; needs the databases of PyPI and RustSec
	for lock in node operator jobs dev build; do \
	    build/supply-chain/bin/pip-audit --require-hashes --disable-pip --progress-spinner off -r requirements/$$lock.txt || exit 1; \
	done
	cd store/kernel && cargo audit

build/supply-chain/.built: requirements/supply-chain.txt
	$(PYTHON) -m venv build/supply-chain || python3 -m venv build/supply-chain
	build/supply-chain/bin/python -m pip install --quiet --require-hashes --only-binary :all: -r $<
	touch $@

$(VENV)/s3-server: tests/spark/s3_server.txt # by itself: its libraries and the operator's want different python-dateutils
	$(PYTHON) -m venv $@ || python3 -m venv $@; $@/bin/python -m pip install --quiet --requirement $<
	touch $@

run: build ## name server, broker and HTTP in one process, in ./tally-data
	$(BIN)/tally run

# Most tests wait for processes, timers and disks for a part of their time: more of them run at once than there are cores.
PYTEST = $(BIN)/python -m pytest

# One waits for the network while the other one compiles.
.PHONY: test-tools
test-tools:
	@$(MAKE) --jobs=2 --output-sync=target --no-print-directory $(VENV)/.dev $(VENV)/s3-server
	@$(MAKE) --no-print-directory $(VENV)/.collected

# pytest rewrites the assertions of all tests once and keeps the result. In a fresh clone each worker would do it for
# itself, since all of them begin at the same time. An error is ignored here: the tests themselves show it.
$(VENV)/.collected: | $(VENV)/.dev
	@find tests -name 'test_*.py' | xargs -P 2 -n 150 $(PYTEST) --collect-only --quiet >/dev/null 2>&1 || true
	@touch $@

BROWSERS := chromium-headless-shell chromium chromium-browser google-chrome
.PHONY: browser
browser: ## a Chromium for the tests of the console, on Debian as root; without one they are skipped
	@if [ -n "$(TALLY_CHROMIUM)" ] || type $(BROWSERS) 2>/dev/null | grep -q ' is '; then echo "a Chromium is here"; \
	elif [ "$$(id -u)" = 0 ] && type apt-get >/dev/null 2>&1; then \
	    { apt-get --quiet update && apt-get --quiet install --yes --no-install-recommends chromium-headless-shell; } || \
	        echo "SKIPPED: apt-get cannot install Chromium"; \
	else echo "SKIPPED: install Chromium, or set TALLY_CHROMIUM to its path"; fi

test: test-tools ## the tests that need neither Docker nor Spark: PART=store ARGS='-k recovery' JOBS=6
	$(PYTEST) --numprocesses=$(or $(JOBS),6) -m 'not simulation and not spark' tests/$(PART) $(ARGS)

.PHONY: test-spark test-simulators
test-spark: test-tools ## the tests that start Spark, which needs Java: ARGS='-k export' JOBS=3
	$(PYTEST) --numprocesses=$(or $(JOBS),3) -m spark tests/spark $(ARGS)

# From the wheel, as users install it. All versions share one environment, so that only Spark is installed again; it takes
# 700 MB, and is removed at the end, also after a failure. Each version takes about a minute if nothing else runs.
.PHONY: test-spark-versions
test-spark-versions: wheel ## the short part of Spark's tests with each version of Spark: VERSIONS='4.0 4.1 4.2 4.3'
	@at=$(CURDIR)/build/spark-versions; rm -rf $$at; trap "rm -rf $$at" EXIT; $(BIN)/python -m venv $$at && \
	set -- "$$(ls $(CURDIR)/dist/tallystick-*.whl)[spark]" $(CURDIR)/dist/tallystick_client-*.whl 'pytest>=8.3,<10' 'pytest-asyncio>=1.0,<2' 'pytest-xdist>=3.6,<4' \
	    'hypothesis>=6.100,<7' pyyaml && \
	for version in $(or $(VERSIONS),4.0 4.1 4.2 4.3); do \
	    begin=$$(date +%s); echo "Spark $$version"; \
	    $$at/bin/python -m pip install --quiet "pyspark~=$$version.0" "$$@" && set -- && \
	    env -u PYTHONPATH $$at/bin/python -m pytest --quiet -m spark_versions \
	        $$(grep -rl --include='test_*.py' spark_versions tests/spark) $(ARGS) || exit 1; \
	    $$at/bin/python -c "import pyspark; assert pyspark.__version__.startswith('$$version.'), pyspark.__version__"; \
	    echo "Spark $$version took $$(($$(date +%s) - begin)) s"; \
	done

test-simulators: $(VENV)/.dev ## the tests that run groups, brokers and operators from seeds, and plant bugs for them to find: JOBS=2
	$(PYTEST) --numprocesses=$(or $(JOBS),2) -m simulation tests/$(PART) $(ARGS)

.PHONY: check check-format check-quick
check: $(VENV)/.dev build/types ## what each commit must pass, in about a minute: ruff, mypy, rustfmt, clippy, and the quick tests
	$(MAKE) --jobs=2 --output-sync=target --no-print-directory lint types check-format check-quick

check-format:
	cd store/kernel && cargo fmt --check && cargo clippy --locked --quiet --all-targets -- -D warnings

check-quick: $(VENV)/.dev
	$(PYTEST) --numprocesses=$(or $(JOBS),2) --quiet -m 'not process and not spark and not simulation and not slow' $(ARGS)

loadgen: ## the native load generator: its tests, clippy, and benchmarks/loadgen/target/release/loadgen
	cd benchmarks/loadgen && cargo test --locked --quiet && cargo clippy --locked --quiet --all-targets -- -D warnings && cargo build --locked --release --quiet

.PHONY: simulate
simulate: $(VENV)/.dev ## replicated groups from seeds, everything going wrong: FIRST=0 SEEDS=10000 PROFILE=storm VERBOSE=1
	PYTHONPATH=tests/replication $(BIN)/python -m simulator --first $(or $(FIRST),0) --seeds $(or $(SEEDS),10000) \
	    $(if $(PROFILE),--profile '$(PROFILE)') $(if $(VERBOSE),--verbose)

.PHONY: simulate-operator
simulate-operator: $(VENV)/.dev ## the operator over a simulated API server from seeds, with objects of others, refusals and crashes: FIRST=0 SEEDS=1000
	PYTHONPATH=tests/oracles $(BIN)/python tests/oracles/operator_storm.py $(or $(FIRST),0) $(or $(SEEDS),1000)

.PHONY: simulate-node
simulate-node: $(VENV)/.dev ## whole brokers and clients from seeds, everything going wrong: FIRST=0 SEEDS=1000 PROFILE=sync VERBOSE=1 JOBS=2
	PYTHONPATH=tests $(BIN)/python -m simulation --first $(or $(FIRST),0) --seeds $(or $(SEEDS),1000) \
	    $(if $(PROFILE),--profile '$(PROFILE)') $(if $(JOBS),--jobs $(JOBS)) $(if $(VERBOSE),--verbose) \
	    $(if $(TWICE),--check-determinism)

.PHONY: mutants
mutants: $(VENV)/.dev ## planted bugs, each of which a test must find: PART=kernel ONLY='a sync' JOBS=2 SHARD=1/4 LIST=1
	PYTHONPATH=tests $(BIN)/python -m mutants --jobs $(or $(JOBS),2) $(if $(PART),--part '$(PART)') \
	    $(if $(ONLY),--only '$(ONLY)') $(if $(SHARD),--shard $(SHARD)) $(if $(LIST),--list) $(ARGS)

bench: build ## ours beside RocketMQ 4.8.0, about half an hour (JSON=1, ARGS='--quick', ARGS='--rows sync-*')
	$(BIN)/python benchmarks/bench.py $(if $(JSON),--json) $(ARGS)

.PHONY: bench-client
bench-client: build build/bench-client/.built ## the Python client beside RocketMQ's Python and Java clients (Java, Maven): ARGS='--turns 5 --loads send'
	$(BIN)/python benchmarks/client/bench.py $(ARGS)

build/bench-client/.built: benchmarks/client/pom.xml benchmarks/client/JavaTurn.java # RocketMQ's proxy, both other clients
	$(PYTHON) -m venv build/bench-client/venv || python3 -m venv build/bench-client/venv
	build/bench-client/venv/bin/python -m pip install --quiet 'rocketmq-python-client==5.1.2'
	mvn -q -B -f $< dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory=$(CURDIR)/build/bench-client/proxy
	mkdir -p build/bench-client/java && javac -nowarn -cp "$$(../shared/peer/peer.sh fetch 4.8.0)/*" -d build/bench-client/java benchmarks/client/JavaTurn.java
	touch $@

.PHONY: bench-spark
bench-spark: $(VENV)/.dev ## bulk reading by scanner and Spark, beside plain Python and a pull consumer: JSON=1 ARGS='--mib 256'
	$(BIN)/python benchmarks/spark/bench.py $(if $(JSON),--json) $(ARGS)

.PHONY: bench-queues
bench-queues: $(VENV)/.dev ## what an audit and a check of a store cost with many queues and with few: JSON=1 ARGS='--mib 128'
	$(BIN)/python benchmarks/spark/queues.py $(if $(JSON),--json) $(ARGS)

lint: $(VENV)/.dev ## ruff
	$(BIN)/ruff check . && $(BIN)/ruff format --check .

# Without the folders whose modules the tests import by name: they are checked from there. The simulation of whole brokers
# imports the same modules under other names, and is checked by itself.
TYPED_TESTS = $(filter-out tests/__pycache__ tests/oracles tests/replication tests/golden tests/simulation,$(patsubst %/,%,$(wildcard tests/*/))) \
    $(filter-out tests/test_simulation.py,$(wildcard tests/*.py)) $(wildcard tests/replication/test_*.py)

types: $(VENV)/.dev build/types ## mypy: --strict for the product, the benchmark and the end-to-end runs, and of the tests
	$(BIN)/mypy
	$(BIN)/mypy --config-file tests/mypy.ini $(TYPED_TESTS)
	$(BIN)/mypy --config-file tests/mypy.ini tests/simulation tests/test_simulation.py
	cd benchmarks && ../$(BIN)/mypy --strict bench.py harness/*.py && MYPYPATH=../build/types ../$(BIN)/mypy --strict --ignore-missing-imports spark/*.py && \
	    MYPYPATH=../build/types:client:. ../$(BIN)/mypy --strict --ignore-missing-imports client/*.py
	cd e2e && MYPYPATH=../build/types ../$(BIN)/mypy --strict --namespace-packages --explicit-package-bases *.py attacks/*.py client_suite/*.py lab/*.py
	MYPYPATH=build/types $(BIN)/mypy --config-file tests/mypy.ini e2e/prometheus
	cd e2e/kind && MYPYPATH=../../build/types:..:../../tests/crds ../../$(BIN)/mypy --strict --namespace-packages --explicit-package-bases \
	    --disable-error-code import-untyped *.py harness/*.py programs/*.py

build/types: $(PARTS) ## one folder named tallystick, for type checkers
	mkdir -p $@/tallystick
	for part in $(PARTS); do ln -sfn ../../../$$part $@/tallystick/$$part; done
	touch $@

kernel-test: ## cargo test, clippy and fmt of the kernel
	cd store/kernel && cargo test --locked --quiet && cargo clippy --locked --quiet --all-targets -- -D warnings && cargo fmt --check

.PHONY: acl-lab
acl-lab: build ## access control with RocketMQ's own Java client and admin tool: PEER_VERSION=5.5.0
	$(BIN)/python e2e/acl_lab.py --version $(or $(PEER_VERSION),4.8.0)

.PHONY: acl-matrix
acl-matrix: build ## each request code with each kind of credentials, by RocketMQ's Java clients: WRITE=docs/access-matrix.md
	$(BIN)/python e2e/acl_matrix.py $(if $(WRITE),--write $(WRITE))

.PHONY: quota-lab
quota-lab: build ## quotas with RocketMQ's own Java clients: PEER_VERSION=5.5.0
	$(BIN)/python e2e/quota_lab.py --version $(or $(PEER_VERSION),4.8.0)

# atheris has no release for each version of Python, so it is not a part of the extra `dev`.
.PHONY: fuzz
fuzz: $(VENV)/.dev ## inputs of strangers that reach new code, target by target: TARGET=headers SECONDS=1800 MERGE=1
	$(BIN)/python -m pip install --quiet 'atheris>=3,<4'
	PYTHONPATH=tests $(BIN)/python -m fuzz $(TARGET) --seconds $(or $(SECONDS),60) $(if $(MERGE),--merge)

.PHONY: fuzz-rest
fuzz-rest: $(VENV)/.dev ## requests to the REST interface of a node, drawn from its OpenAPI document: EXAMPLES=200
	EXAMPLES=$(or $(EXAMPLES),200) $(BIN)/python -m pytest -q tests/console/test_rest_fuzz.py

.PHONY: acl-decisions
acl-decisions: build ## decisions of access control, compared with those of RocketMQ 4.8.0 and 5.5.0: ROUNDS=20 SEED=1
	$(BIN)/python e2e/acl_decisions.py --rounds $(or $(ROUNDS),20) --seed $(or $(SEED),1)
	$(BIN)/python e2e/acl_decisions.py --policies --rounds $(or $(ROUNDS),20) --seed $(or $(SEED),1)

.PHONY: tls-lab
tls-lab: build ## TLS with RocketMQ's own Java client, its admin tool and openssl: PEER_VERSION=5.5.0
	$(BIN)/python e2e/tls_lab.py --version $(or $(PEER_VERSION),4.8.0)

.PHONY: compose-lab
compose-lab: build ## the Compose file of docs/deployment.md with a Docker Engine: IMAGE=tallystick-node:0.1.0
	$(BIN)/python e2e/compose_lab.py $(if $(IMAGE),--image $(IMAGE))

peer: build ## RocketMQ's own Java client against ours (../shared/peer): PEER_VERSION=5.x COMPARE=1, or TLS=1 ACL=1
	$(BIN)/python e2e/peer_suite.py --version $(or $(PEER_VERSION),4.8.0) $(if $(COMPARE),--compare --again 2) $(if $(TLS),--tls) $(if $(ACL),--acl)

crash: build ## kill -9 in the middle of a load, read back by RocketMQ: ROUNDS=20 SEED=1 FLUSH=sync FAST=1 (kills alone)
	$(BIN)/python e2e/crash.py --rounds $(or $(ROUNDS),20) --seed $(or $(SEED),1) --flush $(or $(FLUSH),sync) $(if $(FAST),--fast)

.PHONY: client-lab
client-lab: build ## the Python client with Java clients in its groups, under kills: SYSTEM=node|group|rocketmq KILLS=2 ONLY=load TLS=1 ACL=1
	$(BIN)/python e2e/client_lab.py --version $(or $(PEER_VERSION),4.8.0) --kills $(or $(KILLS),2) --seed $(or $(SEED),1) \
		$(if $(SYSTEM),--system $(SYSTEM)) $(if $(ONLY),--only $(ONLY)) $(if $(TLS),--tls) $(if $(ACL),--acl)

.PHONY: admin-lab
admin-lab: build ## the admin core against our node, our group and RocketMQ, compared with mqadmin: SYSTEM=node|group|rocketmq
	$(BIN)/python e2e/admin_lab.py --version $(or $(PEER_VERSION),4.8.0) $(if $(SYSTEM),--system $(SYSTEM))

.PHONY: tour
tour: $(VENV)/.dev ## the commands and pages of docs/tour.md, with a browser: PARTS_OF_TOUR='pip docker compose kind'
	$(BIN)/python e2e/tour.py $(or $(PARTS_OF_TOUR),pip)

.PHONY: metrics-lab
metrics-lab: build ## the metrics beside those of RocketMQ 5.5.0 after the same load, or the cost of a scrape: WRITE=1 SCALE=5000
	$(BIN)/python e2e/metrics_lab.py $(if $(WRITE),--write) $(if $(SCALE),--scale $(SCALE))

.PHONY: timers
timers: build ## timers of a broker that is killed, and how late they are: PENDING=4000 KILLS=3 RATE=2000 GROUP=1 TRANSFERS=3 COMPARE=1
	$(BIN)/python e2e/timers.py --pending $(or $(PENDING),4000) --kills $(or $(KILLS),3) --rate $(or $(RATE),2000) \
		--send-rate $(or $(SEND_RATE),1500) --seed $(or $(SEED),1) --limit-ms $(or $(LIMIT_MS),0) \
		$(if $(GROUP),--group --transfers $(or $(TRANSFERS),3)) $(if $(COMPARE),--compare --rounds $(or $(ROUNDS),1)) \
		$(foreach setting,$(PEER_SET),--peer-set $(setting))

.PHONY: expiry
expiry: build ## messages that expire by the retention of their topic, beside RocketMQ after a clean: ONLY=compare
	$(BIN)/python e2e/expiry.py $(if $(ONLY),--only $(ONLY))

.PHONY: migrate-lab
migrate-lab: build ## RocketMQ 4.8.0 as our slave and as our master, under load and kills: MESSAGES=100000 SEED=1 ONLY=adopt FULL=1 (2 GiB)
	$(BIN)/python e2e/migrate_lab.py --messages $(or $(MESSAGES),100000) --seed $(or $(SEED),1) $(if $(ONLY),--only $(ONLY)) \
		$(if $(FULL),--only group-full)

.PHONY: convert-lab
convert-lab: build ## RocketMQ's stores become stores of a group, and back: MESSAGES=20000 KILLS=12 SEED=1 ONLY=dledger SHORT=1
	$(BIN)/python e2e/convert_lab.py --messages $(or $(MESSAGES),20000) --kills $(or $(KILLS),12) --seed $(or $(SEED),1) \
		$(if $(ONLY),--only $(ONLY)) $(if $(SHORT),--short)

.PHONY: attacks
attacks: build ## clocks, disks, signals, strangers, kills, large stores against real processes: ONLY=clock SCALE=0.1 JSON=FILE
	$(BIN)/python e2e/attack.py --scale $(or $(SCALE),1.0) $(if $(ONLY),--only $(ONLY)) $(if $(JSON),--json $(JSON))

.PHONY: group-faults peer-group
group-faults: build ## three members under faults of all kinds, nothing lost: ROUNDS=22 SEED=1 ONLY=kill-leader JSON=FILE
	$(BIN)/python e2e/group_faults.py --rounds $(or $(ROUNDS),22) --seed $(or $(SEED),1) $(if $(ONLY),--only $(ONLY)) $(if $(JSON),--json $(JSON))

peer-group: build ## RocketMQ's Java client against a group of three: MOVE=10 (its leader changes every 10 s) TLS=1 ACL=1
	$(BIN)/python e2e/peer_suite.py --group --version $(or $(PEER_VERSION),4.8.0) $(if $(MOVE),--move $(MOVE)) $(if $(TLS),--tls) $(if $(ACL),--acl)

.PHONY: e2e e2e-ci
e2e: $(VENV)/.dev ## the operator on kind, everything that can go wrong (docker, kind, helm, kubectl): E2E_KEEP=1, ARGS='-k failover'
	$(BIN)/python -m pytest e2e/kind -v --durations=0 --durations-min=1 -m 'not slo' $(ARGS)

.PHONY: slo
slo: $(VENV)/.dev ## p50 and p99 of what a producer sees of changes of leader, of four kinds, on kind: CHANGES=30 ARGS='-k planned'
	CHANGES=$(or $(CHANGES),30) $(BIN)/python -m pytest e2e/kind -v --durations=0 --durations-min=1 -m slo $(ARGS)

e2e-ci: $(VENV)/.dev ## the part of it that is run for every change
	$(BIN)/python -m pytest e2e/kind -v --durations=0 --durations-min=1 -m ci $(ARGS)

PROMETHEUS := v0.316.0

.PHONY: prometheus prometheus-tools
prometheus: $(VENV)/.dev ## the chart's rules and dashboard in a real Prometheus over a real group (helm, `make prometheus-tools`): ARGS='-k dashboard'
	$(BIN)/python -m pytest -v e2e/prometheus $(ARGS)

prometheus-tools: build/prometheus/prometheus ## builds Prometheus from its Go module, which takes ten minutes
build/prometheus/prometheus:
	GOBIN=$(CURDIR)/build/prometheus go install github.com/prometheus/prometheus/cmd/promtool@$(PROMETHEUS)
	GOBIN=$(CURDIR)/build/prometheus go install github.com/prometheus/prometheus/cmd/prometheus@$(PROMETHEUS)

.PHONY: network-plugin
network-plugin: build/network-plugin/kube-router ## builds what enforces NetworkPolicies in `make e2e`, on Debian: Go, apt-get
build/network-plugin/kube-router:
	mkdir -p $(@D) && cd $(@D) && apt-get --quiet download ipset libipset13
	GOBIN=$(CURDIR)/$(@D) go install github.com/cloudnativelabs/kube-router/v2/cmd/kube-router@v2.1.0

.PHONY: raftos
raftos: build/types build/raftos-venv/.built ## raftos 0.2.6 and our core under the same histories, rule by rule
	build/raftos-venv/bin/python -m pytest -q e2e/raftos

build/raftos-venv/.built: # its setup.py needs an old setuptools, its pins cannot all be installed: e2e/raftos/hosting/adapted.py
	$(PYTHON) -m venv build/raftos-venv
	build/raftos-venv/bin/python -m pip install --quiet 'setuptools<70' wheel 'pytest>=8.3,<10'
	build/raftos-venv/bin/python -m pip install --quiet --no-deps --no-build-isolation raftos==0.2.6 msgpack-python==0.4.8
	touch $@

mqadmin: build ## RocketMQ's admin tool against ours, with PEER_VERSION=5.5.0 or COMPARE=1 also against RocketMQ: WRITE=docs/mqadmin-5.5.0.md
	$(BIN)/python e2e/mqadmin.py --version $(or $(PEER_VERSION),4.8.0) \
	    $(if $(filter-out 0,$(or $(COMPARE),$(PEER_VERSION))),--compare) \
	    $(if $(WRITE),--write $(WRITE))

.PHONY: crd-reference
crd-reference: $(VENV)/.dev ## docs/kubernetes/crd-reference.md from the schemas in crds/
	$(BIN)/python docs/kubernetes/reference.py

.PHONY: settings-reference
settings-reference: $(VENV)/.dev ## docs/settings.md from the declarations of the settings
	$(BIN)/python docs/settings_reference.py

.PHONY: architecture
architecture: $(VENV)/.dev ## docs/architecture.svg from the imports between folders
	$(BIN)/python docs/architecture.py

.PHONY: metrics-reference
metrics-reference: $(VENV)/.dev ## docs/metrics.md from the declarations of the metrics
	$(BIN)/python docs/metrics_reference.py

.PHONY: chart
chart: ## the chart's copy of crds/, and its version: both are checked by tests/charts
	rm -f charts/tallystick/files/crds/*.yaml && cp crds/*.yaml charts/tallystick/files/crds/
	sed -i 's/^\(version\|appVersion\): .*/\1: $(VERSION)/' charts/tallystick/Chart.yaml

VERSION ?= $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
PIP_SETTINGS := PIP_INDEX_URL PIP_EXTRA_INDEX_URL PIP_TRUSTED_HOST

.PHONY: wheel wheels images
wheel: build ## dist/tallystick-*.whl, with the kernel in it, and dist/tallystick_client-*.whl
	rm -rf build/lib build/lib.* build/bdist.* client/build dist/tallystick-*.whl dist/tallystick_client-*.whl
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist . ./client

# Linked by zig against the symbols of an old glibc, so that they run where that one is: Debian 11, Ubuntu 20.04 and newer.
# requirements/wheels.py reads the tags and the symbols that the kernel needs.
GLIBC := 2_31
CROSS = PYO3_NO_PYTHON=1 PYO3_CROSS=1 PYO3_CROSS_PYTHON_VERSION=3.11 CARGO=cargo-zigbuild CARGO_BUILD_TARGET=$1-unknown-linux-gnu \
    _PYTHON_HOST_PLATFORM=linux-$1 CARGO_ZIGBUILD_ZIG_PATH=$(CURDIR)/$(ZIG) PATH=$(CURDIR)/build/cross/bin:$$PATH \
    $(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist/release \
    --config-settings=--build-option=--plat-name=manylinux_$(GLIBC)_$1 .
ZIG = $(shell ls -d build/cross/lib/python3*/site-packages/ziglang/zig)

wheels: build build/cross/.built ## dist/release: wheels for Linux on x86_64 and aarch64, and the client's; cross-built, which takes ten minutes
	rm -rf build/lib build/lib.* build/bdist.* client/build dist/release
	rustup target add x86_64-unknown-linux-gnu aarch64-unknown-linux-gnu
	$(call CROSS,x86_64)
	rm -rf build/lib build/lib.* build/bdist.*
	$(call CROSS,aarch64)
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist/release ./client
	$(BIN)/python requirements/wheels.py dist/release/*.whl

build/cross/.built: # the linker, as a Python package
	$(PYTHON) -m venv build/cross || python3 -m venv build/cross
	build/cross/bin/python -m pip install --quiet 'ziglang>=0.13' 'cargo-zigbuild>=0.20'
	touch $@

images: wheel ## tallystick-node, -operator and -jobs as Docker images: VERSION=x (a tag), TARGETS=..., DOCKER_BUILD_ARGS=...
	for target in $(or $(TARGETS),node operator jobs); do \
	    docker build --target $$target --tag tallystick-$$target:$(VERSION) --build-arg VERSION=$(VERSION) $(DOCKER_BUILD_ARGS) \
	        $(foreach name,$(PIP_SETTINGS),$(if $($(name)),--build-arg $(name))) . || exit 1; \
	done

clean: ## remove what the build made
	rm -rf $(VENV) build dist store/kernel/target benchmarks/loadgen/target store/_kernel*.so *.egg-info
