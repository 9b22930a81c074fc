"""A controller of load balancers, as a cloud or MetalLB has one: it gives an address to each Service that asks for one.

The addresses are of a network for documentation (RFC 5737). This machine routes them to a node, whose kube-proxy
forwards them to pods, as with addresses that a router got by BGP.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from harness.api import Api, ApiError, path
from harness.kind import Kind
from harness.shell import ToolError, run

NETWORK = "198.51.100"
_EVERY_S = 0.5


@dataclass(slots=True)
class LoadBalancers:
    """The addresses of Services of a namespace, by the name of the Service."""

    api: Api
    namespace: str
    addresses: dict[str, str] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(10))
    _stop: threading.Event = field(default_factory=threading.Event)

    def readdress(self, service: str) -> str:
        """Gives a Service another address, as when a load balancer is created again. ApiError."""
        self._assign(service)
        return self.addresses[service]

    def run(self) -> None:
        """Until it is stopped: gives addresses to Services without one."""
        while not self._stop.wait(_EVERY_S):
            try:
                for service in self.api.list("services", self.namespace):
                    name = service["metadata"]["name"]
                    given = ((service.get("status") or {}).get("loadBalancer") or {}).get("ingress")
                    if service["spec"]["type"] == "LoadBalancer" and not given:
                        self._assign(name)
            except ApiError:  # the API server restarts, or the Service is gone: it looks again
                continue

    def stop(self) -> None:
        self._stop.set()

    def _assign(self, service: str) -> None:
        address = f"{NETWORK}.{next(self._numbers)}"
        change = {"status": {"loadBalancer": {"ingress": [{"ip": address}]}}}
        where = path("services", self.namespace, service) + "/status"
        self.api.call("PATCH", where, change, "application/merge-patch+json")
        self.addresses[service] = address


@contextmanager
def load_balancers(kind: Kind, api: Api, namespace: str) -> Iterator[LoadBalancers]:
    """Runs the controller in a thread. ToolError: this machine cannot route to the nodes."""
    template = "{{.NetworkSettings.Networks.kind.IPAddress}}"
    node = run("docker", "inspect", kind.control_plane, "--format", template).strip()
    route = (f"{NETWORK}.0/24", "via", node)
    run("ip", "route", "replace", *route)
    found = LoadBalancers(api, namespace)
    thread = threading.Thread(target=found.run)
    thread.start()
    try:
        yield found
    finally:
        found.stop()
        thread.join()
        try:
            run("ip", "route", "del", *route)
        except ToolError as error:  # Docker's network is gone, and the route with it
            print(error)
