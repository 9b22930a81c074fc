"""One kind cluster for a run, the chart in it, and a BrokerCluster that most tests share.

The order of the files is the order of a cluster's life: what installs it comes first, what takes it away last. Each
file can be run alone: what it needs is made.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from harness import evidence, images, java, pods, recoveries, slo
from harness.api import proxied
from harness.brokers import Brokers
from harness.goals import Goals
from harness.java import Java
from harness.kind import kind_cluster
from harness.lab import NAME_SERVER_PORT, ORDERS, SHOP, Lab
from harness.places import WORK
from harness.pods import Shell
from harness.release import Release
from harness.shell import kubectl
from lab.peer import PeerMissingError, need_peer

ORDER = (
    "install",
    "crd_rules",
    "topics",
    "produce_consume",
    "failover",
    "rolling_upgrade",
    "scale",
    "backup",
    "scheduled_backup",
    "stopping",
    "recovery",
    "lost_majority",
    "adoption",
    "store_jobs",
    "spark",
    "claim_lost",
    "objects_deleted",
    "storage_change",
    "disk_full",
    "load_balancer",
    "network_policy",
    "security",
    "drain",
    "operator_killed",
    "two_operators",
    "namespace_deleted",
    "helm_upgrade",
    "uninstall",
    "node_lost",
    "slo",
    "goals",
)
_goals = Goals()
_slo_rows: list[slo.Row] = []
_recoveries: list[recoveries.Recovery] = []
_failed = pytest.StashKey[bool]()


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    with kind_cluster() as kind, proxied() as api:
        built = images.build(kind)
        yield Lab(kind, api, built, Release(api, built), _goals, _recoveries)


@pytest.fixture(scope="session")
def installed(lab: Lab) -> Lab:
    """The release as most tests have it."""
    lab.release.install()
    if lab.kind.reused:  # what an earlier run has left there
        kubectl("delete", "namespace", "-l", "e2e=true", "--timeout=180s", timeout_s=200)
    return lab


@pytest.fixture(scope="session")
def _orders(installed: Lab) -> Brokers:
    brokers = Brokers(installed.api, SHOP, ORDERS)
    if installed.api.find("namespaces", "", SHOP) is None:
        installed.namespace(SHOP)
    brokers.apply({"listeners": {"external": {"type": "NodePort", "nameServerNodePort": NAME_SERVER_PORT}}})
    return brokers


@pytest.fixture
def orders(_orders: Brokers) -> Brokers:
    """A group of three with an external listener, whole at the begin of each test."""
    _orders.whole()
    return _orders


@pytest.fixture(scope="session")
def shell(_orders: Brokers, lab: Lab) -> Shell:
    """Where the command `tally` is run beside that cluster."""
    return pods.shell(lab.api, _orders.namespace, lab.images.node, _orders.name_servers())


@pytest.fixture(scope="session")
def java_client(lab: Lab) -> Java:
    """Skipped by name where the peer lab is not."""
    try:
        need_peer()
    except PeerMissingError as error:
        pytest.skip(str(error))
    return java.build(lab.kind)


@pytest.fixture
def namespace(installed: Lab, request: pytest.FixtureRequest) -> Iterator[str]:
    """One of the test's own, which goes afterwards."""
    name = "e2e-" + re.sub(r"[^a-z0-9]+", "-", request.node.name.removeprefix("test_").lower())[:40].strip("-")
    installed.namespace(name)
    yield name
    if not request.node.stash.get(_failed, False):
        kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture
def slo_rows() -> list[slo.Row]:
    """The rows of the table at the end of the run."""
    return _slo_rows


@pytest.fixture(autouse=True)
def _noted(request: pytest.FixtureRequest) -> Iterator[None]:
    """After each test: the operator's memory, and what can be learned from one that failed."""
    yield
    if "lab" not in request.fixturenames:
        return
    lab: Lab = request.getfixturevalue("lab")
    if request.node.stash.get(_failed, False):
        ours = kubectl("get", "namespaces", "-l", "e2e=true", "-o", "name").split()
        evidence.collect(WORK / request.node.name, [each.removeprefix("namespace/") for each in ours])
    elif "installed" in request.fixturenames:
        lab.release.note_memory()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    outcome: Any = yield
    if outcome.get_result().failed:
        item.stash[_failed] = True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    names = {f"test_{name}.py": place for place, name in enumerate(ORDER)}
    items.sort(key=lambda item: names[item.path.name])  # a file that ORDER does not know is a KeyError


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if any(row.outages_s for row in _slo_rows):
        terminalreporter.section("changes of leader")
        terminalreporter.write_line(f"{slo.machine()}\n\n{slo.table(_slo_rows)}")
        slo.write(_slo_rows, WORK / "slo.json")
    if _recoveries:
        terminalreporter.section("recoveries")
        terminalreporter.write_line(f"{slo.machine()}\n\n{recoveries.table(_recoveries)}")
        recoveries.write(_recoveries, WORK / "recoveries.json")
    if any(goal.samples for goal in _goals.all()):
        terminalreporter.section("goals")
        terminalreporter.write_line(_goals.table())
        _goals.write(WORK / "goals.json")


def pytest_configure() -> None:
    WORK.mkdir(parents=True, exist_ok=True)
    missing = [tool for tool in ("docker", "kind", "helm", "kubectl") if shutil.which(tool) is None]
    if missing:
        pytest.exit(f"not on PATH: {', '.join(missing)}", returncode=2)
