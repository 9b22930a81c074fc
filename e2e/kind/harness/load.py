"""A load on a cluster from a pod, and what it was told: the history that judges the cluster, and the moments in it."""

from __future__ import annotations

import itertools
import json
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from harness.brokers import Brokers
from harness.places import KIND, ROOT
from harness.pods import RESTRICTED, restricted_pod
from harness.shell import apply, kubectl
from harness.waiting import NotYetError, wait_for
from lab.history import History, Item, Outcome, Queue, Reading, Send, check, check_same
from lab.ledger import Problems

QUEUES = 4
_CONFIG = "e2e-load"
_LAB = ("history.py", "ledger.py", "group_sender.py", "load.py")
_TOLD = re.compile(r"^acknowledged (\d+) last ([\d.]+) leader (\S*)$", re.MULTILINE)
_START_S = 90
_FINISH_S = 60


@dataclass(frozen=True, slots=True)
class Verdict:
    problems: list[str]
    acknowledged: int
    lost: int


@dataclass(slots=True)
class Load:
    """What runs in a pod. After `finish` its history is here."""

    brokers: Brokers
    topic: str
    pod: str
    history: History = field(default_factory=History)
    authorities: str = ""
    """ConfigMap with the authorities that its clients trust; empty: they do not use TLS."""
    users: dict[str, str] = field(default_factory=dict)
    """Users that its clients can sign as, and their Secrets; the first one by name is used at the begin."""
    deliveries: list[tuple[float, float | None, int]] = field(default_factory=list)
    """Of the probe: begun, acknowledged, tries. None: not within the time that a send has."""

    # -- while it runs -------------------------------------------------------------------------------------------------

    def served_again(self, since_s: float, timeout_s: float = 60) -> None:
        """Until a probe that was begun after this moment was acknowledged. WaitError."""

        def look() -> None:
            said = kubectl("logs", self.pod, "--namespace", self.brokers.namespace, "--tail=1")
            told = _TOLD.search(said)
            if told is None or float(told[2]) <= since_s:
                raise NotYetError(said.strip())

        wait_for(f"{self.topic} is served again", look, timeout_s)

    def sign_as(self, user: str) -> None:
        """Lets its clients sign as another user, with the password that the pod has now. ToolError."""
        self._exec("sh", "-c", f"printf %s {user} > /tmp/user")

    def password_of(self, user: str) -> str:
        """The password of a user that the pod has now. ToolError."""
        return self._exec("cat", f"/users/{user}/password")

    # -- at its end ----------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Stops it and takes its history. WaitError, ToolError."""
        self._exec("sh", "-c", "kill -USR1 1")

        def look() -> None:
            said = kubectl("logs", self.pod, "--namespace", self.brokers.namespace, "--tail=1")
            if not said.startswith("finished "):
                raise NotYetError(said.strip())

        wait_for("the load has finished", look, _FINISH_S)
        for line in self._exec("cat", "/tmp/history.jsonl").splitlines():
            row = json.loads(line)
            if "send" in row:
                client, queue, key, body, invoked_s, ended_s, outcome, offset, pos, broker, reason = row["send"]
                self.history.sends.append(
                    Send(
                        client,
                        (queue[0], queue[1]),
                        key,
                        bytes.fromhex(body),
                        invoked_s,
                        ended_s,
                        Outcome(outcome),
                        offset,
                        pos,
                        broker,
                        reason,
                    )
                )
            else:
                begin_s, end_s, tries = row["delivery"]
                self.deliveries.append((begin_s, end_s, tries))

    def verdict(self) -> Verdict:
        """What no sound group can have told: each member is read from end to end. ToolError: it cannot be read."""
        found = Problems()
        members = {node: self.brokers.member_address(node) for node in sorted(self.brokers.nodes())}
        readings = self._read(list(members.values()))
        names = list(readings)
        final = readings[names[0]]
        check(self.history, final, found)
        for name in names[1:]:
            check_same(names[0], final, name, readings[name], found)
        there = {(queue, item.queue_offset, item.key) for queue, read in final.items() for item in read.items}
        acknowledged = self.history.acknowledged()
        lost = sum((send.queue, send.queue_offset, send.key) not in there for send in acknowledged)
        return Verdict(found.lines(), len(acknowledged), lost)

    def final(self) -> dict[Queue, Reading]:
        """All that the topic has in the end, as the first member tells it. ToolError."""
        (reading,) = self._read([self.brokers.member_address(min(self.brokers.nodes()))]).values()
        return reading

    def failed(self) -> int:
        """Messages of the probe that were not acknowledged within the time of a send, with all its tries."""
        return sum(end_s is None for _, end_s, _ in self.deliveries)

    def outage_after(self, moment_s: float, within_s: float = 4) -> float:
        """Seconds: the longest time without any acknowledgement that began in this time after the moment, or before."""
        ended = sorted(end_s for _, end_s, _ in self.deliveries if end_s is not None)
        gaps = [
            after - before
            for before, after in itertools.pairwise(ended)
            if after > moment_s and before < moment_s + within_s
        ]
        assert gaps, "no message was acknowledged in that time"
        return max(gaps)

    def switches(self) -> list[float]:
        """The moments at which acknowledgements began to come from another broker."""
        acknowledged = sorted(
            (send.ended_s, send.invoked_s, send.broker)
            for send in self.history.sends
            if send.outcome is Outcome.OK and send.client == "probe"
        )
        moments, leader, since_s = [], acknowledged[0][2], 0.0
        for ended_s, invoked_s, broker in acknowledged:
            if broker != leader and invoked_s > since_s:  # not one that was in progress to the old one meanwhile
                moments.append(ended_s)
                leader, since_s = broker, ended_s
        return moments

    def planned_outages_ms(self) -> list[float]:
        """Of each change of leader: what clients saw of it."""
        return [1000 * self.outage_after(moment_s - 1, 1) for moment_s in self.switches()]

    def _exec(self, *command: str) -> str:
        return kubectl("exec", self.pod, "--namespace", self.brokers.namespace, "--", *command, timeout_s=120)

    def _read(self, members: list[str]) -> dict[str, dict[Queue, Reading]]:
        said = self._exec("python3", "/load/load.py", "read", self.topic, str(QUEUES), *members)
        readings: dict[str, dict[Queue, Reading]] = {member: {} for member in members}
        waited_s, *texts = said.split("\n\n")
        print(f"{self.topic}: after {float(waited_s):.2f} s all members had the same ends of queues")
        for text in texts:  # a queue of a member each
            head, *rows = (json.loads(line) for line in text.splitlines())
            items = tuple(Item(offset, key, bytes.fromhex(body), pos) for offset, key, body, pos in rows)
            readings[head["member"]][self.topic, head["queue"]] = Reading(head["first"], items)
        return readings


