"""Which alerts fire: none for a healthy group of three real members, and the right ones without some of them.

The rules are those of the template, with the values of the chart. `for` is left out: an alert counts as firing when its
expression has a series.
"""

import asyncio
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from group_lab import GroupLab, until
from prometheus_client.parser import text_string_to_metric_families
from promql import Series, Vector, evaluate, series

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "tallystick"
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())["monitoring"]["prometheusRule"]
OPERATOR = {"job": "tallystick", "namespace": "system"}
NOW_S = 100_000.0
HEALTHY_OPERATOR = [
    series("up", OPERATOR, (NOW_S, 1)),
    series("tallystick_operator_leads", OPERATOR, (NOW_S, 1)),
    series("tallystick_operator_clusters", OPERATOR | {"phase": "Ready"}, (NOW_S, 1)),
    series(
        "tallystick_operator_groups_without_leader",
        OPERATOR | {"cluster_namespace": "shop", "cluster": "orders"},
        (NOW_S, 0),
    ),
]


def rules() -> list[tuple[str, str, str]]:
    """Returns (`alert` or `record`, name, expression) of each rule, in their order, with the values of the chart."""
    template = (CHART / "templates" / "prometheusrule.yaml").read_text()
    operator = ",".join(f'{label}="{value}"' for label, value in OPERATOR.items())
    text = template.replace("{{- $operator -}}", operator)
    text = re.sub(r"\{\{ (?:int64 )?\.(\w+) \}\}", lambda match: str(VALUES[match[1]]), text)
    lines = [line for line in text.splitlines() if not re.match(r"\s*\{\{-? .* -?\}\}$|\{\{-", line)]
    found = yaml.safe_load("\n".join(lines[lines.index("spec:") :]))["spec"]["groups"]
    each_rule = [rule for group in found for rule in group["rules"]]
    return [(kind, rule[kind], rule["expr"]) for rule in each_rule for kind in ("alert", "record") if kind in rule]


def firing(found: Iterable[Series]) -> dict[str, Vector]:
    """Returns the alerts that have a series at `NOW_S`, with their series."""
    known, fires = list(found), dict[str, Vector]()
    for kind, name, expression in rules():
        value = evaluate(expression, known, NOW_S)
        assert not isinstance(value, float), name
        if kind == "record":
            known += [Series(name, labels, ((NOW_S, number),)) for labels, number in value.items()]
        elif value:
            fires[name] = value
    return fires


def scraped(text: str, labels: Mapping[str, str]) -> list[Series]:
    """Returns the series of a page of metrics, as they were for an hour. `labels`: those that Prometheus adds."""
    return [
        series(
            sample.name, {**labels, **sample.labels}, *((NOW_S - 60 * ago, sample.value) for ago in range(60, -1, -1))
        )
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    ]


async def pages(lab: GroupLab) -> list[Series]:
    """Returns what Prometheus has of the members that run, and of the operator."""
    found = list(HEALTHY_OPERATOR)
    for number, process in lab.members.items():
        labels = {"namespace": "shop", "pod": f"orders-0-{number}-0", "job": "tallystick-broker"}
        status, text = await asyncio.to_thread(process.get, "/metrics")
        assert status == 200
        found += [*scraped(text, labels), series("up", labels, (NOW_S, 1))]
    return found


@pytest.mark.process
async def test_no_alert_fires_for_a_healthy_group_and_the_right_ones_without_a_member(tmp_path: Path) -> None:
    """As in Kubernetes, `dLegerPeers` names two processes that do not exist."""
    with GroupLab(tmp_path, reserved=2) as lab:
        leader = await lab.leader()
        await lab.ready()
        assert firing(await pages(lab)) == {}
        gone = (leader + 1) % 3
        lab.kill(gone)

        async def noticed() -> bool | None:
            return "TallystickMemberUnreachable" in firing(await pages(lab)) or None

        await until("the leader sees that a member is gone", noticed)
        found = firing(await pages(lab))
        assert found.keys() == {"TallystickMemberUnreachable", "TallystickQuorumAtRisk"}
        assert [dict(labels)["peer"] for labels in found["TallystickMemberUnreachable"]] == [f"n{gone}"]
        lab.kill(({0, 1, 2} - {leader, gone}).pop())

        async def lost() -> bool | None:
            return "TallystickGroupWithoutLeader" in firing(await pages(lab)) or None

        await until("the last member no longer leads", lost)
        assert firing(await pages(lab)).keys() == {"TallystickGroupWithoutLeader", "TallystickQuorumAtRisk"}


