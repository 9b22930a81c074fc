"""A client of the API server with plain dictionaries. It uses the connections of the official client, not its models.

A pass reads with `list` and `get`, never from a cache, so its decisions include its own latest writes. Reads are cheap
(a dozen objects for each cluster); decisions on old state are not.

Desired state is written with server-side apply, one field manager and `force`: the operator takes over the fields that
it sets and leaves all other fields to their managers. Transient changes (an annotation, `storage` of a claim) are merge
patches, which an apply does not remove.

A write names the version of the object that the caller has read, or that there is none. If another client was faster,
the server refuses the write (ConflictError). So the operator changes exactly the objects that it has checked.

The client blocks, so it runs in its own thread pool. The size of the pool limits the concurrent requests.
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
"""Objects in one response to a list. It limits the memory for a response."""
NO_VERSION = "1"
"""A resource version that no object has. An apply with it creates an object, and is refused if the name exists."""
TIMEOUT_SECONDS = (5.0, 20.0)
"""Timeouts for connecting, and between two bytes of a response."""

Json = dict[str, Any]
"""An object of the API, decoded from JSON."""


@dataclass(frozen=True, slots=True)
class Resource:
    """A namespaced kind: API path, plural and kind."""

    api: str
    plural: str
    kind: str

    @property
    def api_version(self) -> str:
        return self.api.removeprefix("apis/").removeprefix("api/")

    def path(self, namespace: str | None, name: str | None = None, subresource: str | None = None) -> str:
        """Returns the URL path. Without a namespace: the objects of all namespaces."""
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
USERS = Resource(f"apis/{GROUP}/{VERSION}", "users", "User")
STORE_JOBS = Resource(f"apis/{GROUP}/{VERSION}", "storejobs", "StoreJob")
BACKUPS = Resource(f"apis/{GROUP}/{VERSION}", "backups", "Backup")
SCHEDULED_BACKUPS = Resource(f"apis/{GROUP}/{VERSION}", "scheduledbackups", "ScheduledBackup")
JOBS = Resource("apis/batch/v1", "jobs", "Job")

RESOURCES = (
    *(PODS, SERVICES, CLAIMS, CONFIG_MAPS, SECRETS, SERVICE_ACCOUNTS, EVENTS, STATEFUL_SETS, DISRUPTION_BUDGETS),
    *(NETWORK_POLICIES, LEASES, CLUSTERS, BROKER_NODES, TOPICS, CONSUMER_GROUPS, USERS, STORE_JOBS),
    *(BACKUPS, SCHEDULED_BACKUPS, JOBS),
)
BY_KIND: Mapping[str, Resource] = {resource.kind: resource for resource in RESOURCES}


class KubeError(Exception):
    """A request failed. `status`: the HTTP status, 0 without a response. `reason`: the reason of the API server.

    `said`: the message of the server in its words, for users. The text of the error contains the request too.

    KubeError
      NotFoundError      the object or its kind does not exist
      ConflictError      the object already exists, or it has changed
      ForbiddenError     a permission is missing, or a quota or an admission policy rejects the request
      InvalidError       the object is invalid; retrying does not help
      UnavailableError   no response, too many requests, or a server error; retrying may help
    """

    def __init__(self, message: str, *, status: int, reason: str = "", said: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.said = said or message


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


TERMINATING = "because it is being terminated"
"""Words of the API server in the rejection of a new object in a namespace that is being deleted."""
QUOTA = "exceeded quota"
"""Words of the API server in the rejection of an object that a quota does not permit."""
REJECTED = ("failed to create typed patch object", "failed calling webhook", "field not declared in schema")
"""Rejections of an object that the server sends as an internal error (500): only the object or a user can end them."""


def error_of(status: int, body: bytes, about: str) -> KubeError:
    """Returns the error for a response. Its message contains the request and the message of the server."""
    try:
        answer = orjson.loads(body)
    except ValueError:
        answer = {}
    message, reason = body[:200].decode(errors="replace"), ""
    if isinstance(answer, dict):
        message, reason = str(answer.get("message") or message), str(answer.get("reason") or "")
    said = message or f"HTTP status {status}"
    kinds = {404: NotFoundError, 409: ConflictError, 410: ConflictError, 401: ForbiddenError, 403: ForbiddenError}
    fallback = UnavailableError if status >= 500 or status in (408, 429) else InvalidError
    if status == 500 and any(words in said for words in REJECTED):
        fallback = InvalidError
    return kinds.get(status, fallback)(f"{about}: {said}", status=status, reason=reason, said=said)


class Connection(Protocol):
    """Sends one request and blocks. Returns status and body of the response.

    UnavailableError: there is no response.
    """

    def __call__(
        self, method: str, path: str, query: Mapping[str, str], body: Json | None, content_type: str
    ) -> tuple[int, bytes]: ...


class Kube:
    """The requests to the API server. Every method may raise any KubeError."""

    def __init__(self, connection: Connection, *, threads: int = 8) -> None:
        self._connection = connection
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="kube")

    def close(self) -> None:
        """Stops the threads without waiting for running requests."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def get(self, resource: Resource, namespace: str, name: str) -> Json:
        answer: Json = await self._ask("GET", resource.path(namespace, name))
        return answer

    async def find(self, resource: Resource, namespace: str, name: str) -> Json | None:
        """Like `get`; returns None if the object does not exist."""
        try:
            return await self.get(resource, namespace, name)
        except NotFoundError:
            return None

    async def list(self, resource: Resource, namespace: str | None, labels: str = "") -> list[Json]:
        """Returns all objects that match a label selector, with kind and apiVersion, which the server omits."""
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
        """Creates an object. ConflictError: the name already exists."""
        query = {"fieldManager": FIELD_MANAGER}
        answer: Json = await self._ask("POST", resource.path(namespace), query, body)
        return answer

    async def apply(self, body: Json, live: Json | None) -> Json:
        """Changes the object `live`, or creates one (None), by server-side apply. `body`: kind, namespace and name too.

        Fields of an earlier apply that are missing in this one are removed. ConflictError: the object is no longer
        `live`; with None: the name already exists.
        """
        version = {"resourceVersion": NO_VERSION} if live is None else _version_of(live)
        return await self._apply(body | {"metadata": body["metadata"] | version}, None)

    async def apply_status(self, resource: Resource, body: Json, status: Json) -> None:
        """Applies the complete status of the object `body`, which gets the new version.

        NotFoundError: the object does not exist. ConflictError: it has changed, or the name belongs to another object.
        """
        metadata = {key: body["metadata"][key] for key in ("namespace", "name", "uid", "resourceVersion")}
        found = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, "status": status}
        answer = await self._apply(found, "status")
        body["metadata"]["resourceVersion"] = answer["metadata"]["resourceVersion"]

    async def apply_status_of(self, body: Json) -> Json:
        """Applies the status in `body`. ConflictError: its metadata.resourceVersion is outdated."""
        return await self._apply(body, "status")

    async def _apply(self, body: Json, subresource: str | None) -> Json:
        resource, metadata = BY_KIND[body["kind"]], body["metadata"]
        path = resource.path(metadata["namespace"], metadata["name"], subresource)
        query = {"fieldManager": FIELD_MANAGER, "force": "true"}
        answer: Json = await self._ask("PATCH", path, query, body, "application/apply-patch+yaml")
        return answer

    async def patch_live(self, live: Json, body: Json) -> Json:
        """Sends a JSON merge patch for an object that was read. ConflictError: it has changed since."""
        metadata = live["metadata"]
        body = body | {"metadata": (body.get("metadata") or {}) | _version_of(live)}
        return await self.patch(BY_KIND[live["kind"]], metadata["namespace"], metadata["name"], body)

    async def patch(self, resource: Resource, namespace: str, name: str, body: Json) -> Json:
        """Sends a JSON merge patch; null removes a field. ConflictError: its metadata.resourceVersion is outdated."""
        query = {"fieldManager": FIELD_MANAGER}
        path = resource.path(namespace, name)
        answer: Json = await self._ask("PATCH", path, query, body, "application/merge-patch+json")
        return answer

    async def replace(self, resource: Resource, namespace: str, name: str, body: Json) -> Json:
        """Replaces an object. ConflictError: the resourceVersion in `body` is outdated."""
        query = {"fieldManager": FIELD_MANAGER}
        answer: Json = await self._ask("PUT", resource.path(namespace, name), query, body)
        return answer

    async def delete(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        *,
        uid: str,
        version: str | None = None,
        grace_seconds: int | None = None,
    ) -> None:
        """Deletes an object; dependents are deleted in the background. NotFoundError: it does not exist.

        ConflictError: an object with another UID has this name, or (`version`) the object has changed.
        """
        body: Json = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        body["preconditions"] = {"uid": uid} | ({"resourceVersion": version} if version is not None else {})
        if grace_seconds is not None:
            body["gracePeriodSeconds"] = grace_seconds
        await self._ask("DELETE", resource.path(namespace, name), {}, body)

    async def is_terminating(self, namespace: str) -> bool:
        """Whether a namespace is being deleted. The operator may not read namespaces, so it tries to create an Event.

        It is only tried: `dryRun` stores nothing. An error with another cause counts as no.
        """
        body: Json = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": "probe.", "namespace": namespace},
            "involvedObject": {"kind": "Namespace", "name": namespace, "namespace": namespace},
            "reason": "Probe",
            "source": {"component": FIELD_MANAGER},
        }
        try:
            await self._ask("POST", EVENTS.path(namespace), {"dryRun": "All"}, body)
        except ForbiddenError as error:
            return TERMINATING in error.said
        except KubeError:
            return False
        return False

    async def secret_exists(self, namespace: str, name: str) -> bool | None:
        """Whether a Secret exists; None: it is unknown. The operator may not read Secrets, so it tries to create one.

        It is only tried: `dryRun` stores nothing.
        """
        body: Json = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": namespace}}
        try:
            await self._ask("POST", SECRETS.path(namespace), {"dryRun": "All"}, body)
        except ConflictError as error:
            return True if error.reason == "AlreadyExists" else None
        except KubeError:
            return None
        return False

    async def refusal(self, resource: Resource, namespace: str, body: Json) -> str:
        """Returns why the API server would refuse to create an object; empty: it would not, or it is unknown.

        It is only tried: `dryRun` stores nothing. A refusal by a quota is not returned, because the object may be meant
        to take the place of one that still counts.
        """
        try:
            await self._ask("POST", resource.path(namespace), {"dryRun": "All"}, body)
        except (ForbiddenError, InvalidError) as error:
            unknown = error.status in (400, 401) or any(words in error.said for words in (*REJECTED, QUOTA))
            return "" if unknown else error.said
        except KubeError:
            return ""
        return ""

    async def evict(self, namespace: str, pod: str, *, uid: str) -> None:
        """Evicts a pod with this UID. UnavailableError (429): a PodDisruptionBudget does not permit it now."""
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


def _version_of(live: Json) -> Json:
    return {key: live["metadata"][key] for key in ("uid", "resourceVersion")}


def connect(threads: int = 8) -> Connection:
    """Connects to the API server of the cluster of this pod, otherwise that of KUBECONFIG or ~/.kube/config."""
    # Imported late: it takes a second and 30 MiB, and tests with a fake connection do not need it.
    import urllib3
    from kubernetes.client.api_client import ApiClient
    from kubernetes.client.configuration import Configuration
    from kubernetes.client.exceptions import ApiException

    configuration = Configuration()
    configuration.connection_pool_maxsize = threads
    configuration.retries = False  # the caller decides about retries
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
    """Sets address, certificate authorities and credentials of the client."""
    from kubernetes.config.incluster_config import SERVICE_TOKEN_FILENAME, load_incluster_config
    from kubernetes.config.kube_config import load_kube_config

    if os.environ.get("KUBERNETES_SERVICE_HOST") and Path(SERVICE_TOKEN_FILENAME).is_file():
        load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
    else:
        file = os.environ.get("KUBECONFIG")
        load_kube_config(config_file=file, client_configuration=configuration)  # type: ignore[no-untyped-call]
