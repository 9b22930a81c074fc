"""Which volumes are read, and what is refused: a table over what is there when a run starts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tallystick.operator.core.members import Refusal
from tallystick.operator.jobs.sources import Choice, Scene, choose
from tallystick.operator.jobs.spec import Job, JobSpecError

Json = dict[str, Any]


def job(**spec: Any) -> Job:
    metadata = {"namespace": "shop", "name": "nightly", "uid": "u"}
    return Job.parse({"metadata": metadata, "spec": {"clusterName": "orders", "job": "stats"} | spec})


def node(group: int, member: int, phase: str = "Ready", role: str = "Follower", **metadata: Any) -> Json:
    spec = {"clusterName": "orders", "group": group, "member": member}
    return {"metadata": metadata, "spec": spec, "status": {"phase": phase, "role": role}}


def claim(
    formed: bool = True, phase: str = "Bound", modes: tuple[str, ...] = ("ReadWriteOnce",), **metadata: Any
) -> Json:
    annotations = {"tallystick.dev/formed": "true"} if formed else {}
    metadata = {"annotations": annotations} | metadata
    return {"metadata": metadata, "spec": {"accessModes": list(modes)}, "status": {"phase": phase}}


def scene(groups: int = 1, members: int = 3, **more: Any) -> Scene:
    """Everything well: n0 leads, the others follow."""
    names = [(group, member) for group in range(groups) for member in range(members)]
    nodes = {f"orders-{g}-{m}": node(g, m, role="Leader" if m == 0 else "Follower") for g, m in names}
    claims = {f"data-orders-{g}-{m}": claim() for g, m in names}
    nodes |= more.pop("nodes", {})
    claims |= more.pop("claims", {})
    for name in more.pop("without", ()):
        nodes.pop(name, None), claims.pop(name, None)
    return Scene(more.pop("cluster", {"metadata": {}, "spec": {"groups": groups}}), nodes, claims, **more)


def chosen(job: Job, scene: Scene) -> list[str]:
    found = choose(job, scene)
    assert isinstance(found, Choice), found
    return [source.node for source in found.sources]


def refused(job: Job, scene: Scene) -> str:
    found = choose(job, scene)
    assert isinstance(found, Refusal), found
    assert found.message
    return found.reason


def test_an_audit_reads_all_members_and_the_others_one_follower_a_group() -> None:
    assert chosen(job(job="audit"), scene(2)) == [f"orders-{group}-{member}" for group in (0, 1) for member in range(3)]
    assert chosen(job(), scene(2)) == ["orders-0-1", "orders-1-1"]
    assert chosen(job(groups=[1]), scene(2)) == ["orders-1-1"]


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ({}, "orders-0-1"),
        ({"orders-0-1": node(0, 1, "CatchingUp")}, "orders-0-2"),
        ({"orders-0-0": node(0, 0), "orders-0-2": node(0, 2, role="Leader")}, "orders-0-0"),
        ({"orders-0-1": node(0, 1, "CatchingUp"), "orders-0-2": node(0, 2, "Lost")}, "orders-0-0"),
        ({"orders-0-1": node(0, 1, role="Learner"), "orders-0-2": node(0, 2, role="None")}, "orders-0-0"),
        (
            {
                "orders-0-0": node(0, 0, "Pending", "None"),
                "orders-0-1": node(0, 1, "Pending", "None"),
                "orders-0-2": node(0, 2, "Starting"),
            },
            "orders-0-2",
        ),
        ({"orders-0-1": node(0, 1, deletionTimestamp="2026-01-01T00:00:00Z")}, "orders-0-2"),
    ],
)
def test_who_is_read(nodes: dict[str, Json], expected: str) -> None:
    assert chosen(job(), scene(nodes=nodes)) == [expected]


def test_a_follower_whose_volume_cannot_be_read_is_passed_over() -> None:
    assert chosen(job(), scene(claims={"data-orders-0-1": claim(phase="Lost")})) == ["orders-0-2"]
    assert chosen(job(), scene(claims={"data-orders-0-1": claim(formed=False)})) == ["orders-0-2"]
    without = scene()
    del without.claims["data-orders-0-1"]  # type: ignore[attr-defined]
    assert chosen(job(), without) == ["orders-0-2"]


OWN = {"tallystick.dev/cluster": "other", "app.kubernetes.io/managed-by": "tallystick-operator"}
TO_CLAIM = {"job": "export", "output": {"claim": {"name": "lake"}}}


@pytest.mark.parametrize(
    ("spec", "there", "reason"),
    [
        ({}, {"cluster": None}, "ClusterNotFound"),
        ({}, {"cluster": {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}}, "ClusterDeleting"),
        ({"groups": [0, 1]}, {}, "GroupNotFound"),
        ({}, {"without": [f"orders-0-{m}" for m in range(3)]}, "GroupNotFormed"),
        ({}, {"claims": {f"data-orders-0-{m}": claim(formed=False) for m in range(3)}}, "GroupNotFormed"),
        ({}, {"claims": {f"data-orders-0-{m}": claim(phase="Pending") for m in range(3)}}, "ClaimMissing"),
        ({"job": "audit"}, {"claims": {"data-orders-0-2": claim(phase="Pending")}}, "ClaimMissing"),
        ({"job": "audit"}, {"claims": {"data-orders-0-2": claim(deletionTimestamp="x")}}, "ClaimMissing"),
        (TO_CLAIM, {}, "OutputClaimMissing"),
        (TO_CLAIM, {"output": claim(labels=OWN)}, "OutputIsStore"),
    ],
)
def test_what_cannot_start_says_why(spec: Json, there: Json, reason: str) -> None:
    assert refused(job(**spec), scene(**there)) == reason


def test_an_audit_does_not_leave_a_member_out() -> None:
    """Two of three compared would be told as "clean", and one that was lost is what audits are for."""
    lacking = scene()
    del lacking.claims["data-orders-0-2"]  # type: ignore[attr-defined]
    assert refused(job(job="audit"), lacking) == "ClaimMissing"
    assert chosen(job(), lacking) == ["orders-0-1"]


# -- workers -----------------------------------------------------------------------------------------------------------

ONE_POD = claim(modes=("ReadWriteOncePod",))


def workers(job: Job, scene: Scene) -> dict[str, tuple[tuple[str, ...], str | None]]:
    found = choose(job, scene)
    assert isinstance(found, Choice)
    return {source.node[-1]: (source.hosts, source.claim) for source in found.sources}


def test_a_worker_beside_each_volume() -> None:
    assert workers(job(job="audit"), scene()) == {
        str(n): ((f"w-orders-0-{n}.nightly-job",), f"data-orders-0-{n}") for n in range(3)
    }


def test_no_more_workers_than_are_asked_for() -> None:
    found = workers(job(job="audit", executor={"instances": 2}), scene())
    assert [len(hosts) for hosts, _ in found.values()] == [1, 1, 0]
    assert found["2"] == ((), None)


def test_a_volume_that_admits_one_pod_gets_no_worker_and_uses_up_none() -> None:
    found = workers(job(job="audit", executor={"instances": 2}), scene(claims={"data-orders-0-0": ONE_POD}))
    assert [len(hosts) for hosts, _ in found.values()] == [0, 1, 1]


def test_a_run_needs_at_least_one_worker() -> None:
    found = workers(job(job="audit"), scene(claims={f"data-orders-0-{n}": ONE_POD for n in range(3)}))
    assert found["0"] == (("w-orders-0-0.nightly-job",), None)
    assert found["1"] == found["2"] == ((), None)


def test_several_workers_beside_each_volume_that_several_pods_can_mount() -> None:
    spec = {"executor": {"instances": 2, "perVolume": 3}}
    found = workers(job(job="audit", **spec), scene(claims={"data-orders-0-0": ONE_POD}))
    hosts = [f"w-orders-0-1{suffix}.nightly-job" for suffix in ("", "-2", "-3")]
    assert found["1"] == (tuple(hosts), "data-orders-0-1") and len(found["2"][0]) == 3 and found["0"] == ((), None)


PROGRAM = {"job": "program", "program": {"file": "/opt/job.py"}}


def test_a_program_reads_all_ready_followers() -> None:
    assert workers(job(**PROGRAM), scene()).keys() == {"1", "2"}, "the leader is spared"
    lagging = scene(nodes={"orders-0-1": node(0, 1, "CatchingUp")})
    assert workers(job(**PROGRAM), lagging).keys() == {"2"}
    alone = scene(nodes={f"orders-0-{n}": node(0, n, "CatchingUp") for n in (1, 2)})
    assert workers(job(**PROGRAM), alone).keys() == {"0"}


@pytest.mark.parametrize(
    ("config_map", "told"),
    [
        (None, "ConfigMap 'a' of the program does not exist"),
        ({"data": {"other.py": ""}}, "ConfigMap 'a' has no key 'job.py'"),
        ({}, "ConfigMap 'a' has no key 'job.py'"),
        ({"data": {"job.py": ""}}, None),
        ({"binaryData": {"job.py": ""}}, None),
    ],
)
def test_a_program_that_is_not_there_is_waited_for(config_map: Json | None, told: str | None) -> None:
    spec = {"job": "program", "program": {"configMap": {"name": "a", "key": "job.py"}}}
    found = choose(job(**spec), replace(scene(), program=config_map))
    assert found == Refusal("ProgramMissing", told) if told else isinstance(found, Choice)


@pytest.mark.parametrize(("modes", "shared"), [(("ReadWriteOnce",), False), (("ReadWriteOnce", "ReadWriteMany"), True)])
def test_an_output_that_can_be_mounted_everywhere_is_shared(modes: tuple[str, ...], shared: bool) -> None:
    found = choose(job(**TO_CLAIM), scene(output=claim(modes=modes)))
    assert isinstance(found, Choice) and found.shared is shared


# -- backups -----------------------------------------------------------------------------------------------------------

S3 = {"s3": {"bucket": "b", "prefix": "p", "credentialsSecret": "keys"}}


def backup(
    phase: str = "Completed", cluster: str = "orders", groups: tuple[int, ...] = (0, 1), **metadata: Any
) -> Json:
    rows = [{"group": n, "address": f"s3://b/p/orders/orders-{n}/20261126T000000Z-0{n}"} for n in groups]
    spec = {"clusterName": cluster, "destination": S3, "encryption": {"keySecret": {"name": "key"}}}
    return {"metadata": metadata, "spec": spec, "status": {"phase": phase, "groups": rows}}


def of_backup(**spec: Any) -> Job:
    return job(**({"source": {"backupName": "nightly"}} | spec))


def addresses(job: Job, scene: Scene) -> dict[str, tuple[str, int]]:
    found = choose(job, scene)
    assert isinstance(found, Choice), found
    assert all(source.claim is None for source in found.sources)
    return {source.node: (source.address, len(source.hosts)) for source in found.sources}


def test_a_backup_is_read_also_if_its_cluster_is_gone() -> None:
    without = replace(scene(), cluster=None, nodes={}, claims={}, backup=backup())
    assert addresses(of_backup(), without) == {
        "orders-0": ("s3://b/p/orders/orders-0/20261126T000000Z-00", 1),
        "orders-1": ("s3://b/p/orders/orders-1/20261126T000000Z-01", 1),
    }
    assert addresses(of_backup(groups=[1], executor={"perVolume": 2}), without)["orders-1"][1] == 2
    assert [hosts for _, hosts in addresses(of_backup(executor={"instances": 1}), without).values()] == [1, 0]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (None, "BackupMissing"),
        (backup(deletionTimestamp="x"), "BackupMissing"),
        (backup("Running"), "BackupNotCompleted"),
        (backup("Failed"), "BackupNotCompleted"),
        (backup(cluster="other"), "BackupMissing"),
        (backup(groups=(0,)), "GroupNotFound"),
    ],
)
def test_a_backup_that_cannot_be_read_is_waited_for(body: Json | None, reason: str) -> None:
    assert refused(of_backup(groups=[0, 1]), replace(scene(), backup=body)) == reason


def test_the_newest_backups_of_a_destination() -> None:
    found = addresses(job(groups=[0, 2], source={"destination": S3}), replace(scene(), cluster=None))
    assert found == {f"orders-{n}": (f"s3://b/p/orders/orders-{n}/latest", 1) for n in (0, 2)}


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ({"job": "audit"}, "job audit compares queues and index, which a backup does not have"),
        ({"job": "rebuild"}, "job rebuild compares queues and index"),
        ({"source": {"destination": S3}}, "spec.groups is required with spec.source.destination"),
        ({"source": {}}, "spec.source.destination: set either persistentVolumeClaim or s3"),
    ],
)
def test_sources_that_are_refused(spec: Json, told: str) -> None:
    with pytest.raises(JobSpecError, match=told):
        of_backup(**spec)