BROKER = {"namespace": "shop", "pod": "orders-0-0-0", "cluster": "orders", "node_id": "orders-0"}


@pytest.mark.parametrize(
    ("leads", "writable", "fires"), [(1, 0, True), (1, 1, False), (0, 0, False), (None, 0, True), (None, 1, False)]
)
def test_only_a_broker_that_should_accept_messages_is_not_writable(
    leads: int | None, writable: int, fires: bool
) -> None:
    found = [series("rocketmq_storage_writable", BROKER, (NOW_S, writable))]
    if leads is not None:
        found.append(series("tally_group_leads", BROKER | {"pod": "orders-0-0-0"}, (NOW_S, leads)))
    assert ("TallystickNotWritable" in firing(found)) is fires


def counter(name: str, minutes: Mapping[range, float], **labels: str) -> Series:
    """Returns a counter that grew by so much in each minute of these ranges, counted back from now."""
    value, samples = 0.0, [(NOW_S - 60 * 400, 0.0)]
    for ago in range(399, -1, -1):
        value += sum(rate for span, rate in minutes.items() if ago in span)
        samples.append((NOW_S - 60 * ago, value))
    return series(name, BROKER | labels, *samples)


def sends(failed: Mapping[range, float], slow: Mapping[range, float] | None = None) -> list[Series]:
    """Returns 1000 acknowledged sends a minute, of which so many were slow, and so many failed ones."""
    always = {range(400): 1000.0}
    fast = {range(400): 1000.0} | {span: -count for span, count in (slow or {}).items()}
    return [
        counter("rocketmq_send_failures_total", failed),
        counter("rocketmq_storage_put_seconds_count", always),
        counter("rocketmq_storage_put_seconds_bucket", always, le="+Inf"),
        counter("rocketmq_storage_put_seconds_bucket", fast, le=str(VALUES["sendLatencySeconds"])),
    ]


NEVER, SIX_HOURS = dict[range, float](), range(361)


@pytest.mark.parametrize(
    ("failed", "fires"),
    [
        (NEVER, set()),
        ({SIX_HOURS: 0.9}, set()),  # within the objective of 0.1 %
        ({SIX_HOURS: 7}, {"TallystickSendFailuresSlow"}),
        ({range(61): 20}, {"TallystickSendFailuresFast"}),
        ({range(2): 500}, {"TallystickSendFailuresFast"}),  # an outage of two minutes is 1.6 % of an hour
        ({range(40, 60): 500}, set()),  # it is over
        ({SIX_HOURS: 20}, {"TallystickSendFailuresFast", "TallystickSendFailuresSlow"}),
        ({SIX_HOURS: 10_000}, {"TallystickSendFailuresFast", "TallystickSendFailuresSlow"}),
    ],
)
def test_failed_sends_use_up_what_the_objective_permits(failed: dict[range, float], fires: set[str]) -> None:
    assert {name for name in firing(sends(failed)) if "Send" in name} == fires


@pytest.mark.parametrize(
    ("slow", "fires"),
    [
        (NEVER, set()),
        ({range(399): 9}, set()),  # within the objective of 1 %
        ({range(361): 70}, {"TallystickSlowSendsSlow"}),
        ({range(61): 160}, {"TallystickSlowSendsFast"}),
        ({range(361): 160}, {"TallystickSlowSendsFast", "TallystickSlowSendsSlow"}),
    ],
)
def test_slow_sends_use_up_what_the_objective_permits(slow: dict[range, float], fires: set[str]) -> None:
    assert {name for name in firing(sends(NEVER, slow)) if "Send" in name} == fires