@contextmanager
def loaded(
    brokers: Brokers, image: str, *, authorities: str = "", users: dict[str, str] | None = None
) -> Iterator[Load]:
    """Creates a topic and runs clients on it; deletes the pod afterwards. See Load for the arguments. WaitError."""
    topic = f"load-{secrets.token_hex(3)}"  # a cluster may have those of an earlier run
    brokers.topic(topic, QUEUES)
    load = Load(brokers, topic, f"e2e-{topic}", authorities=authorities, users=users or {})
    apply(_config_map(brokers.namespace), _pod(load, image))

    def look() -> None:
        said = kubectl("logs", load.pod, "--namespace", brokers.namespace, "--tail=1")
        told = _TOLD.search(said)
        if told is None or not int(told[1]):
            raise NotYetError(said.strip() or "no output yet")

    try:
        wait_for("the load has begun", look, _START_S)
        yield load
    finally:
        kubectl("delete", "pod", load.pod, "--namespace", brokers.namespace, "--grace-period=0", "--force")


def _config_map(namespace: str) -> dict[str, object]:
    files = {"load.py": (KIND / "programs" / "load.py").read_text()}
    files |= {f"lab.{name}": (ROOT / "e2e" / "lab" / name).read_text() for name in _LAB}
    metadata = {"name": _CONFIG, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": files}


def _pod(load: Load, image: str) -> dict[str, object]:
    servers, broker = load.brokers.name_servers(), f"{load.brokers.name}-0"
    command = ["python3", "/load/load.py", "send", servers, broker, load.topic, str(QUEUES), load.topic]
    paths = [{"key": "load.py", "path": "load.py"}]
    paths += [{"key": f"lab.{name}", "path": f"lab/{name}"} for name in _LAB]
    container: dict[str, object] = {
        "name": "load",
        "image": image,
        "command": command,
        "env": [{"name": "PYTHONPATH", "value": "/load"}],
        "securityContext": RESTRICTED,
    }
    volumes: list[dict[str, object]] = [{"name": "load", "configMap": {"name": _CONFIG, "items": paths}}]
    volumes.append({"name": "tmp", "emptyDir": {}})
    mounts: list[dict[str, object]] = [{"name": "load", "mountPath": "/load"}, {"name": "tmp", "mountPath": "/tmp"}]
    if load.authorities:
        volumes.append({"name": "ca", "configMap": {"name": load.authorities}})
        mounts.append({"name": "ca", "mountPath": "/ca"})
    for number, (user, secret) in enumerate(sorted(load.users.items())):
        volumes.append({"name": f"user-{number}", "secret": {"secretName": secret}})
        mounts.append({"name": f"user-{number}", "mountPath": f"/users/{user}"})
    container["volumeMounts"] = mounts
    return restricted_pod(load.brokers.namespace, load.pod, container, volumes)
