"""New clusters that start from backups, over a simulated cluster: what is restored where, and what users are told."""

from __future__ import annotations

import argparse
import random
from typing import Any

import pytest
from simulated_cluster import CLUSTER, NAMESPACE, Cluster

from tallystick.node.commands.backup import add_parsers
from tallystick.operator.core import kube

RECOVERED = "tallystick.dev/recovered"
S3 = {"s3": {"bucket": "safe", "credentialsSecret": "s3"}}
KEY = {"keySecret": {"name": "key"}}
ROOT = "s3://safe/orders/orders-{}/latest"


@pytest.fixture
def world() -> Cluster:
    return prepared()


def prepared() -> Cluster:
    """The Secrets exist, and backups of two groups."""
    made = Cluster(random.Random(5))
    for name in ("s3", "key"):
        put(made, kube.SECRETS, name)
    made.backups = {ROOT.format(0): 40, ROOT.format(1): 30}
    return made


def put(world: Cluster, resource: kube.Resource, name: str, **content: Any) -> None:
    status, _ = world.by_hand("POST", resource.path(NAMESPACE), {"metadata": {"name": name}, **content})
    assert status == 200


def put_backup(world: Cluster, phase: str = "Completed", groups: tuple[int, ...] = (0,), **status: Any) -> None:
    rows = [{"group": each, "phase": phase, "address": f"s3://safe/orders/orders-{each}/7"} for each in groups]
    spec = {"clusterName": "orders", "destination": S3, "encryption": KEY}
    put(world, kube.BACKUPS, "nightly", spec=spec, status={"phase": phase, "groups": rows, **status})
    world.backups |= {f"s3://safe/orders/orders-{each}/7": 50 for each in groups}


def create(world: Cluster, **spec: Any) -> None:
    recovery = spec.pop("recovery", {"source": S3, "encryption": KEY})
    world.create(bootstrap={"recovery": recovery}, **spec)


def run(world: Cluster, passes: int = 20) -> None:
    for _ in range(passes):
        world.one_pass()
        world.tick(2.0)


def told(world: Cluster) -> tuple[str, str, str]:
    found = world.condition("Recovered")
    return (found["status"], found["reason"], found["message"]) if found else ("", "", "")


def marks(world: Cluster) -> dict[str, str | None]:
    claims = {each["metadata"]["name"]: each["metadata"] for each in world.api.all("persistentvolumeclaims")}
    return {
        name: (each.get("annotations") or {}).get(RECOVERED)
        for name, each in claims.items()
        if name.startswith("data-")
    }


def uid(world: Cluster) -> str:
    body = world.api.get("brokerclusters", CLUSTER)
    assert body is not None
    return str(body["metadata"]["uid"])


def pod_spec(world: Cluster, number: int = 0) -> dict[str, Any]:
    body = world.api.get("statefulsets", f"{CLUSTER}-0-{number}")
    assert body is not None
    return dict(body["spec"]["template"]["spec"])


def events(world: Cluster) -> list[tuple[str, str]]:
    bodies = sorted(world.api.all("events"), key=lambda each: int(each["metadata"]["resourceVersion"]))
    return [(each["type"], each["reason"]) for each in bodies if each["involvedObject"]["kind"] == "BrokerCluster"]


def is_going(world: Cluster) -> None:
    """The cluster was restored as a whole: every group by one restore, and all members vote."""
    world.settle()
    assert told(world)[:2] == ("True", "Recovered"), world.status
    assert set(marks(world).values()) == {uid(world)}
    for number, group in world.groups.items():
        assert group.voters == {0, 1, 2}
        assert group.acknowledged >= {0: 40, 1: 30}[number]


def start_over(world: Cluster) -> None:
    """The cluster is deleted, and its claims stay."""
    world.delete(kube.CLUSTERS, CLUSTER)
    world.reconciler = None
    for _ in range(10):
        world.tick(5.0)
    assert world.api.all("pods") == []


# -- the way it goes ---------------------------------------------------------------------------------------------------


def test_groups_are_restored_and_the_others_join(world: Cluster) -> None:
    create(world, groups=2)
    world.run_until(lambda: told(world)[1] == "Restoring")
    assert world.status["phase"] == "Creating" and world.condition("Ready")["status"] == "False"
    assert set(marks(world)) == {"data-orders-0-0", "data-orders-1-0"}, "n0 alone comes first"
    is_going(world)
    assert world.restores == 2
    assert ("Normal", "Restoring") in events(world) and events(world).count(("Normal", "Recovered")) == 1
    before = len(world.api.writes)
    run(world, 3)
    assert world.api.writes[before:] == []