@pytest.mark.parametrize(("count", "fires"), [(2, False), (30, True)])
def test_a_few_sends_of_an_idle_group_are_no_reason_to_call_an_engineer(count: int, fires: bool) -> None:
    """A send a minute; in the last minutes some failed, and as many were slow."""
    found = [
        counter("rocketmq_send_failures_total", {range(count): 1}),
        counter("rocketmq_storage_put_seconds_count", {range(400): 1}),
        counter("rocketmq_storage_put_seconds_bucket", {range(count, 400): 1}, le=str(VALUES["sendLatencySeconds"])),
    ]
    expected = {"TallystickSendFailuresFast", "TallystickSlowSendsFast"}
    assert (expected <= firing(found).keys()) is fires
    assert fires or not {name for name in firing(found) if "Send" in name}


def test_without_sends_no_objective_is_missed() -> None:
    nothing = [counter(each.name, NEVER, **dict(each.labels)) for each in sends(NEVER)]
    assert {name for name in firing(nothing) if "Send" in name} == set()


@pytest.mark.parametrize(("slow", "fires"), [(0.5, False), (2.0, True)])
def test_flushes_are_slow_if_more_than_one_of_a_hundred_is(slow: float, fires: bool) -> None:
    limits = {"0.25": 100 - slow, "0.5": 100 - slow, "1.0": 100.0, "+Inf": 100.0}
    found = [counter("rocketmq_storage_flush_seconds_bucket", {range(400): rate}, le=le) for le, rate in limits.items()]
    assert ("TallystickFlushSlow" in firing(found)) is fires


LEADS = series("tally_group_leads", BROKER, (NOW_S, 1))
OF_GROUP = {"topic": "created", "consumer_group": "billing"}


@pytest.mark.parametrize(
    ("age_s", "connected_h", "fires"),
    [
        (3601, [0], True),
        (3599, [0], False),
        (3601, [20], True),  # the consumers are down
        (3601, [30], False),  # nobody uses the group now
        (3601, [], False),
    ],
)
def test_a_group_in_use_is_late_however_few_messages_wait(age_s: int, connected_h: list[int], fires: bool) -> None:
    lag = "rocketmq_consumer_lag_latency_milliseconds"
    found = [LEADS, series(lag, BROKER | OF_GROUP, (NOW_S, age_s * 1000.0))]
    found.append(series(lag, BROKER | OF_GROUP | {"pod": "orders-0-1-0"}, (NOW_S, 1e9)))  # a follower's view
    for hours in connected_h:
        labels = BROKER | {"consumer_group": "billing"}
        found.append(series("rocketmq_consumer_connections", labels, (NOW_S - hours * 3600, 1)))
    alerts = firing(found)
    assert ("TallystickConsumerLate" in alerts) is fires
    assert [value for _, value in alerts.get("TallystickConsumerLate", {}).items()] == [age_s] * fires


@pytest.mark.parametrize(
    ("minutes", "fires"), [(NEVER, False), ({range(10, 11): 1.0}, True), ({range(20, 300): 5.0}, False)]
)
def test_dead_letters_fire_while_there_are_new_ones(minutes: dict[range, float], fires: bool) -> None:
    found = [counter("rocketmq_send_to_dlq_messages_total", minutes, **OF_GROUP)]
    assert ("TallystickDeadLetters" in firing(found)) is fires


@pytest.mark.parametrize(("age_s", "fires"), [(0, False), (600, False), (601, True)])
def test_an_old_half_message_fires(age_s: float, fires: bool) -> None:
    found = [series("rocketmq_half_message_age_seconds", BROKER, (NOW_S, age_s))]
    assert ("TallystickHalfMessagesOld" in firing(found)) is fires


OF_CLUSTER = OPERATOR | {"cluster_namespace": "shop", "cluster": "orders"}


def of_operator(name: str, value: float, **labels: str) -> Series:
    """Returns a series of the operator about the cluster `orders`."""
    return series(f"tallystick_operator_{name}", OF_CLUSTER | labels, (NOW_S, value))


def test_a_failed_backup_fires_until_it_is_deleted() -> None:
    assert firing([*HEALTHY_OPERATOR, of_operator("failed_backups", 0)]) == {}
    assert set(firing([*HEALTHY_OPERATOR, of_operator("failed_backups", 1)])) == {"TallystickBackupFailed"}


