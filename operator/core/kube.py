"""The API server, asked in plain dictionaries: the official client's connections, none of its models.

A pass reads what there is with `list` and `get`, never from a cache: what it decides on includes what it wrote a moment
ago. Reads are cheap here (a dozen objects a cluster), a decision on an old picture is not.

Writes that say how something has to be are server-side applies with one field manager and `force`: whoever else set one
of these fields loses it, whoever set others keeps them. Marks of a moment (an annotation, `storage` of a claim) are
merge patches, which an apply does not take away.

The client blocks, so it runs in a pool of threads of its own; its size bounds the requests under way.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

import orjson

FIELD_MANAGER = "tallystick-operator"
GROUP = "tallystick.dev"
VERSION = "v1beta1"
PAGE = 500
"""Objects in one answer to a list: bounds what an answer takes in memory."""
TIMEOUT_SECONDS = (5.0, 20.0)
"""To connect, and between two bytes of an answer."""

Json = dict[str, Any]
"""An object of the API as it is sent."""


@dataclass(frozen=True, slots=True)
class Resource:
    """A namespaced kind: where it is, and what it is called."""

    api: str
    plural: str
    kind: str

    @property
    def api_version(self) -> str:
        return self.api.removeprefix("apis/").removeprefix("api/")

    def path(self, namespace: str | None, name: str | None = None, subresource: str | None = None) -> str:
        """Below the server's address. Without a namespace: those of all namespaces."""
        parts = [self.api]
        if namespace is not None:
            parts += ["namespaces", quote(namespace, safe="")]
        parts.append(self.plural)
        parts += [quote(part, safe="") for part in (name, subresource) if part is not None]
        return "/" + "/".join(parts)


PODS = Resource("api/v1", "pods", "Pod")
SERVICES = Resource("api/v1", "services", "Service")
CLAIMS = Resource("api/v1", "persistentvolumeclaims", "PersistentVolumeClaim")
CONFIG_MAPS = Resource("api/v1", "configmaps", "ConfigMap")
SECRETS = Resource("api/v1", "secrets", "Secret")
SERVICE_ACCOUNTS = Resource("api/v1", "serviceaccounts", "ServiceAccount")
EVENTS = Resource("api/v1", "events", "Event")
STATEFUL_SETS = Resource("apis/apps/v1", "statefulsets", "StatefulSet")
DISRUPTION_BUDGETS = Resource("apis/policy/v1", "poddisruptionbudgets", "PodDisruptionBudget")
NETWORK_POLICIES = Resource("apis/networking.k8s.io/v1", "networkpolicies", "NetworkPolicy")
LEASES = Resource("apis/coordination.k8s.io/v1", "leases", "Lease")
CLUSTERS = Resource(f"apis/{GROUP}/{VERSION}", "brokerclusters", "BrokerCluster")
BROKER_NODES = Resource(f"apis/{GROUP}/{VERSION}", "brokernodes", "BrokerNode")
TOPICS = Resource(f"apis/{GROUP}/{VERSION}", "topics", "Topic")
CONSUMER_GROUPS = Resource(f"apis/{GROUP}/{VERSION}", "consumergroups", "ConsumerGroup")
STORE_JOBS = Resource(f"apis/{GROUP}/{VERSION}", "storejobs", "StoreJob")

RESOURCES = (
    *(PODS, SERVICES, CLAIMS, CONFIG_MAPS, SECRETS, SERVICE_ACCOUNTS, EVENTS, STATEFUL_SETS, DISRUPTION_BUDGETS),
    *(NETWORK_POLICIES, LEASES, CLUSTERS, BROKER_NODES, TOPICS, CONSUMER_GROUPS, STORE_JOBS),
)
BY_KIND: Mapping[str, Resource] = {resource.kind: resource for resource in RESOURCES}


