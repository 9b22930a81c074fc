"""A cluster is lost with its volumes, and a new one starts from its Backup.

Only a real kubelet decides about the init container: mounts, permissions of the files, its last words, and that the
StatefulSet loses it without a restart of the pod.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from harness import pods
from harness.api import Json
from harness.brokers import API_VERSION, Brokers, now_s
from harness.jobs import Jobs
from harness.lab import ORDERS, Lab
from harness.load import Load, loaded
from harness.progress import ConsumerProgress
from harness.recoveries import ARCHIVE, SNAPSHOT, Recovery
from harness.s3 import BUCKET, CREDENTIALS, s3_store
from harness.shell import apply, kubectl
from harness.waiting import NotYetError, wait_for
from lab.history import Queue, Reading

NAMESPACE, CLAIM, BACKUP = "e2e-recovery", "backups", "last"
FRESH: Mapping[str, Any] = {"config": {"flushConsumerOffsetInterval": "500"}}
_BACKUP_S, _GONE_S, _RECOVERED_S, _FAILED_S = 240, 180, 300, 120


@pytest.fixture
def brokers(installed: Lab) -> Iterator[Brokers]:
    """A cluster in its namespace, and a volume for backups."""
    installed.namespace(NAMESPACE)
    Jobs(installed.api, NAMESPACE, ORDERS).claim(CLAIM)
    found = Brokers(installed.api, NAMESPACE, ORDERS)
    found.apply(FRESH)
    found.whole()
    yield found
    kubectl("delete", "namespace", NAMESPACE, "--timeout=180s", timeout_s=200)


def _secret(name: str, data: Mapping[str, str]) -> None:
    metadata = {"name": name, "namespace": NAMESPACE}
    apply({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": dict(data)})


def _backed_up(brokers: Brokers, **spec: Any) -> None:
    """Until the Backup is completed. `spec`: other fields than a volume as destination. WaitError."""
    spec = {"clusterName": ORDERS, "destination": {"persistentVolumeClaim": {"name": CLAIM}}} | spec
    metadata = {"name": BACKUP, "namespace": NAMESPACE}
    apply({"apiVersion": API_VERSION, "kind": "Backup", "metadata": metadata, "spec": spec})

    def look() -> None:
        status = brokers.api.get("backups", NAMESPACE, BACKUP).get("status") or {}
        assert status.get("phase") != "Failed", json.dumps(status)
        if status.get("phase") != "Completed":
            raise NotYetError(json.dumps(status))

    wait_for(f"the Backup {BACKUP} is completed", look, _BACKUP_S)


def _claims(brokers: Brokers) -> list[Json]:
    found = brokers.api.list("persistentvolumeclaims", NAMESPACE, f"tallystick.dev/cluster={ORDERS}")
    return [each for each in found if each["metadata"]["name"].startswith("data-")]


def _lost(brokers: Brokers) -> None:
    """The cluster is deleted, and then its claims. WaitError: something of it is left."""
    brokers.api.delete("brokerclusters", NAMESPACE, ORDERS)
    brokers.stopped(_GONE_S)
    for each in _claims(brokers):
        brokers.api.delete("persistentvolumeclaims", NAMESPACE, each["metadata"]["name"])

    def no_claims() -> None:
        if left := [each["metadata"]["name"] for each in _claims(brokers)]:
            raise NotYetError(", ".join(left))

    wait_for("the claims of the cluster are gone", no_claims, _GONE_S)


def _recovered(brokers: Brokers) -> Json:
    """The condition, which may not exist yet. NotYetError."""
    found = brokers.condition("Recovered")
    if not found:
        raise NotYetError("no condition Recovered")
    return found


def _until_recovered(brokers: Brokers) -> None:
    """WaitError: the condition says why."""

    def look() -> None:
        found = _recovered(brokers)
        if found["status"] != "True":
            raise NotYetError(f"{found['reason']}: {found['message']}")

    wait_for("the cluster has started from its backup", look, _RECOVERED_S)


def _compared(load: Load, final: Mapping[Queue, Reading], before_s: float) -> tuple[int, list[str]]:
    """How many messages were acknowledged before this moment, and which of them are not in what was read."""
    there = {(queue, item.queue_offset, item.key) for queue, read in final.items() for item in read.items}
    early = [send for send in load.history.acknowledged() if send.ended_s < before_s]
    assert early, "nothing was acknowledged before the backup"
    return len(early), [send.key for send in early if (send.queue, send.queue_offset, send.key) not in there]


@pytest.fixture
def off_site(brokers: Brokers, installed: Lab) -> Iterator[Json]:
    """Fields of a Backup that is encrypted and stored in S3."""
    shell = pods.shell(installed.api, NAMESPACE, installed.images.node, brokers.name_server)
    shell.tally("backup", "new-key", "/tmp/backup.key")
    _secret("backup-key", {"backup.key": shell.run("cat", "/tmp/backup.key")})
    _secret("backup-s3", CREDENTIALS)
    with s3_store() as endpoint:
        s3 = {"bucket": BUCKET, "prefix": "off/site", "endpoint": endpoint, "credentialsSecret": "backup-s3"}
        yield {"destination": {"s3": s3}, "encryption": {"keySecret": {"name": "backup-key"}}}


def test_a_cluster_starts_from_its_backup(brokers: Brokers, installed: Lab, off_site: Json) -> None:
    """An encrypted one in S3. All that was acknowledged before it is there, and consumers continue where they were."""
    shell = pods.shell(installed.api, NAMESPACE, installed.images.node, brokers.name_server)
    progress = ConsumerProgress(shell)
    progress.begin(brokers)
    with loaded(brokers, installed.images.node) as load:
        load.served_again(0)
        before_s = now_s()
        _backed_up(brokers, verify=True, **off_site)
        load.finish()
        _lost(brokers)

        began_s = time.monotonic()
        brokers.apply({**FRESH, "bootstrap": {"recovery": {"backupName": BACKUP}}})
        _until_recovered(brokers)
        served_s = time.monotonic() - began_s
        recovered = {node: pod["metadata"]["uid"] for node, pod in brokers.pods().items()}
        brokers.whole()
        whole_s = time.monotonic() - began_s
        early, missing = _compared(load, load.final(), before_s)
        installed.goals.lost.add(len(missing))
        row = Recovery("all volumes lost: encrypted backup in S3", served_s, whole_s, early, len(missing), SNAPSHOT)
        installed.recoveries.append(row)
        assert missing == []
    progress.continues(brokers)

    marks = {(each["metadata"].get("annotations") or {}).get("tallystick.dev/recovered") for each in _claims(brokers)}
    assert marks == {brokers.get()["metadata"]["uid"]}
    first = f"{ORDERS}-0-0"
    assert brokers.pod(first)["metadata"]["uid"] == recovered[first], "the pod that restored is the one that serves"
    template = brokers.api.get("statefulsets", NAMESPACE, first)["spec"]["template"]["spec"]
    assert not template.get("initContainers")
    brokers.change({"bootstrap": None})
    brokers.whole()
    assert brokers.pod(first)["metadata"]["uid"] == recovered[first]


def test_a_second_cluster_starts_as_the_first_one_was_at_a_time(brokers: Brokers, installed: Lab) -> None:
    """Point-in-time recovery beside the cluster, which continues: what was acknowledged before, and nothing later."""
    shell = pods.shell(installed.api, NAMESPACE, installed.images.node, brokers.name_server)
    progress = ConsumerProgress(shell)
    progress.begin(brokers)
    with loaded(brokers, installed.images.node) as load:
        load.served_again(0)
        before_s = now_s()
        until = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=1)
        load.served_again(before_s + 3)  # so that the log continues behind that time
        later_s = now_s()
        _backed_up(brokers)
        load.served_again(later_s + 2)

        began_s = time.monotonic()
        copy = Brokers(installed.api, NAMESPACE, "copy")
        recovery = {"backupName": BACKUP, "untilTime": until.strftime("%Y-%m-%dT%H:%M:%SZ")}
        copy.apply({**FRESH, "bootstrap": {"recovery": recovery}})
        _until_recovered(copy)
        served_s = time.monotonic() - began_s
        copy.whole()
        whole_s = time.monotonic() - began_s
        load.finish()
        verdict = load.verdict()
        assert verdict.problems == [] and load.failed() == 0, "the first cluster does not notice"
        final = replace(load, brokers=copy).final()
        early, missing = _compared(load, final, before_s)
        installed.goals.lost.add(verdict.lost + len(missing))
        row = Recovery("point in time, beside the cluster", served_s, whole_s, early, len(missing), ARCHIVE)
        installed.recoveries.append(row)
        assert missing == []
        late = {send.key for send in load.history.sends if send.invoked_s >= later_s}
        assert late and not late & {item.key for read in final.values() for item in read.items}
    progress.continues(copy)


def test_what_hinders_a_recovery_is_told(brokers: Brokers) -> None:
    """Volumes that exist, a Secret that does not, and a backup that is not there: as kubelet and API server tell it."""
    brokers.api.delete("brokerclusters", NAMESPACE, ORDERS)
    brokers.stopped(_GONE_S)
    source = {"persistentVolumeClaim": {"name": CLAIM}}
    key = {"keySecret": {"name": "no-such-key"}}
    brokers.apply({**FRESH, "bootstrap": {"recovery": {"source": source, "encryption": key}}})

    def told(reason: str, text: str) -> None:
        def look() -> None:
            found = _recovered(brokers)
            if found["reason"] != reason or text not in found["message"]:
                raise NotYetError(f"{found['reason']}: {found['message']}")

        wait_for(f"the condition Recovered has the reason {reason}", look, _FAILED_S)

    told("VolumesExist", f"data-{ORDERS}-0-0")
    assert brokers.pods() == {}
    for each in _claims(brokers):
        brokers.api.delete("persistentvolumeclaims", NAMESPACE, each["metadata"]["name"])
    told("SourceMissing", "no-such-key")
    assert _claims(brokers) == []
    _secret("no-such-key", {"backup.key": "this is not a key"})
    told("RestoreFailed", f"{ORDERS}-0-0")
