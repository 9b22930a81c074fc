"""The keeping of topics as a story told at random: people, administrators, brokers, and an operator that crashes.

While it continues, three promises are watched at every single write. When it comes to rest, every resource has to say
the actual state; this module computes the expected state slowly, from only the resources and the brokers.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from topics_lab import CLUSTER, NAMESPACE, Lab

from tallystick.operator.topics.claims import parse_claims
from tallystick.operator.topics.settings import PERMISSIONS, TopicSettings

NAMES = ("a", "b", "c")
SUBJECTS = ("x", "x", "x", "y", "y", "SCHEDULE_TOPIC_XXXX")
NUMBERS = (0, 1, 2)
QUEUES = (2, 3)
YES_OR_NO = (True, False)
THEN = ("nothing", "pass", "pass", "crash", "rest")
"""What the operator does as soon as something has happened."""

ACTIONS: dict[str, dict[str, Sequence[Any]]] = {
    "apply": {
        "name": NAMES,
        "subject": SUBJECTS,
        "queues": QUEUES,
        "permission": ("ReadWrite", "ReadWrite", "ReadOnly"),
        "groups": (None, None, [0], [0, 1, 2]),
        "policy": ("Retain", "Delete", "DeleteIfEmpty"),
        "adopt": YES_OR_NO,
        "same_second": YES_OR_NO,
        "then": THEN,
    },
    "annotate": {"name": NAMES},
    "delete": {"name": NAMES, "then": THEN},
    "retain": {"name": NAMES, "delete": YES_OR_NO},
    "mqadmin_makes_the_same": {"name": NAMES, "group": NUMBERS},
    "mqadmin_updates": {
        "group": NUMBERS,
        "subject": SUBJECTS,
        "read": QUEUES,
        "write": QUEUES,
        "perm": (2, 4, 6, 7),
        "then": THEN,
    },
    "mqadmin_deletes": {"group": NUMBERS, "subject": SUBJECTS, "then": THEN},
    "messages": {"subject": SUBJECTS, "messages": (0, 1)},
    "leaders": {"group": NUMBERS, "leads": YES_OR_NO},
    "cluster": {"groups": (0, 1, 2, 2, 3, 3), "forming": (None, None, *NUMBERS)},
    "time_passes": {"seconds": (1, 10, 40)},
    "one_pass": {},
    "crash": {"writes": range(8), "after": YES_OR_NO},
    "operator_restarts": {},
    "it_comes_to_rest": {},
}
"""What can happen, and with what."""


class BrokenPromiseError(AssertionError):
    """One of the operator's writes should not have been."""