class KubeError(Exception):
    """The API server did not do it. `status`: its HTTP status, 0: there was no answer. `reason`: its word for it.

    KubeError
      NotFoundError      there is no such object (or kind)
      ConflictError      it exists already, or is not as it was
      ForbiddenError     we may not, or a rule of the cluster is against it (quota, admission)
      InvalidError       it is not well-formed: only its author can mend it
      UnavailableError   no answer, too many requests, or a fault of the server: later
    """

    def __init__(self, message: str, *, status: int, reason: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason


class NotFoundError(KubeError):
    pass


class ConflictError(KubeError):
    pass


class ForbiddenError(KubeError):
    pass


class InvalidError(KubeError):
    pass


class UnavailableError(KubeError):
    pass


def error_of(status: int, body: bytes, about: str) -> KubeError:
    """The error that an answer stands for. Its message is what the server says, and of what."""
    try:
        answer = orjson.loads(body)
    except ValueError:
        answer = {}
    message, reason = body[:200].decode(errors="replace"), ""
    if isinstance(answer, dict):
        message, reason = str(answer.get("message") or message), str(answer.get("reason") or "")
    kinds = {404: NotFoundError, 409: ConflictError, 410: ConflictError, 401: ForbiddenError, 403: ForbiddenError}
    fallback = UnavailableError if status >= 500 or status in (408, 429) else InvalidError
    return kinds.get(status, fallback)(f"{about}: {message or status}", status=status, reason=reason)


class Connection(Protocol):
    """One request, blocking: method, path, query, body and its type; status and body of the answer.

    UnavailableError: there was none.
    """

    def __call__(
        self, method: str, path: str, query: Mapping[str, str], body: Json | None, content_type: str
    ) -> tuple[int, bytes]: ...


class Kube:
    """What the operator asks of an API server. Every method may raise any KubeError."""

    def __init__(self, connection: Connection, *, threads: int = 8) -> None:
        self._connection = connection
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="kube")

    def close(self) -> None:
        """Ends the threads; requests under way are waited for by nobody."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def get(self, resource: Resource, namespace: str, name: str) -> Json:
        answer: Json = await self._ask("GET", resource.path(namespace, name))
        return answer

    async def find(self, resource: Resource, namespace: str, name: str) -> Json | None:
        """As `get`; None: there is none."""
        try:
            return await self.get(resource, namespace, name)
        except NotFoundError:
            return None

    async def list(self, resource: Resource, namespace: str | None, labels: str = "") -> list[Json]:
        """All that match the label selector. Their kind and apiVersion are filled in: the server leaves them out."""
        found: list[Json] = []
        query = {"limit": str(PAGE)} | ({"labelSelector": labels} if labels else {})
        while True:
            answer = await self._ask("GET", resource.path(namespace), query)
            for item in answer.get("items") or ():
                found.append({"apiVersion": resource.api_version, "kind": resource.kind} | item)
            more = (answer.get("metadata") or {}).get("continue")
            if not more:
                return found
            query["continue"] = more

    async def create(self, resource: Resource, namespace: str, body: Json) -> Json:
        """ConflictError: there is one with this name."""
        query = {"fieldManager": FIELD_MANAGER}
        answer: Json = await self._ask("POST", resource.path(namespace), query, body)
        return answer

    async def apply(self, body: Json, *, subresource: str | None = None) -> Json:
        """Server-side apply of an object that names its kind, namespace and name: created or changed.

        Fields that an earlier apply named and this one does not are taken away.
        """
        resource, metadata = BY_KIND[body["kind"]], body["metadata"]
        path = resource.path(metadata["namespace"], metadata["name"], subresource)
        query = {"fieldManager": FIELD_MANAGER, "force": "true"}
        answer: Json = await self._ask("PATCH", path, query, body, "application/apply-patch+yaml")
        return answer

    async def apply_status(self, resource: Resource, namespace: str, name: str, status: Json) -> Json:
        """All of an object's status. NotFoundError: it is gone (an apply of a status makes no object)."""
        metadata = {"namespace": namespace, "name": name}
        body = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, "status": status}
        return await self.apply(body, subresource="status")

    async def patch(self, resource: Resource, namespace: str, name: str, body: Json) -> Json:
        """JSON merge patch: null removes. With metadata.resourceVersion in it, ConflictError if it changed."""
        query = {"fieldManager": FIELD_MANAGER}
        path = resource.path(namespace, name)
        answer: Json = await self._ask("PATCH", path, query, body, "application/merge-patch+json")
        return answer

    async def replace(self, resource: Resource, namespace: str, name: str, body: Json) -> Json:
        """ConflictError: its resourceVersion is not the one in `body`."""
        query = {"fieldManager": FIELD_MANAGER}
        answer: Json = await self._ask("PUT", resource.path(namespace, name), query, body)
        return answer

    async def delete(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        *,
        uid: str | None = None,
        grace_seconds: int | None = None,
    ) -> None:
        """Begins its deletion; dependents go in the background. NotFoundError: it is gone already.

        With `uid`: only that very object; ConflictError: another one has its name.
        """
        body: Json = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        if uid is not None:
            body["preconditions"] = {"uid": uid}
        if grace_seconds is not None:
            body["gracePeriodSeconds"] = grace_seconds
        await self._ask("DELETE", resource.path(namespace, name), {}, body)

    async def evict(self, namespace: str, pod: str, *, uid: str) -> None:
        """As `delete` of that very pod, if its disruption budget allows it. UnavailableError (429): it does not now."""
        body: Json = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod, "namespace": namespace},
            "deleteOptions": {"preconditions": {"uid": uid}},
        }
        await self._ask("POST", PODS.path(namespace, pod, "eviction"), {}, body)

    async def _ask(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Json | None = None,
        content_type: str = "application/json",
    ) -> Any:
        def work() -> Any:
            status, answer = self._connection(method, path, query or {}, body, content_type)
            if not 200 <= status < 300:
                raise error_of(status, answer, f"{method} {path}")
            return orjson.loads(answer) if answer else {}

        return await self._in_thread(work)

    async def _in_thread(self, work: Callable[[], Any]) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


