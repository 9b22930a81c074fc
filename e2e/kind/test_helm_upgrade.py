"""From one release of the chart to the next: the operator first, then it brings the clusters to the new image."""

from __future__ import annotations

from harness.brokers import Brokers
from harness.lab import Lab
from harness.load import loaded
from harness.release import package_next
from harness.watching import watching

_ROLL_S = 360


def test_to_the_next_release(orders: Brokers, lab: Lab) -> None:
    """Under load: nothing is lost, no send fails, and clusters that name no image run the new one in the end."""
    orders.change({"image": None})
    orders.whole()
    assert set(orders.images().values()) == {lab.images.node}
    chart = package_next(lab.images)
    with loaded(orders, lab.images.node) as load:
        with watching(orders) as watched:
            lab.release.install({"image": {}}, chart=chart)
            assert lab.release.pods()[0]["spec"]["containers"][0]["image"].endswith(lab.images.next_tag)

            orders.rolled(lab.images.next_node, _ROLL_S)
        load.finish()
        verdict = load.verdict()
    lab.goals.lost.add(verdict.lost)
    lab.goals.failed.add(load.failed())
    lab.goals.planned_switch.add(*load.planned_outages_ms())
    assert watched.most_unready <= 1, watched.unready
    assert verdict.problems == []
    assert load.failed() == 0, load.history.reasons()
