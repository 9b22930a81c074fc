"""Carries out decisions about Users: finalizer, brokers, status."""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass, field
from urllib.parse import quote

import orjson

from tallystick.operator.core import kube
from tallystick.operator.core.declared import Phase, Problem
from tallystick.operator.core.events import Events, Reference
from tallystick.operator.core.kube import Json, Kube
from tallystick.operator.core.node_api import NodeApi, NodeError, NodeRefusedError
from tallystick.operator.users import reasons
from tallystick.operator.users.decide import Decision
from tallystick.operator.users.observe import members_of
from tallystick.operator.users.spec import FINALIZER, Declaration
from tallystick.operator.users.status import status_of

_logger = logging.getLogger(__name__)

WRITE_SECONDS = 15.0


@dataclass(slots=True)
class Written:
    """What this process has written to brokers, which show no passwords. Losing it costs a request for each user."""

    digests: dict[tuple[int, str], str] = field(default_factory=dict)
    """By number of the group and UID of the resource: digest of the user with its password."""

    def has(self, group: int, uid: str, user: Json) -> bool:
        return self.digests.get((group, uid)) == _digest(user)

    def note(self, group: int, uid: str, user: Json) -> None:
        self.digests[group, uid] = _digest(user)

    def forget_all_but(self, uids: frozenset[str]) -> None:
        """Forgets resources that no longer exist."""
        self.digests = {key: each for key, each in self.digests.items() if key[1] in uids}


def _digest(user: Json) -> str:
    return hashlib.sha256(orjson.dumps(user, option=orjson.OPT_SORT_KEYS)).hexdigest()


async def put_user(nodes: NodeApi, cluster: Json, group: int, user: Json, *, adopt: bool = False) -> None:
    """Creates or changes a user on a group. NodeError."""
    path = f"/users/{quote(str(user['username']), safe='')}"
    body = {**user, "adopt": "true"} if adopt else user
    await nodes.at_leader(members_of(cluster, group), "PUT", path, body, timeout_seconds=WRITE_SECONDS)


class Hands:
    """Carries out the decisions of one pass."""

    def __init__(self, api: Kube, nodes: NodeApi, events: Events, now: float) -> None:
        self._kube, self._nodes, self._events, self._now = api, nodes, events, now

    async def mark(self, declared: Declaration, wanted: bool) -> None:
        """Sets or removes the finalizer. KubeError."""
        others = [each for each in declared.finalizers if each != FINALIZER]
        finalizers = [*others, FINALIZER] if wanted else others
        answer = await self._kube.patch_live(declared.body, {"metadata": {"finalizers": finalizers}})
        declared.body["metadata"]["resourceVersion"] = answer["metadata"]["resourceVersion"]

    async def carry_out(self, cluster: Json | None, decision: Decision, user: Json | None, written: Written) -> bool:
        """Returns whether it succeeded. `user`: as brokers store it; None: its password is unknown. KubeError."""
        declared, failure = decision.declaration, None
        try:
            for group in decision.writes:
                assert cluster is not None and user is not None, "a user is written to the groups of a cluster"
                await put_user(self._nodes, cluster, group, user, adopt=declared.adopt)
                written.note(group, declared.uid, user)
            for group in decision.deletes:
                assert cluster is not None, "a user is deleted from the groups of a cluster"
                path = f"/users/{quote(declared.user, safe='')}?owner={quote(declared.uid, safe='')}"
                await self._nodes.at_leader(members_of(cluster, group), "DELETE", path, timeout_seconds=WRITE_SECONDS)
        except NodeError as error:
            failure = _told(declared, error)
            _logger.warning("User %s/%s: %s", declared.namespace, declared.name, error)
        if decision.release and failure is None:
            await self.mark(declared, False)
            if declared.deleting:
                return True
        if declared.deleting and not declared.marked:
            return True
        if decision.writes and failure is None:
            failure = Problem(Phase.PENDING, reasons.NAME_SERVERS_PENDING, "brokers have it; name servers read it next")
        await self._conclude(decision, failure)
        return failure is None

    async def _conclude(self, decision: Decision, failure: Problem | None) -> None:
        declared = decision.declaration
        before, status = declared.body.get("status") or {}, status_of(decision, failure, self._now)
        if status == before:
            return
        await self._kube.apply_status(kube.USERS, declared.body, status)
        ready = status["conditions"][0]
        old: Json = next((each for each in before.get("conditions") or () if each.get("type") == "Ready"), {})
        if status["phase"] == Phase.REFUSED and ready["reason"] != old.get("reason"):
            await self._events.post(Reference.to(declared.body), ready["reason"], ready["message"], warning=True)


def _told(declared: Declaration, error: NodeError) -> Problem:
    phase = Phase.DELETING if declared.deleting else Phase.PENDING
    if isinstance(error, NodeRefusedError) and error.status == 412:
        return Problem(phase if declared.deleting else Phase.REFUSED, reasons.ALREADY_EXISTS, str(error))
    if isinstance(error, NodeRefusedError) and error.status == 400:
        return Problem(phase if declared.deleting else Phase.REFUSED, reasons.REFUSED_BY_BROKER, str(error))
    return Problem(phase, reasons.GROUP_UNAVAILABLE, str(error))
