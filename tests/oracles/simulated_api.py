"""An API server in memory, as far as the operator can tell: what it stores, refuses and does by itself.

It keeps the contract that the operator relies on: a server-side apply takes away fields that its manager named before
and does not now, versions and uids change when they should, a claim outlives its deletion while a pod uses it, a pod
outlives it until its machine lets go, dependents go with their owners, an eviction asks the disruption budget.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import orjson

from tallystick.operator.core import kube

Json = dict[str, Any]
Key = tuple[str, str, str]


class RefusalError(Exception):
    """A refusal, as the server words it."""

    def __init__(self, status: int, reason: str, message: str = "") -> None:
        super().__init__(message or reason)
        self.body = {
            "kind": "Status",
            "status": "Failure",
            "reason": reason,
            "message": message or reason,
            "code": status,
        }
        self.status = status


class SimulatedApi:
    """`Connection` of `kube.py`. `hook(method, resource, key, body)` is called before each write, and may raise."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        self.objects: dict[Key, Json] = {}
        self.applied: dict[tuple[Key, str], Json] = {}
        self.hook: Callable[[str, kube.Resource, Key, Json | None, str], None] = lambda *args: None
        self.writes: list[str] = []
        self.before: Callable[[], None] = lambda: None
        """Called before each request. It may raise."""
        self.failing = 0
        """Requests from now on that get no answer."""
        self.losing = 0
        """Requests from now on that are carried out, and whose answers are lost."""
        self.admission: Callable[[str, Json], None] = lambda plural, body: None
        """Called before an object is created, also as a trial. It may raise RefusalError."""
        self.terminating: set[str] = set()
        """Namespaces that are being deleted."""
        self._numbers = itertools.count(1)

    # -- the wire ------------------------------------------------------------------------------------------------------

    def __call__(
        self, method: str, path: str, query: Mapping[str, str], body: Json | None, content_type: str
    ) -> tuple[int, bytes]:
        self.before()
        if self.failing > 0:
            self.failing -= 1
            raise kube.UnavailableError("no answer", status=0)
        resource, namespace, name, subresource = parsed(path)
        try:
            answer = self._answer(method, resource, namespace, name, subresource, query, body, content_type)
        except RefusalError as refusal:
            return refusal.status, orjson.dumps(refusal.body)
        if self.losing > 0:
            self.losing -= 1
            raise kube.UnavailableError("the connection ended before the answer", status=0)
        return 200, orjson.dumps(answer)

    def _answer(
        self,
        method: str,
        resource: kube.Resource,
        namespace: str | None,
        name: str | None,
        subresource: str | None,
        query: Mapping[str, str],
        body: Json | None,
        content_type: str,
    ) -> Json:
        if method == "GET" and name is None:
            return self._list(resource, namespace, query)
        assert namespace is not None
        if name is None:
            assert body is not None and method == "POST"
            name = body["metadata"].get("name") or f"{body['metadata']['generateName']}{next(self._numbers)}"
        key = (resource.plural, namespace, name)
        if method == "POST" and namespace in self.terminating:
            message = f"unable to create new content in namespace {namespace} because it is being terminated"
            raise RefusalError(403, "Forbidden", message)
        if "dryRun" in query and method == "POST" and key in self.objects:
            raise RefusalError(409, "AlreadyExists")
        if method == "POST" and subresource is None:
            self.admission(key[0], body or {})
        if "dryRun" in query:
            return body or {}
        if method == "GET":
            return self._kept(key)
        self.hook(method, resource, key, body, subresource or "")
        before, made = self.objects.get(key), f"{method} {resource.plural}/{name}"
        self.writes.append(made + (f"/{subresource}" if subresource else ""))
        try:
            return self._write(method, resource, key, subresource, query, body, content_type)
        finally:
            if method in ("PATCH", "POST") and before is not None and self.objects.get(key) is before:
                self.writes.pop()  # refused, or without an effect

    def _write(
        self,
        method: str,
        resource: kube.Resource,
        key: Key,
        subresource: str | None,
        query: Mapping[str, str],
        body: Json | None,
        content_type: str,
    ) -> Json:
        name = key[2]
        if subresource == "eviction":
            return self._evict(key, body or {})
        match method:
            case "POST":
                if key in self.objects:
                    raise RefusalError(409, "AlreadyExists")
                return self._store(key, {**(body or {}), "metadata": {**(body or {})["metadata"], "name": name}})
            case "PUT":
                version = self._found(key)["metadata"]["resourceVersion"]
                if (body or {})["metadata"].get("resourceVersion", version) != version:
                    raise RefusalError(409, "Conflict")
                return self._store(key, body or {})
            case "PATCH" if content_type == "application/apply-patch+yaml":
                return self._apply(key, resource, body or {}, subresource, query["fieldManager"])
            case "PATCH":
                self._check_version(key, body or {})
                held = (self._found(key)["metadata"]).get("finalizers")
                answer = self._store(key, merged(self._found(key), body or {}))
                if held and not answer["metadata"].get("finalizers") and "deletionTimestamp" in answer["metadata"]:
                    self.remove(key)
                return answer
            case "DELETE":
                return self._delete(key, body or {})
        raise RefusalError(405, "MethodNotAllowed")

    def _list(self, resource: kube.Resource, namespace: str | None, query: Mapping[str, str]) -> Json:
        parts = [part for part in query.get("labelSelector", "").split(",") if part]
        wanted = [part.partition("=")[::2] for part in parts if not part.startswith("!")]
        unwanted = {part[1:] for part in parts if part.startswith("!")}
        items = [
            {key: value for key, value in body.items() if key not in ("kind", "apiVersion")}
            for (_, where, _), body in sorted(item for item in self.objects.items() if item[0][0] == resource.plural)
            if namespace in (None, where)
            and all((body["metadata"].get("labels") or {}).get(label) == value for label, value in wanted)
            and not unwanted & set(body["metadata"].get("labels") or {})
        ]
        return {"items": items, "metadata": {"resourceVersion": "1"}}

    # -- what writes do ------------------------------------------------------------------------------------------------

    def _kept(self, key: Key) -> Json:
        if key not in self.objects:
            raise RefusalError(404, "NotFound", f"{key[0]} {key[2]!r} not found")
        return self.objects[key]

    def _found(self, key: Key) -> Json:
        return copied(self._kept(key))

    def _store(self, key: Key, body: Json) -> Json:
        old = self.objects.get(key)
        body = copied(body)
        metadata = body["metadata"] = {**body["metadata"], "namespace": key[1]}
        resource = next(each for each in kube.RESOURCES if each.plural == key[0])
        body |= {"apiVersion": resource.api_version, "kind": resource.kind}
        if key[0] == "persistentvolumeclaims" and old is not None:
            classes = [each["spec"].get("storageClassName") for each in (old, body)]
            if classes[0] != classes[1]:
                raise RefusalError(422, "Invalid", "spec: Forbidden: spec is immutable after creation")
        if key[0] == "statefulsets":
            completed(body["spec"]["template"].get("spec") or {})
        if old is None:
            metadata |= {"uid": f"uid-{next(self._numbers)}", "creationTimestamp": stamp(self.now()), "generation": 1}
            defaulted(key[0], body, self._numbers)
        else:
            metadata |= {part: old["metadata"][part] for part in ("uid", "creationTimestamp")}
            generation = old["metadata"].get("generation", 1)
            metadata["generation"] = generation + (old.get("spec") != body.get("spec"))
            same = {**metadata, "resourceVersion": ""} == {**old["metadata"], "resourceVersion": ""}
            if same and {**old, "metadata": 0} == {**body, "metadata": 0}:
                return copied(old)
        metadata["resourceVersion"] = str(next(self._numbers))
        self.objects[key] = body
        return copied(body)

    def _check_version(self, key: Key, body: Json) -> None:
        """Refuses a write that names another version, or another object, than the one that is there."""
        wanted, live = body.get("metadata") or {}, self.objects.get(key)
        if live is None and "uid" in wanted:
            raise RefusalError(409, "Conflict", "uid mismatch: no existing object was found")
        if live is None:
            return
        if wanted.get("resourceVersion", live["metadata"]["resourceVersion"]) != live["metadata"]["resourceVersion"]:
            raise RefusalError(409, "Conflict", "the object has been modified")
        if wanted.get("uid", live["metadata"]["uid"]) != live["metadata"]["uid"]:
            raise RefusalError(422, "Invalid", "metadata.uid: field is immutable")

    def _apply(self, key: Key, resource: kube.Resource, body: Json, subresource: str | None, manager: str) -> Json:
        if subresource == "status":
            self._found(key)
            self._check_version(key, body)
            return self._store(key, {**self._found(key), "status": body["status"]})
        self._check_version(key, body)
        before = self.applied.get((key, manager), {})
        self.applied[key, manager] = copied(body)
        live = copied(self.objects.get(key)) or {
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "metadata": {},
        }
        return self._store(key, overlaid(without(live, before, body), body))

    def _delete(self, key: Key, options: Json) -> Json:
        found = self._found(key)
        for part, wanted in (options.get("preconditions") or {}).items():
            if wanted != found["metadata"][part]:
                raise RefusalError(409, "Conflict", f"the {part} in the precondition does not match")
        plural, namespace, name = key
        if plural == "pods" and options.get("gracePeriodSeconds") != 0:
            grace = (found.get("spec") or {}).get("terminationGracePeriodSeconds", 30)
            if "deletionTimestamp" not in found["metadata"]:
                found["metadata"]["deletionTimestamp"] = stamp(self.now() + grace)
                self._store(key, found)
        elif (plural == "persistentvolumeclaims" and self._is_used(namespace, name)) or found["metadata"].get(
            "finalizers"
        ):
            found["metadata"].setdefault("deletionTimestamp", stamp(self.now()))
            self._store(key, found)
        else:
            self.remove(key)
        return {}

    def remove(self, key: Key) -> None:
        """It is gone, and soon what it owns is."""
        self.objects.pop(key, None)
        for each in [each for each in self.applied if each[0] == key]:
            del self.applied[each]

    def _evict(self, key: Key, body: Json) -> Json:
        pod = self._found(key)
        if is_ready(pod):
            for (plural, namespace, _), budget in self.objects.items():
                selector = ((budget.get("spec") or {}).get("selector") or {}).get("matchLabels") or {}
                if plural != "poddisruptionbudgets" or namespace != key[1]:
                    continue
                pods = [
                    each
                    for (kind, where, _), each in self.objects.items()
                    if (kind, where) == ("pods", namespace)
                    and selector.items() <= (each["metadata"].get("labels") or {}).items()
                ]
                if pod["metadata"]["name"] not in {each["metadata"]["name"] for each in pods}:
                    continue
                expected = len(pods)
                if sum(is_ready(each) and "deletionTimestamp" not in each["metadata"] for each in pods) < expected:
                    raise RefusalError(
                        429, "TooManyRequests", "Cannot evict pod as it would violate the disruption budget"
                    )
        return self._delete(key, body.get("deleteOptions") or {})

    def _is_used(self, namespace: str, claim: str) -> bool:
        """By a pod that has a Kubernetes node: without one it does not protect a claim, and no longer gets one."""
        return any(
            plural == "pods" and where == namespace and body["spec"].get("nodeName") and claim in claims_of(body)
            for (plural, where, _), body in self.objects.items()
        )

    # -- for those who play the cluster --------------------------------------------------------------------------------

    def all(self, plural: str) -> list[Json]:
        """The objects themselves, by name."""
        return [body for _, body in sorted(item for item in self.objects.items() if item[0][0] == plural)]

    def get(self, plural: str, name: str, namespace: str = "shop") -> Json | None:
        return self.objects.get((plural, namespace, name))

    def collect(self) -> None:
        """One round of garbage collection: what has owners, none of which is there, goes; so do claims let go of."""
        uids = {body["metadata"]["uid"] for body in self.objects.values()}
        for key, body in list(self.objects.items()):
            owners = body["metadata"].get("ownerReferences") or ()
            if owners and not any(owner["uid"] in uids for owner in owners):
                if key[0] == "pods":
                    self._delete(key, {})
                else:
                    self.remove(key)
            elif (
                key[0] == "persistentvolumeclaims"
                and "deletionTimestamp" in body["metadata"]
                and not self._is_used(key[1], key[2])
            ):
                self.remove(key)