class Story:
    """The promises: nothing is written that is not claimed, nothing is claimed that may not be, no message is lost."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.lab = self.loop.run_until_complete(self._make())
        self.lab.brokers.on_change.append(self._changed)
        self.lab.api.on_write.append(self._written)
        self.broken: list[str] = []

    def close(self) -> None:
        self.loop.close()

    @staticmethod
    async def _make() -> Lab:
        lab = Lab(groups=2)
        lab.brokers.add("orders-2")  # there, but of no cluster yet
        return lab

    # -- what is watched

    def _changed(self, kind: str, group: str, name: str, old: TopicSettings | None, new: TopicSettings | None) -> None:
        owners = [
            each
            for each in self.lab.api.of("Topic")
            if self._subject(each) == name and group in self.lab.api.owned(each)
        ]
        if not owners:
            self.broken.append(f"{group}: {name} is written without a resource that claims it")
        if old is not None and new is not None and new.read_queues < old.read_queues:
            self.broken.append(f"{group}: {name} loses queues: {old} -> {new}")
        if new is None and old is not None:
            deleting = [each for each in owners if each["metadata"].get("deletionTimestamp")]
            policies = {each["spec"].get("deletionPolicy", "Retain") for each in deleting}
            if not policies & {"Delete", "DeleteIfEmpty"}:
                self.broken.append(f"{group}: {name} is deleted without a request")
            elif policies == {"DeleteIfEmpty"} and self.lab.brokers.groups[group].figures.get(name):
                self.broken.append(f"{group}: {name} is deleted with its messages")

    def _written(self, old: Any, new: dict[str, Any] | None) -> None:
        if new is None:
            self._released(old)
            return
        if new["kind"] != "ConfigMap":
            owned = new.get("status", {}).get("ownedGroups", ())
            self._claimed(new, set(owned) - self.lab.api.owned(new) - set(old.get("status", {}).get("ownedGroups", ())))
            return
        claims = parse_claims(new)
        for each in self.lab.api.of("Topic"):
            self._claimed(each, set(claims.get(each["metadata"]["uid"], ())) - self.lab.api.owned(each))

    def _claimed(self, new: dict[str, Any], groups: set[str]) -> None:
        """The operator notes that a topic is a resource's own on some more groups."""
        name, spec = self._subject(new), new["spec"]
        for group in groups:
            there = self.lab.brokers.groups[group].topics.get(name)
            adopt = new["metadata"].get("annotations", {}).get("tallystick.dev/adopt") == "true"
            same = spec.get("deletionPolicy", "Retain") == "Retain" and there == self._wanted(new)
            if self._holder(name)["metadata"]["uid"] != new["metadata"]["uid"]:
                self.broken.append(f"{new['metadata']['name']} claims {name}, which another one holds")
            if there is not None and not adopt and not same:
                self.broken.append(f"{new['metadata']['name']} claims {name} on {group}, which was there")
            if spec.get("deletionPolicy", "Retain") != "Retain" and not new["metadata"].get("finalizers"):
                self.broken.append(f"{new['metadata']['name']} has no finalizer when {name} is claimed")

    def _released(self, old: dict[str, Any]) -> None:
        """A resource with a finalizer was removed: its topic is deleted, or no broker is left."""
        cluster = self.lab.api.objects.get(("BrokerCluster", NAMESPACE, CLUSTER))
        if cluster is None or old["spec"].get("deletionPolicy", "Retain") == "Retain":
            return
        groups = {f"{CLUSTER}-{number}" for number in range(cluster["spec"]["groups"])}
        for group in groups & self.lab.api.owned(old):
            if self._subject(old) in self.lab.brokers.groups[group].topics:
                self.broken.append(f"{old['metadata']['name']} is let go, and {group} still has its topic")

    def promises_hold(self) -> None:
        if self.broken:
            raise BrokenPromiseError("; ".join(self.broken))

    # -- what happens

    def apply(
        self,
        name: str,
        subject: str,
        queues: int,
        permission: str,
        groups: list[int] | None,
        policy: str,
        adopt: bool,
        same_second: bool,
        then: str,
    ) -> None:
        """A Topic is made, or as much of it is changed as may be."""
        found = self.lab.api.objects.get(("Topic", NAMESPACE, name))
        spec: dict[str, Any] = {"permission": permission, "deletionPolicy": policy}
        if found is None:
            spec |= {"topicName": subject, "queues": queues} | ({} if groups is None else {"groups": groups})
            made = self.lab.api.topic(name, adopt=adopt, **spec)
            if same_second:
                made["metadata"]["creationTimestamp"] = "2026-01-01T00:000001Z"
        else:
            self.lab.api.edit("Topic", name, **spec, queues=max(queues, found["spec"]["queues"]))
        self._then(then)

    def annotate(self, name: str) -> None:
        if ("Topic", NAMESPACE, name) in self.lab.api.objects:
            self.lab.api.annotate("Topic", name, "tallystick.dev/adopt", "true")

    def delete(self, name: str, then: str) -> None:
        if ("Topic", NAMESPACE, name) in self.lab.api.objects:
            self.lab.api.remove("Topic", name)
            self._then(then)

    def mqadmin_updates(self, group: int, subject: str, read: int, write: int, perm: int, then: str) -> None:
        self.lab.mqadmin(group, subject, read_queues=read, write_queues=write, perm=perm)
        self._then(then)

    def retain(self, name: str, delete: bool) -> None:
        """A user changes the decision, at the last moment or while it waits."""
        if ("Topic", NAMESPACE, name) in self.lab.api.objects:
            self.lab.api.edit("Topic", name, deletionPolicy="Retain")
            if delete:
                self.lab.api.remove("Topic", name)
                self.it_comes_to_rest()

    def mqadmin_makes_the_same(self, name: str, group: int) -> None:
        found = self.lab.api.objects.get(("Topic", NAMESPACE, name))
        if found is not None:
            wanted = self._wanted(found)
            self.lab.brokers.groups[f"{CLUSTER}-{group}"].topics[wanted.name] = wanted

    def mqadmin_deletes(self, group: int, subject: str, then: str) -> None:
        found = self.lab.brokers.groups[f"{CLUSTER}-{group}"]
        found.topics.pop(subject, None)
        found.figures.pop(subject, None)
        self._then(then)

    def messages(self, subject: str, messages: int) -> None:
        for found in self.lab.brokers.groups.values():
            if subject in found.topics:
                found.figures[subject] = messages

    def leaders(self, group: int, leads: bool) -> None:
        self.lab.brokers.groups[f"{CLUSTER}-{group}"].leads = leads

    def cluster(self, groups: int, forming: int | None) -> None:
        """It is made, scaled, taken away."""
        if groups:
            self.lab.api.cluster(groups, formed=sorted(set(range(groups)) - {forming}))
        else:
            self.lab.api.objects.pop(("BrokerCluster", NAMESPACE, CLUSTER), None)

    def time_passes(self, seconds: int) -> None:
        self.lab.seconds += seconds

    def one_pass(self) -> None:
        self.loop.run_until_complete(self.lab.once())

    def crash(self, writes: int, after: bool) -> None:
        self.loop.run_until_complete(self.lab.crash(writes, after=after))

    def _then(self, what: str) -> None:
        if what == "pass":
            self.one_pass()
        elif what == "rest":
            self.it_comes_to_rest()
        elif what == "crash":
            self.crash(writes=len(self.lab.api.objects) % 4, after=bool(self.lab.api.writes % 2))

    def operator_restarts(self) -> None:
        self.lab.restart()

    # -- what has to be so in the end

    def it_comes_to_rest(self) -> None:
        for group in self.lab.brokers.groups.values():
            group.leads = True
        cluster = self.lab.api.objects.get(("BrokerCluster", NAMESPACE, CLUSTER))
        if cluster is not None:
            for row in cluster["status"]["groups"]:
                row["formed"] = True
        for _ in range(3):  # what waits for its turn gets it
            self.lab.seconds += 30
            self.loop.run_until_complete(self.lab.settle())
        self.promises_hold()
        for found in self.lab.api.of("Topic"):
            expected = self._expected(found, cluster)
            told = self._told(found)
            assert told in expected, f"{found['metadata']['name']} says {told} and not {expected}"
            if told == "Reconciled":
                self._must_be_so(found, cluster)

    @staticmethod
    def _told(found: dict[str, Any]) -> str:
        rows = found.get("status", {}).get("conditions", ())
        ready = next((row for row in rows if row["type"] == "Ready"), None)
        assert ready is not None, f"{found['metadata']['name']} says nothing"
        assert (ready["status"] == "True") == (ready["reason"] == "Reconciled")
        assert found["metadata"].get("deletionTimestamp") or (
            found["status"]["observedGeneration"] == found["metadata"]["generation"]
        )
        reason: str = ready["reason"]
        return reason

    def _expected(self, found: dict[str, Any], cluster: dict[str, Any] | None) -> set[str]:
        """Reasons that would be true of a resource, when all leaders answer and nothing is in progress."""
        spec, subject = found["spec"], self._subject(found)
        owned = self.lab.api.owned(found)
        if found["metadata"].get("deletionTimestamp"):
            held = [group for group in owned if self.lab.brokers.groups[group].figures.get(subject)]
            assert cluster is not None and spec["deletionPolicy"] == "DeleteIfEmpty" and held, "it hangs"
            return {"NotEmpty"}
        if subject == "SCHEDULE_TOPIC_XXXX":
            return {"SystemTopic"}
        others = [
            each
            for each in self.lab.api.of("Topic")
            if self._subject(each) == subject and each["metadata"]["uid"] != found["metadata"]["uid"]
        ]
        if others and self._holder(subject)["metadata"]["uid"] != found["metadata"]["uid"]:
            return {"Conflict"}
        return self._unrivalled(found, cluster, owned)

    def _holder(self, subject: str) -> dict[str, Any]:
        """The resource that decides: the present holder, then the oldest, then the first by name."""
        rivals = [each for each in self.lab.api.of("Topic") if self._subject(each) == subject]

        def rank(each: dict[str, Any]) -> tuple[bool, str, str]:
            has = bool(self.lab.api.owned(each))
            return not has, each["metadata"]["creationTimestamp"], each["metadata"]["name"]

        return min(rivals, key=rank)

    def _unrivalled(self, found: dict[str, Any], cluster: dict[str, Any] | None, owned: set[str]) -> set[str]:
        if cluster is None:
            return {"ClusterNotFound"}
        groups = self._groups(found, cluster)
        there = [group for group in groups if group in self._of_cluster(cluster)]
        foreign = [
            group
            for group in there
            if group not in owned and self._subject(found) in self.lab.brokers.groups[group].topics
        ]
        if foreign:
            return {"AlreadyExists"}
        return {"GroupNotFound"} if len(there) < len(groups) else {"Reconciled"}

    def _must_be_so(self, found: dict[str, Any], cluster: dict[str, Any]) -> None:
        wanted = self._wanted(found)
        more = False
        for group in self._groups(found, cluster):
            there = self.lab.brokers.groups[group].topics[wanted.name]
            assert (there.perm, there.order) == (wanted.perm, wanted.order)
            assert there.read_queues >= there.write_queues >= wanted.write_queues
            more |= there.read_queues > wanted.read_queues
        rows = {row["type"]: row["reason"] for row in found["status"]["conditions"]}
        assert rows["Synced"] == ("QueuesNotLowered" if more else "Reconciled")
        marked = bool(found["metadata"].get("finalizers"))
        assert marked == (found["spec"]["deletionPolicy"] != "Retain")

    @staticmethod
    def _subject(found: dict[str, Any]) -> str:
        name: str = found["spec"].get("topicName", found["metadata"]["name"])
        return name

    @staticmethod
    def _of_cluster(cluster: dict[str, Any]) -> list[str]:
        return [f"{CLUSTER}-{number}" for number in range(cluster["spec"]["groups"])]

    def _groups(self, found: dict[str, Any], cluster: dict[str, Any]) -> list[str]:
        numbers = found["spec"].get("groups")
        return self._of_cluster(cluster) if numbers is None else [f"{CLUSTER}-{number}" for number in numbers]

    def _wanted(self, found: dict[str, Any]) -> TopicSettings:
        spec = found["spec"]
        queues = spec.get("queues", 8)
        return TopicSettings(self._subject(found), queues, queues, PERMISSIONS[spec.get("permission", "ReadWrite")])


def play(seed: int, steps: int = 40) -> None:
    """A story from one number. AssertionError: a promise is broken, or something is not as it says."""
    chance, story = random.Random(seed), Story()
    try:
        for _ in range(steps):
            name = chance.choice(list(ACTIONS))
            getattr(story, name)(**{key: chance.choice(values) for key, values in ACTIONS[name].items()})
            story.promises_hold()
        story.it_comes_to_rest()
    finally:
        story.close()


class TopicsAreKept(RuleBasedStateMachine):
    """The same, told by Hypothesis: it looks for the shortest story that goes wrong."""

    def __init__(self) -> None:
        super().__init__()
        self.story = Story()

    def teardown(self) -> None:
        self.story.close()

    @invariant()
    def promises_hold(self) -> None:
        self.story.promises_hold()


def _rule(name: str) -> Any:
    def happens(self: TopicsAreKept, **arguments: Any) -> None:
        getattr(self.story, name)(**arguments)

    happens.__name__ = name
    drawn: dict[str, Any] = {key: st.sampled_from(values) for key, values in ACTIONS[name].items()}
    return rule(**drawn)(happens)


for _name in ACTIONS:
    setattr(TopicsAreKept, _name, _rule(_name))
