"""The API server, through `kubectl proxy`: plain JSON over HTTP, so that a look costs a millisecond and no process."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote, urlencode

Json = dict[str, Any]

_OURS = "apis/tallystick.dev/v1beta1"
_HOMES = {
    "brokerclusters": _OURS,
    "brokernodes": _OURS,
    "topics": _OURS,
    "consumergroups": _OURS,
    "users": _OURS,
    "storejobs": _OURS,
    "backups": _OURS,
    "scheduledbackups": _OURS,
    "statefulsets": "apis/apps/v1",
    "deployments": "apis/apps/v1",
    "leases": "apis/coordination.k8s.io/v1",
    "poddisruptionbudgets": "apis/policy/v1",
    "networkpolicies": "apis/networking.k8s.io/v1",
}
_CORE = "api/v1"
_TIMEOUT_S = 30


class ApiError(Exception):
    """The API server says no, or nothing. `code`: HTTP's; 0: no answer."""

    def __init__(self, method: str, path: str, code: int, text: str) -> None:
        super().__init__(f"{method} {path}: {code or 'no answer'} {text}")
        self.code = code


class Api:
    """One API server. All calls raise ApiError."""

    def __init__(self, base: str) -> None:
        self._base = base

    def get(self, kind: str, namespace: str, name: str) -> Json:
        return self.call("GET", path(kind, namespace, name))

    def find(self, kind: str, namespace: str, name: str) -> Json | None:
        """Returns the object; None: it does not exist."""
        try:
            return self.get(kind, namespace, name)
        except ApiError as error:
            if error.code != 404:
                raise
            return None

    def list(self, kind: str, namespace: str = "", labels: str = "") -> list[Json]:
        """Without a namespace: of all. `labels`: a selector."""
        query = "?" + urlencode({"labelSelector": labels}) if labels else ""
        found: list[Json] = self.call("GET", path(kind, namespace) + query)["items"]
        return found

    def create(self, kind: str, namespace: str, manifest: Mapping[str, Any]) -> Json:
        return self.call("POST", path(kind, namespace), manifest)

    def merge(self, kind: str, namespace: str, name: str, change: Mapping[str, Any]) -> Json:
        """A merge patch: null takes a field away."""
        return self.call("PATCH", path(kind, namespace, name), change, "application/merge-patch+json")

    def delete(self, kind: str, namespace: str, name: str, *, grace_s: int | None = None) -> None:
        """Asks for it; what is not there is no error."""
        query = "" if grace_s is None else f"?gracePeriodSeconds={grace_s}"
        try:
            self.call("DELETE", path(kind, namespace, name) + query)
        except ApiError as error:
            if error.code != 404:
                raise

    def call(self, method: str, where: str, body: object = None, content_type: str = "application/json") -> Json:
        found: Json = json.loads(self.text(method, where, body, content_type))
        return found

    def text(self, method: str, where: str, body: object = None, content_type: str = "application/json") -> str:
        """What is no JSON: metrics of a pod through the API server's proxy."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self._base}/{where}", data, {"Content-Type": content_type}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
                text: str = answer.read().decode()
                return text
        except urllib.error.HTTPError as error:
            said = error.read().decode(errors="replace")
            raise ApiError(method, where, error.code, said[:500]) from error
        except OSError as error:
            raise ApiError(method, where, 0, str(error)) from error


def path(kind: str, namespace: str = "", name: str = "") -> str:
    parts = [_HOMES.get(kind, _CORE)]
    if namespace:
        parts += ["namespaces", namespace]
    return "/".join(quote(part) for part in [*parts, kind, *([name] if name else [])])


@contextmanager
def proxied() -> Iterator[Api]:
    """The API server of the kubeconfig that KUBECONFIG names."""
    command = ["kubectl", "proxy", "--port=0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as proxy:
        try:
            assert proxy.stdout is not None
            line = proxy.stdout.readline()  # it says where it listens, or why it does not, and ends
            address = line.rpartition(" ")[2].strip()
            if not address.startswith("127.0.0.1:"):
                raise ApiError("kubectl", "proxy", 0, line)
            api = Api(f"http://{address}")
            _await(api)
            yield api
        finally:
            proxy.kill()


def _await(api: Api) -> None:
    end_s = time.monotonic() + 60
    while True:
        try:
            api.text("GET", "readyz")
            return
        except ApiError:
            if time.monotonic() > end_s:
                raise
            time.sleep(0.5)