def test_the_pod_runs_the_command_as_it_is_and_has_no_secret_in_clear_text(world: Cluster) -> None:
    place = {"s3": {**S3["s3"], "prefix": "a/b", "endpoint": "http://minio:9000"}}
    until = "2026-11-25T10:00:00Z"
    create(world, recovery={"source": place, "encryption": KEY, "clusterName": "old", "untilTime": until})
    run(world, 3)
    spec = pod_spec(world)
    (init,), (broker,) = spec["initContainers"], spec["containers"]
    parser = argparse.ArgumentParser()
    add_parsers(parser.add_subparsers())
    args = parser.parse_args(init["command"][1:])
    assert args.backup == "s3://safe/a/b/old/old-0/latest"
    assert (args.member, args.group, args.cluster, args.once) == ("n0", "orders-0", "orders", uid(world))
    assert (str(args.folder), args.until_time) == ("/data/store", 1795600800000)
    assert str(args.folder) == broker["command"][-1], "where the broker has its store"
    assert (str(args.key_file), str(args.s3_settings)) == ("/etc/tallystick-key/backup.key", "/etc/tallystick-s3")
    assert {each["name"] for each in init["env"]} == {"HOME", "AWS_ENDPOINT_URL"}
    volumes = {each["name"]: each for each in spec["volumes"]}
    assert volumes["backup-key"]["secret"]["secretName"] == "key"
    assert {each["name"] for each in init["volumeMounts"]} <= set(volumes)
    assert (args.brokers, args.segment_bytes) == ("old-0", 1 << 30)
    assert "GROUPBOOTSTRAP" not in str(broker["env"])
    assert init["securityContext"]["readOnlyRootFilesystem"] is True


def test_a_formed_group_restores_nothing_and_no_pod_is_restarted(world: Cluster) -> None:
    create(world)
    world.run_until(lambda: pod_is_there(world))
    before = world.pod(0, 0)
    is_going(world)
    assert "initContainers" not in pod_spec(world)
    assert not {"backup-s3", "backup-key"} & {each["name"] for each in pod_spec(world)["volumes"]}
    after = world.pod(0, 0)
    assert before is not None and after is not None and before["metadata"]["uid"] == after["metadata"]["uid"]


def pod_is_there(world: Cluster) -> bool:
    return world.pod(0, 0) is not None


def test_one_member_is_enough(world: Cluster) -> None:
    create(world, replicas=1)
    world.settle()
    assert told(world)[0] == "True" and world.groups[0].voters == {0}


def test_a_backup_names_place_key_and_addresses(world: Cluster) -> None:
    put_backup(world)
    create(world, recovery={"backupName": "nightly"})
    is_going(world)
    assert world.groups[0].acknowledged >= 50, "that backup, not the latest"


# -- what hinders it ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("groups", "backup", "reason", "text"),
    [
        (1, None, "SourceMissing", "the Backup nightly does not exist"),
        (1, {"phase": "Running"}, "BackupNotCompleted", "its phase is Running"),
        (1, {"phase": "Failed", "message": "no room"}, "BackupNotCompleted", "Failed (no room)"),
        (2, {"groups": (0,)}, "GroupsMissing", "has no backup of group 1"),
        (3, {"groups": (0, 2)}, "GroupsMissing", "has no backup of group 1"),
        (1, {"groups": (0, 1)}, "GroupsMissing", "raise spec.groups to 2"),
    ],
)
def test_a_backup_that_cannot_be_used_starts_nothing(
    world: Cluster, groups: int, backup: dict[str, Any] | None, reason: str, text: str
) -> None:
    if backup is not None:
        put_backup(world, **backup)
    create(world, groups=groups, recovery={"backupName": "nightly"})
    world.one_pass()
    status, found, message = told(world)
    assert (status, found) == ("False", reason) and text in message
    run(world)
    assert marks(world) == {} and world.restores == 0
    assert not [each for each in world.api.all("statefulsets") if "nameserver" not in each["metadata"]["name"]]
    waits = (backup or {}).get("phase") == "Running"
    assert world.status["phase"] == ("Creating" if waits else "Failed")
    assert events(world).count(("Normal" if waits else "Warning", reason)) == 1
    assert world.condition("Ready")["reason"] == reason