def parsed(path: str) -> tuple[kube.Resource, str | None, str | None, str | None]:
    """Resource, namespace, name and subresource of a path."""
    for resource in kube.RESOURCES:
        prefix = f"/{resource.api}/"
        if not path.startswith(prefix):
            continue
        parts = path.removeprefix(prefix).split("/")
        namespace = parts.pop(0) and parts.pop(0) if parts[0] == "namespaces" else None
        if parts[0] == resource.plural:
            rest = [*parts[1:], None, None]
            return resource, namespace, rest[0], rest[1]
    raise AssertionError(f"unknown path {path}")


def copied(value: Any) -> Any:
    """As it comes back from the server: a copy, and an error if it is no JSON."""
    return orjson.loads(orjson.dumps(value))


def stamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def is_ready(pod: Json) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def claims_of(pod: Json) -> set[str]:
    volumes = (pod.get("spec") or {}).get("volumes") or ()
    return {volume["persistentVolumeClaim"]["claimName"] for volume in volumes if "persistentVolumeClaim" in volume}


def completed(pod: Json) -> None:
    """The defaults that the server sets in the template of a pod, in each write."""
    pod |= {"dnsPolicy": "ClusterFirst", "restartPolicy": "Always"}
    pod.setdefault("schedulerName", "default-scheduler")
    if "serviceAccountName" in pod:
        pod["serviceAccount"] = pod["serviceAccountName"]
    for container in pod.get("containers") or ():
        container["terminationMessagePath"] = "/dev/termination-log"
        container.setdefault("resources", {})
        for variable in container.get("env") or ():
            if "fieldRef" in variable.get("valueFrom", {}):
                variable["valueFrom"]["fieldRef"].setdefault("apiVersion", "v1")
    for volume in pod.get("volumes") or ():
        for source in ("secret", "configMap", "projected"):
            if source in volume:
                volume[source].setdefault("defaultMode", 420)


