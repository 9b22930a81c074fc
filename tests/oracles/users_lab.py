"""Users of a cluster with a simulated API server, and brokers and name servers that keep users as real ones do."""

from __future__ import annotations

import asyncio
import base64
import json
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from simulated_api import Json, SimulatedApi
from simulated_cluster import InlineKube

from tallystick.operator.core import kube
from tallystick.operator.core.events import Events
from tallystick.operator.core.node_api import NameServerName, NodeName, NodeRefusedError, UnreachableError
from tallystick.operator.users.reconcile import UsersReconciler

NAMESPACE, CLUSTER = "shop", "orders"
SECURE = {"accessControl": {"enabled": True}}


class Crash(BaseException):
    """The operator's process ended."""


@dataclass
class World:
    """One cluster. `users`: by number of the group, as its brokers store them."""

    groups: int = 2
    time: float = 1_000_000.0
    users: dict[int, dict[str, Json]] = field(default_factory=dict)
    accounts: dict[int, str] = field(default_factory=dict)
    """Accounts of RocketMQ 4.x by group: they have no owner."""
    silent: set[int] = field(default_factory=set)
    """Groups without a leader."""
    starting: bool = False
    """The brokers have no access control yet."""
    name_servers_read: bool = True
    writes_left: int | None = None
    puts: list[tuple[int, str]] = field(default_factory=list)
    reconciler: UsersReconciler | None = None

    def __post_init__(self) -> None:
        self.api = SimulatedApi(lambda: self.time)
        self.api.hook = lambda *_: self.count()
        self.users = {number: {} for number in range(self.groups)}
        self._read_version = 0

    # -- people

    def by_hand(self, method: str, path: str, body: Json | None = None) -> None:
        held, self.api.hook = self.api.hook, lambda *_: None
        try:
            status, answer = self.api(method, path, {}, body, "application/merge-patch+json")
            assert status == 200, answer
        finally:
            self.api.hook = held

    def cluster(self, **spec: Any) -> None:
        body = {"metadata": {"name": CLUSTER}, "spec": {"groups": self.groups, "replicas": 3, **spec}}
        self.by_hand("POST", kube.CLUSTERS.path(NAMESPACE), body)

    def user(self, name: str, annotations: Json | None = None, **spec: Any) -> None:
        metadata = {"name": name, "annotations": annotations or {}}
        self.by_hand(
            "POST", kube.USERS.path(NAMESPACE), {"metadata": metadata, "spec": {"clusterName": CLUSTER, **spec}}
        )

    def change(self, name: str, **changes: Any) -> None:
        self.by_hand("PATCH", kube.USERS.path(NAMESPACE, name), changes)

    def delete(self, resource: kube.Resource, name: str) -> None:
        self.by_hand("DELETE", resource.path(NAMESPACE, name))

    def secret(self, name: str, **values: str) -> None:
        data = {key: base64.b64encode(value.encode()).decode() for key, value in values.items()}
        if self.api.get("secrets", name) is None:
            self.by_hand("POST", kube.SECRETS.path(NAMESPACE), {"metadata": {"name": name}, "data": data})
        else:
            self.by_hand("PATCH", kube.SECRETS.path(NAMESPACE, name), {"data": data})

    # -- what is seen

    def read(self, secret: str, key: str) -> str:
        body = self.api.get("secrets", secret)
        assert body is not None, secret
        return base64.b64decode(body["data"][key]).decode()

    def stored(self) -> dict[str, Json]:
        """The users in the Secret that pods mount, by name."""
        return {each["username"]: each for each in json.loads(self.read(f"{CLUSTER}-access", "plain_acl.yml"))["users"]}

    def status(self, name: str) -> Json:
        body = self.api.get("users", name)
        assert body is not None, name
        return body.get("status") or {}

    def reason(self, name: str) -> str:
        conditions: list[Json] = self.status(name).get("conditions") or [{}]
        return str(conditions[0].get("reason", ""))

    # -- the operator

    def one_pass(self, writes: int | None = None) -> float | None:
        if self.reconciler is None:
            api = InlineKube(self.api)
            events = Events(api, "operator-0", lambda: self.time)
            self.reconciler = UsersReconciler(api, Brokers(self), events, lambda: self.time)  # type: ignore[arg-type]
        self.api.collect()
        self.writes_left = writes
        try:
            return asyncio.run(self.reconciler.reconcile(NAMESPACE, CLUSTER))
        except Crash:
            self.reconciler = None
        except kube.KubeError:
            pass  # tried again
        finally:
            self.writes_left = None
        return 1.0

    def settle(self, passes: int = 6) -> None:
        for _ in range(passes):
            self.one_pass()
            self.time += 3

    def count(self) -> None:
        """Called before each write."""
        if self.writes_left is not None:
            if self.writes_left <= 0:
                raise Crash
            self.writes_left -= 1


class Brokers:
    """`NodeApi`: what brokers and name servers answer."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def ask(
        self, node: NodeName | NameServerName, method: str, path: str, body: Any = None, *, timeout_seconds: float = 5
    ) -> Any:
        world = self._world
        if isinstance(node, NameServerName):
            secret = world.api.get("secrets", f"{CLUSTER}-access")
            if secret is None or "plain_acl.yml" not in secret["data"]:
                raise UnreachableError(f"{node}: its pod waits for its files")
            if world.name_servers_read:
                found = json.loads(world.read(f"{CLUSTER}-access", "plain_acl.yml"))
                world._read_version = found["dataVersion"][0]["counter"]
            return {"access": {"version": {"counter": world._read_version}}}
        if node.group in world.silent:
            raise UnreachableError(f"{node}: no answer")
        if path == "/group":
            return {"broker": {"leads": node.member == 1}}
        if world.starting:
            raise NodeRefusedError("the broker has no access control (aclEnable)", status=409)
        users = world.users[node.group]
        shown = [{key: value for key, value in each.items() if key != "password"} for each in users.values()]
        return {"users": shown}

    async def at_leader(
        self, nodes: list[NodeName], method: str, path: str, body: Any = None, *, timeout_seconds: float = 5
    ) -> Any:
        world, group = self._world, nodes[0].group
        if group in world.silent:
            raise UnreachableError("no answer")
        if world.starting:
            raise NodeRefusedError("the broker has no access control (aclEnable)", status=409)
        world.count()
        name = unquote(urlsplit(path).path.removeprefix("/users/"))
        users, found = world.users[group], world.users[group].get(name)
        owner = body["owner"] if method == "PUT" else parse_qs(urlsplit(path).query)["owner"][0]
        adopts = method == "PUT" and body.get("adopt") == "true" and found is not None and not found.get("owner")
        if found is not None and found.get("owner") != owner and not adopts:
            raise NodeRefusedError(f"the user {name} exists", status=412)
        if name == world.accounts.get(group):
            raise NodeRefusedError(f"{name} is an account", status=412)
        if method == "PUT":
            world.puts.append((group, name))
            users[name] = {key: value for key, value in body.items() if key != "adopt"}
        else:
            users.pop(name, None)
        return {}