def test_a_backup_that_completes_is_used(world: Cluster) -> None:
    put_backup(world, "Running")
    create(world, recovery={"backupName": "nightly"})
    run(world, 5)
    assert told(world)[1] == "BackupNotCompleted"
    assert (world.one_pass() or 99) <= 5.0, "no event of the Backup reaches the cluster"
    world.delete(kube.BACKUPS, "nightly")
    put_backup(world)
    is_going(world)


@pytest.mark.parametrize("name", ["s3", "key"])
def test_a_missing_secret_is_named_and_waited_for(world: Cluster, name: str) -> None:
    world.delete(kube.SECRETS, name)
    create(world)
    world.one_pass()
    assert told(world) == ("False", "SourceMissing", f"the Secret {name} does not exist")
    assert marks(world) == {}
    put(world, kube.SECRETS, name)
    is_going(world)


def test_a_secret_that_is_deleted_before_the_pod_starts_is_named(world: Cluster) -> None:
    create(world)
    while world.api.get("statefulsets", "orders-0-0") is None:
        world.one_pass()
    world.delete(kube.SECRETS, "key")
    run(world, 3)
    assert told(world) == ("False", "SourceMissing", "the Secret key does not exist")
    put(world, kube.SECRETS, "key")
    is_going(world)


def test_a_missing_volume_with_backups_is_named(world: Cluster) -> None:
    create(world, recovery={"source": {"persistentVolumeClaim": {"name": "backups", "subPath": "daily"}}})
    world.one_pass()
    assert told(world)[1] == "SourceMissing" and "PersistentVolumeClaim backups" in told(world)[2]
    put(world, kube.CLAIMS, "backups", spec={"resources": {"requests": {"storage": "1Gi"}}})
    world.backups["/backups/daily/orders/orders-0/latest"] = 60
    is_going(world)


def test_an_api_server_that_refuses_the_trial_hinders_nothing(world: Cluster) -> None:
    """Whether a Secret exists is unknown then."""
    create(world)

    async def unknown(namespace: str, name: str) -> bool | None:
        return None

    world.operator()._context.kube.secret_exists = unknown  # type: ignore[method-assign]
    is_going(world)


def test_the_api_server_is_not_asked_for_secrets_that_are_mounted(world: Cluster) -> None:
    """A restore may take hours, with a pass each second."""
    asked: list[str] = []
    create(world)
    api = world.operator()._context.kube
    original = api.secret_exists

    async def counted(namespace: str, name: str) -> bool | None:
        asked.append(name)
        return await original(namespace, name)

    api.secret_exists = counted  # type: ignore[method-assign]
    world.run_until(lambda: "restoring" in told(world)[2])
    assert {"s3", "key"} == set(asked)
    asked.clear()
    world.one_pass()
    assert asked == []
    is_going(world)
    assert asked == []


def test_an_init_container_of_others_hides_no_failure_of_the_broker(world: Cluster) -> None:
    """A webhook adds one that runs as long as the pod."""
    world.broken_images.add("node:1")
    create(world)
    world.run_until(lambda: bool(pod_status(world).get("startTime")))
    ended = {"name": "restore", "state": {"terminated": {"exitCode": 0}}}
    pod_status(world)["initContainerStatuses"] = [{"name": "proxy", "state": {"running": {}}}, ended]
    world.one_pass()
    assert world.node("orders-0-0")["status"]["lastError"] == "CrashLoopBackOff"


@pytest.mark.parametrize("fault", ["the key is not the one of the backup", "object x is damaged"])
def test_a_restore_that_fails_is_told_with_its_last_words(world: Cluster, fault: str) -> None:
    world.backups[ROOT.format(0)] = fault
    create(world)
    world.run_until(lambda: told(world)[1] == "RestoreFailed")
    assert fault in told(world)[2] and "orders-0-0" in told(world)[2]
    assert world.status["phase"] == "Creating" and ("Warning", "RestoreFailed") in events(world)
    assert fault in world.node("orders-0-0")["status"]["lastError"]
    world.backups[ROOT.format(0)] = 40
    is_going(world)


def test_a_broker_that_does_not_start_on_what_was_restored_is_told(world: Cluster) -> None:
    world.broken_images.add("node:1")
    create(world)
    world.run_until(lambda: bool(pod_status(world).get("startTime")))
    pod_status(world)["initContainerStatuses"] = [{"name": "restore", "state": {"terminated": {"exitCode": 0}}}]
    world.one_pass()
    assert told(world)[:2] == ("False", "StartFailed") and "CrashLoopBackOff" in told(world)[2]


