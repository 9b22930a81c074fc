"""One pass over the Users of one cluster, and over the accounts that its pods mount.

    1. read the Users, and their passwords from Secrets; create the Secrets that the operator owns
    2. write the Secret with all accounts: brokers start with it, and name servers use it
    3. read the users of the broker groups
    4. decide on each User (pure), change brokers, write the status

Passwords are in the memory of a pass only. The order matters for a cluster that begins to use access control: its pods
start with all accounts that exist by then.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from tallystick.operator.core import kube
from tallystick.operator.core.declared import Phase, Problem
from tallystick.operator.core.events import Events, Reference
from tallystick.operator.core.kube import ConflictError, Json, Kube, KubeError, NotFoundError
from tallystick.operator.core.node_api import NodeApi, NodeError
from tallystick.operator.users import reasons
from tallystick.operator.users.carry_out import Hands, Written, put_user
from tallystick.operator.users.decide import Decision, decide, holders
from tallystick.operator.users.observe import observe, wants_access_control
from tallystick.operator.users.observed import ClusterView, Credential
from tallystick.operator.users.secrets import (
    TakenError,
    credential_of,
    keep_accounts,
    stored_superuser,
    superuser_password,
)
from tallystick.operator.users.spec import Declaration, cluster_of, declaration

_logger = logging.getLogger(__name__)

RESYNC_SECONDS = 20.0
"""Interval of passes: no event reports changed Secrets, or changes by mqadmin."""
PENDING_SECONDS = 3.0


class UsersReconciler:
    """Runs the passes for keys of users. `now()`: seconds since 1970."""

    def __init__(self, api: Kube, nodes: NodeApi, events: Events, now: Callable[[], float]) -> None:
        self._kube, self._nodes, self._events, self._now = api, nodes, events, now
        self._written: dict[tuple[str, str, str], Written] = {}
        self._told: dict[tuple[str, str], str] = {}

    async def reconcile(self, namespace: str, name: str) -> float | None:
        """Runs one pass. Returns the seconds until the next; None: the cluster has neither Users nor access control.

        KubeError: Users or Secrets could not be read or written.
        """
        cluster = await self._kube.find(kube.CLUSTERS, namespace, name)
        bodies = [each for each in await self._kube.list(kube.USERS, namespace) if cluster_of(each) == name]
        declared = [declaration(each) for each in bodies]
        if not declared and (cluster is None or not wants_access_control(cluster)):
            return None
        live = cluster is not None and not cluster["metadata"].get("deletionTimestamp")
        if any(each.marked for each in declared) and await self._kube.is_terminating(namespace):
            live, cluster = False, None  # finalizers are released while the operator still may
        holder = holders(declared)
        credentials: dict[str, Credential] = {}
        version, password, refused = 0, "", None
        if live and cluster is not None:
            credentials = await self._credentials(declared, holder)
            try:
                password = await superuser_password(self._kube, cluster)
                version = await self._accounts(cluster, password, declared, credentials)
            except (TakenError, kube.ForbiddenError, kube.InvalidError) as error:
                text = error.said if isinstance(error, KubeError) else str(error)
                refused = Problem(Phase.PENDING, reasons.SECRET_REFUSED, f"the accounts cannot be stored: {text}")
                await self._tell(cluster, refused.message)
        view = await observe(self._nodes, cluster, version)
        memory = self._memory(namespace, name, cluster, declared)
        pending = False
        if live and cluster is not None and password and view.access_control:
            pending = not await self._keep_superuser(cluster, view, password, memory)
        for each in declared:
            credential = Credential(problem=refused) if refused else credentials.get(each.uid, Credential())
            pending |= not await self._one(cluster, each, credential, view, holder[each.user], memory)
        return PENDING_SECONDS if pending else RESYNC_SECONDS

    def _memory(self, namespace: str, name: str, cluster: Json | None, declared: Sequence[Declaration]) -> Written:
        uid = "" if cluster is None else cluster["metadata"]["uid"]
        memory = self._written.setdefault((namespace, name, uid), Written())
        self._written = {key: each for key, each in self._written.items() if key[:2] != (namespace, name)}
        self._written[namespace, name, uid] = memory
        memory.forget_all_but(frozenset({uid, *(each.uid for each in declared)}))
        return memory

    async def _credentials(self, declared: Sequence[Declaration], holder: Mapping[str, str]) -> dict[str, Credential]:
        found = {}
        for each in declared:
            if not each.deleting and not each.error and holder[each.user] == each.uid:
                found[each.uid] = await credential_of(self._kube, each)
        return found

    async def _accounts(
        self, cluster: Json, password: str, declared: Sequence[Declaration], credentials: dict[str, Credential]
    ) -> int:
        users = [
            each.stored(credentials[each.uid].password)
            for each in declared
            if each.uid in credentials and credentials[each.uid].problem is None
        ]
        unknown = frozenset(
            each.uid
            for each in declared
            if not each.deleting and (each.uid not in credentials or credentials[each.uid].problem is not None)
        )
        return await keep_accounts(self._kube, cluster, password, users, unknown, self._now())

    async def _keep_superuser(self, cluster: Json, view: ClusterView, password: str, memory: Written) -> bool:
        """Keeps the password of the superuser on all groups. Returns whether all groups have it."""
        user, uid, complete = stored_superuser(cluster, password), cluster["metadata"]["uid"], True
        for number, group in view.groups.items():
            if group.silent:
                complete = False
            elif not memory.has(number, uid, user) or user["username"] not in group.users:
                try:
                    await put_user(self._nodes, cluster, number, user)
                    memory.note(number, uid, user)
                except NodeError as error:
                    complete = False
                    _logger.warning("the superuser of %s: %s", group.name, error)
        return complete

    async def _one(
        self,
        cluster: Json | None,
        declared: Declaration,
        credential: Credential,
        view: ClusterView,
        holder: str,
        memory: Written,
    ) -> bool:
        """Carries out one decision. Returns whether nothing is left to do."""
        user = declared.stored(credential.password) if credential.password else None
        written = frozenset(
            (number, declared.uid)
            for number in view.groups
            if user is not None and memory.has(number, declared.uid, user)
        )
        decision: Decision = decide(declared, credential, view, holder, written)
        hands = Hands(self._kube, self._nodes, self._events, self._now())
        try:
            if decision.finalizer and not declared.marked and not declared.deleting:
                await hands.mark(declared, True)
            done = await hands.carry_out(cluster, decision, user, memory)
        except (ConflictError, NotFoundError):
            return False  # it changed meanwhile: the next pass reads it again
        except KubeError as error:
            _logger.warning("User %s/%s: %s", declared.namespace, declared.name, error)
            return False
        return done and (decision.problem is None or decision.problem.phase is Phase.REFUSED)

    async def _tell(self, cluster: Json, message: str) -> None:
        key = cluster["metadata"]["namespace"], cluster["metadata"]["name"]
        if self._told.get(key) != message:
            self._told[key] = message
            await self._events.post(Reference.to(cluster), reasons.SECRET_REFUSED, message, warning=True)
