"""From one release of the chart to the next, and back: the operator first, then it brings the clusters to its image."""

from __future__ import annotations

from harness.brokers import Brokers
from harness.lab import Lab
from harness.load import loaded
from harness.release import NEXT_FIELD, package_next
from harness.watching import watching

_ROLL_S = 360
_DEFINITION = "apis/apiextensions.k8s.io/v1/customresourcedefinitions/brokerclusters.tallystick.dev"


def _knows_the_new_field(lab: Lab) -> bool:
    """Whether the definition is that of the next release."""
    (version,) = lab.api.call("GET", _DEFINITION)["spec"]["versions"]
    return NEXT_FIELD in version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]


def test_to_the_next_release_and_back(orders: Brokers, lab: Lab) -> None:
    """Under load: nothing is lost, and no send fails. Clusters that name no image follow the release both ways, and
    so do the definitions."""
    orders.change({"image": None})
    orders.whole()
    assert set(orders.images().values()) == {lab.images.node} and not _knows_the_new_field(lab)
    revision, chart = lab.release.revision(), package_next(lab.images)
    with loaded(orders, lab.images.node) as load:
        with watching(orders) as watched:
            lab.release.install({"image": {}}, chart=chart)
            assert lab.release.pods()[0]["spec"]["containers"][0]["image"].endswith(lab.images.next_tag)
            orders.rolled(lab.images.next_node, _ROLL_S)
            assert _knows_the_new_field(lab)
            orders.change({NEXT_FIELD: "new"})
            assert orders.get()["spec"][NEXT_FIELD] == "new"

            lab.release.roll_back(revision)
            orders.rolled(lab.images.node, _ROLL_S)
            assert not _knows_the_new_field(lab)
        load.finish()
        verdict = load.verdict()
    lab.goals.lost.add(verdict.lost)
    lab.goals.failed.add(load.failed())
    lab.goals.planned_switch.add(*load.planned_outages_ms())
    assert watched.most_unready <= 1, watched.unready
    assert verdict.problems == []
    assert load.failed() == 0, load.history.reasons()


def test_a_field_of_the_next_release_is_dropped_and_changes_nothing(orders: Brokers) -> None:
    """After the way back the definition no longer has it: the next write removes it, and no pod is restarted."""
    uids = {node: pod["metadata"]["uid"] for node, pod in orders.pods().items()}
    orders.change({"config": {}})
    assert NEXT_FIELD not in orders.get()["spec"]
    orders.whole()
    assert {node: pod["metadata"]["uid"] for node, pod in orders.pods().items()} == uids