def pod_status(world: Cluster) -> dict[str, Any]:
    status: dict[str, Any] = (world.pod(0, 0) or {"status": {}})["status"]
    return status


def test_a_group_without_a_backup_is_told_and_the_other_one_waits_for_it(world: Cluster) -> None:
    del world.backups[ROOT.format(1)]
    create(world, groups=2)
    world.run_until(lambda: told(world)[1] == "RestoreFailed")
    assert "there is no backup" in told(world)[2] and world.restores == 0
    assert world.condition("Ready")["status"] == "False"
    world.backups[ROOT.format(1)] = 30
    is_going(world)


# -- volumes that exist ------------------------------------------------------------------------------------------------


def test_nothing_is_restored_over_volumes_of_an_earlier_cluster(world: Cluster) -> None:
    world.create()
    world.settle()
    start_over(world)
    disks = {name: disk.length for name, disk in world.disks.items()}
    create(world)
    world.one_pass()
    status, reason, message = told(world)
    assert (status, reason) == ("False", "VolumesExist") and "data-orders-0-1" in message
    run(world)
    assert world.status["phase"] == "Failed"
    assert {name: disk.length for name, disk in world.disks.items()} == disks
    assert set(marks(world).values()) == {None}, "the claims were not taken over"
    for name in list(marks(world)):
        world.delete(kube.CLAIMS, name)
    world.disks.clear()
    is_going(world)


def test_without_bootstrap_the_volumes_of_the_earlier_cluster_are_used(world: Cluster) -> None:
    world.create()
    world.settle()
    start_over(world)
    create(world)
    run(world, 5)
    world.change({"bootstrap": None})
    world.settle()
    assert world.restores == 0 and told(world)[1] != "VolumesExist"


def test_one_claim_of_a_member_that_is_not_restored_is_enough(world: Cluster) -> None:
    world.create(replicas=5)
    world.settle()
    start_over(world)
    for name in list(marks(world)):
        if name != "data-orders-0-4":
            world.delete(kube.CLAIMS, name)
    create(world)
    run(world, 5)
    assert told(world)[1] == "VolumesExist" and "data-orders-0-4" in told(world)[2]
    assert list(marks(world)) == ["data-orders-0-4"]


def test_a_recovered_cluster_that_is_created_again_is_not_restored_again(world: Cluster) -> None:
    create(world)
    is_going(world)
    start_over(world)
    create(world)
    run(world)
    assert told(world)[1] == "VolumesExist" and world.restores == 1


def test_an_unfinished_recovery_of_an_earlier_cluster_blocks_as_well(world: Cluster) -> None:
    world.backups[ROOT.format(0)] = "no answer"
    create(world)
    world.run_until(lambda: told(world)[1] == "RestoreFailed")
    start_over(world)
    world.backups[ROOT.format(0)] = 40
    create(world)
    run(world, 5)
    assert told(world)[1] == "VolumesExist"
    world.change({"bootstrap": None})
    run(world, 5)
    assert told(world)[1] == "RecoveryUnfinished" and "data-orders-0-0" in told(world)[2]
    assert world.api.get("statefulsets", "orders-0-0") is None, "an empty volume would become a new group"
    world.delete(kube.CLAIMS, "data-orders-0-0")
    world.disks.clear()
    world.settle()
    assert world.groups[0].voters == {0, 1, 2}


# -- what happens meanwhile --------------------------------------------------------------------------------------------


def test_a_backup_that_is_deleted_meanwhile_is_no_longer_needed(world: Cluster) -> None:
    put_backup(world)
    world.backups["s3://safe/orders/orders-0/7"] = "no answer"
    create(world, recovery={"backupName": "nightly"})
    world.run_until(lambda: told(world)[1] == "RestoreFailed")
    world.delete(kube.BACKUPS, "nightly")
    run(world, 3)
    assert told(world)[1] == "RestoreFailed"
    assert pod_spec(world)["initContainers"][0]["command"][3] == "s3://safe/orders/orders-0/7"
    world.change({"image": "node:2"})
    run(world, 5)
    assert pod_spec(world)["initContainers"][0]["image"] == "node:2"
    world.backups["s3://safe/orders/orders-0/7"] = 50
    is_going(world)


def test_a_backup_that_is_deleted_before_anything_started_is_missed(world: Cluster) -> None:
    put_backup(world)
    create(world, recovery={"backupName": "nightly"})
    world.delete(kube.BACKUPS, "nightly")
    run(world, 5)
    assert told(world)[1] == "SourceMissing"