@pytest.mark.parametrize(
    ("success", "required", "fires"),
    [
        (NOW_S - 90_000, NOW_S - 86_400, True),  # last night's did not succeed, and tonight's is due
        (NOW_S - 80_000, NOW_S - 86_400, False),
        (NOW_S - 80_000, NOW_S - 3_600, True),  # the same age is too old for a schedule of each hour
        (0, NOW_S - 60, True),  # it has never succeeded
        (0, None, False),  # it is suspended, or new
    ],
)
def test_a_backup_is_too_old_by_the_period_of_its_own_schedule(
    success: float, required: float | None, fires: bool
) -> None:
    found = [*HEALTHY_OPERATOR, of_operator("schedule_last_success_timestamp_seconds", success, schedule="nightly")]
    found.append(of_operator("schedule_last_success_timestamp_seconds", NOW_S, schedule="other"))
    if required is not None:
        found.append(of_operator("schedule_required_timestamp_seconds", required, schedule="nightly"))
    alerts = firing(found)
    assert alerts.keys() == ({"TallystickBackupTooOld"} if fires else set())
    assert [dict(labels)["schedule"] for labels in alerts.get("TallystickBackupTooOld", ())] == ["nightly"] * fires


def group_of(voters: int, away: Iterable[int]) -> list[Series]:
    """Returns what the leader of a group, n0, says while members are away."""
    gone = set(away)
    found = [
        series(name, BROKER, (NOW_S, value))
        for name, value in (
            ("tally_group_leads", 1),
            ("tally_group_voters", voters),
            ("tally_group_in_sync", voters - len(gone)),
        )
    ]
    for peer in range(1, voters):
        found.append(series("tally_group_connected", BROKER | {"peer": f"n{peer}"}, (NOW_S, float(peer not in gone))))
    return [*HEALTHY_OPERATOR, *found]


def stopped(*peers: int, reason: str = "Fenced", **labels: str) -> list[Series]:
    about = {"node_id": "orders-0", "reason": reason} | labels
    return [of_operator("stopped_members", 1, **{"peer": f"n{peer}", **about}) for peer in peers]


ABSENT = {"TallystickMemberUnreachable", "TallystickQuorumAtRisk"}


@pytest.mark.parametrize(
    ("voters", "away", "found", "fires", "unreachable"),
    [
        (3, [1], [], ABSENT, [1]),
        (3, [1], stopped(1), {"TallystickMemberFenced"}, []),
        (3, [1], stopped(1, reason="Hibernating"), set(), []),
        (3, [1], stopped(2), {"TallystickMemberUnreachable", "TallystickMemberFenced"}, [1]),
        (3, [1], stopped(1, node_id="orders-1"), {*ABSENT, "TallystickMemberFenced"}, [1]),
        (3, [1], stopped(1, cluster_namespace="other"), {*ABSENT, "TallystickMemberFenced"}, [1]),
        (5, [1, 2], stopped(1, 2), {"TallystickMemberFenced"}, []),
        (5, [1, 2], stopped(1), {"TallystickMemberUnreachable", "TallystickMemberFenced"}, [2]),
        (5, [1, 2, 3], stopped(1), {*ABSENT, "TallystickMemberFenced"}, [2, 3]),
    ],
)
def test_a_planned_stop_of_a_member_is_no_loss_and_a_loss_beside_it_is_one(
    voters: int, away: list[int], found: list[Series], fires: set[str], unreachable: list[int]
) -> None:
    alerts = firing([*group_of(voters, away), *found])
    assert alerts.keys() == fires
    peers = {dict(labels)["peer"] for labels in alerts.get("TallystickMemberUnreachable", ())}
    assert peers == {f"n{number}" for number in unreachable}


def test_a_cluster_is_degraded_if_it_needs_attention() -> None:
    planned = series("tallystick_operator_clusters", OPERATOR | {"phase": "Degraded"}, (NOW_S, 1))
    assert firing([*HEALTHY_OPERATOR, planned]) == {}
    alerts = firing([*HEALTHY_OPERATOR, of_operator("unplanned_clusters", 1, phase="Degraded")])
    assert alerts.keys() == {"TallystickClusterDegraded"}