def connect(threads: int = 8) -> Connection:
    """The API server of the cluster that we run in; elsewhere the one of KUBECONFIG or ~/.kube/config."""
    # Imported here: it takes a second and 30 MiB, and nobody who tests against a fake needs it.
    import urllib3
    from kubernetes.client.api_client import ApiClient
    from kubernetes.client.configuration import Configuration
    from kubernetes.client.exceptions import ApiException

    configuration = Configuration()
    configuration.connection_pool_maxsize = threads
    configuration.retries = False  # what is tried again is decided by who asked
    load_configuration(configuration)
    client = ApiClient(configuration)
    client.user_agent = FIELD_MANAGER

    def ask(
        method: str, path: str, query: Mapping[str, str], body: Json | None, content_type: str
    ) -> tuple[int, bytes]:
        headers = {"Accept": "application/json", "Content-Type": content_type}
        try:
            request = client.param_serialize(
                method,
                path,
                query_params=list(query.items()),
                header_params=headers,
                body=body,
                auth_settings=["BearerToken"],
            )
            answer = client.call_api(*request, _request_timeout=TIMEOUT_SECONDS)
            return int(answer.status), bytes(answer.read() or b"")  # type: ignore[no-untyped-call]
        except (ApiException, urllib3.exceptions.HTTPError, OSError) as error:
            raise UnavailableError(f"{method} {path}: {error}", status=0, reason=type(error).__name__) from error

    return ask


def load_configuration(configuration: Any) -> None:
    """Address, authorities and credentials into the client's configuration object."""
    from kubernetes.config.incluster_config import SERVICE_TOKEN_FILENAME, load_incluster_config
    from kubernetes.config.kube_config import load_kube_config

    if os.environ.get("KUBERNETES_SERVICE_HOST") and Path(SERVICE_TOKEN_FILENAME).is_file():
        load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
    else:
        file = os.environ.get("KUBECONFIG")
        load_kube_config(config_file=file, client_configuration=configuration)  # type: ignore[no-untyped-call]