def test_bootstrap_that_is_removed_during_a_restore_does_not_end_it(world: Cluster) -> None:
    world.backups[ROOT.format(0)] = "no answer"
    create(world)
    world.run_until(lambda: told(world)[1] == "RestoreFailed")
    world.change({"bootstrap": None})
    run(world, 5)
    world.backups[ROOT.format(0)] = 40
    is_going(world)


def test_bootstrap_that_is_removed_afterwards_changes_nothing(world: Cluster) -> None:
    create(world)
    is_going(world)
    pods = {each["metadata"]["uid"] for each in world.api.all("pods")}
    world.change({"bootstrap": None})
    run(world)
    assert pods == {each["metadata"]["uid"] for each in world.api.all("pods")}
    assert told(world)[0] == "True" and set(marks(world).values()) == {uid(world)}


def test_a_group_that_is_added_afterwards_is_a_new_one(world: Cluster) -> None:
    create(world)
    is_going(world)
    del world.backups[ROOT.format(1)]
    world.change({"groups": 2})
    world.settle()
    assert world.restores == 1 and world.groups[1].voters == {0, 1, 2}
    assert marks(world)["data-orders-1-0"] is None


@pytest.mark.parametrize("replicas", [1, 3])
@pytest.mark.parametrize("how", ["lost", "deleted"])
def test_a_volume_that_is_lost_before_the_group_formed_is_restored_again(
    world: Cluster, replicas: int, how: str
) -> None:
    world.backups[ROOT.format(0)] = "no answer"
    create(world, replicas=replicas)
    world.run_until(lambda: told(world)[1] == "RestoreFailed")
    claim = world.api.get("persistentvolumeclaims", "data-orders-0-0")
    assert claim is not None
    world.judge.may_lose.add("data-orders-0-0")
    if how == "lost":
        claim["status"] = {"phase": "Lost"}
    else:
        world.delete(kube.CLAIMS, "data-orders-0-0")
    world.backups[ROOT.format(0)] = 40
    world.settle()
    renewed = world.api.get("persistentvolumeclaims", "data-orders-0-0")
    assert renewed is not None and renewed["metadata"]["uid"] != claim["metadata"]["uid"]
    assert told(world)[0] == "True" and world.groups[0].acknowledged >= 40


def test_a_pod_that_is_deleted_during_a_restore_begins_again(world: Cluster) -> None:
    create(world)
    world.run_until(lambda: any(disk.restore for disk in world.disks.values()))
    world.delete(kube.PODS, "orders-0-0-0")
    is_going(world)


def test_a_cluster_that_hibernates_waits_with_its_restore(world: Cluster) -> None:
    world.backups[ROOT.format(0)] = "no answer"
    create(world)
    world.run_until(lambda: told(world)[1] == "RestoreFailed")
    world.change(annotations={"tallystick.dev/hibernation": "on"})
    world.run_until(lambda: world.status["phase"] == "Hibernated")
    assert told(world)[:2] == ("False", "Restoring") and "stopped by a user" in told(world)[2]
    world.backups[ROOT.format(0)] = 40
    world.change(annotations={"tallystick.dev/hibernation": "off"})
    is_going(world)


@pytest.mark.simulation
@pytest.mark.parametrize("first", range(0, 60, 6))
def test_the_operator_may_end_at_any_write(first: int) -> None:
    for writes in range(first, first + 6):
        world = prepared()
        put_backup(world, groups=(0, 1))
        create(world, groups=2, recovery={"backupName": "nightly"})
        while writes >= 0 and told(world)[0] != "True":
            before = len(world.api.writes)
            world.one_pass(writes=writes)
            writes -= max(len(world.api.writes) - before, 1)
            world.tick(1.0)
        world.reconciler = None
        is_going(world)
        assert world.restores == 2


def test_the_operator_may_end_after_each_write() -> None:
    """Every pass of a whole recovery does one write, and its process ends."""
    world = prepared()
    create(world)
    for number in range(400):
        world.one_pass(writes=1 + number % 3)
        world.tick(1.0)
    is_going(world)
    assert world.restores == 1


@pytest.mark.parametrize("recovery", [{"source": {}}, {"source": {"s3": {"bucket": "a", "prefix": "../b"}}}])
def test_a_spec_that_the_schema_let_pass_is_refused(world: Cluster, recovery: dict[str, Any]) -> None:
    create(world, recovery=recovery)
    world.one_pass()
    assert world.status["phase"] == "Failed"
    assert "spec.bootstrap.recovery.source" in world.condition("Ready")["message"]