def defaulted(plural: str, body: Json, numbers: Any) -> None:
    """What a server fills in at once."""
    if plural == "services":
        for port in body["spec"].get("ports") or ():
            if body["spec"].get("type") in ("NodePort", "LoadBalancer"):
                port.setdefault("nodePort", 30000 + next(numbers))
        if body["spec"].get("clusterIP") != "None":
            body["spec"]["clusterIP"] = f"10.0.0.{next(numbers)}"


def merged(live: Json, patch: Json) -> Json:
    """RFC 7386."""
    found = dict(live)
    for key, value in patch.items():
        if value is None:
            found.pop(key, None)
        elif isinstance(value, dict):
            found[key] = merged(found.get(key) if isinstance(found.get(key), dict) else {}, value)
        else:
            found[key] = value
    return found


def overlaid(live: Any, wanted: Any) -> Any:
    """`wanted` over `live`; lists of named things by their names, other lists as a whole."""
    if isinstance(live, dict) and isinstance(wanted, dict):
        return live | {key: overlaid(live.get(key), value) for key, value in wanted.items()}
    if isinstance(live, list) and isinstance(wanted, list) and wanted:
        for name in ("name", "uid"):
            if all(isinstance(item, dict) and name in item for item in (*live, *wanted)):
                have = {item[name]: item for item in live}
                added = {item[name]: overlaid(have.get(item[name]), item) for item in wanted}
                return [added.get(each, item) for each, item in have.items()] + [
                    item for each, item in added.items() if each not in have
                ]
    return copied(wanted)


def without(live: Any, before: Any, wanted: Any) -> Any:
    """`live` without what `before` named and `wanted` does not."""
    if isinstance(live, dict) and isinstance(before, dict) and isinstance(wanted, dict):
        return {
            key: without(value, before.get(key), wanted.get(key))
            for key, value in live.items()
            if key not in before or key in wanted
        }
    if isinstance(live, list) and isinstance(before, list) and isinstance(wanted, list):
        for name in ("name", "uid"):
            if all(isinstance(item, dict) and name in item for item in (*live, *before, *wanted)):
                old, new = {item[name]: item for item in before}, {item[name]: item for item in wanted}
                return [
                    without(item, old.get(item[name]), new.get(item[name]))
                    for item in live
                    if item[name] not in old or item[name] in new
                ]
    return live
