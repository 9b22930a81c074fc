"""RocketMQ's own client in the cluster: an image with a Java runtime, the client's jars and the peer lab's probe."""

from __future__ import annotations

import hashlib
import itertools
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from harness.api import Api
from harness.kind import Kind
from harness.places import WORK
from harness.pods import RESTRICTED, output_of, restricted_pod
from harness.shell import apply, kubectl, run
from harness.waiting import NotYetError, wait_for
from lab.peer import Peer, need_peer
from lab.send_again import SOURCE, Sent

_NAME = "tallystick-e2e-java"
_DOCKERFILE = """\
FROM debian:bookworm-slim
RUN apt-get update && apt-get install -y --no-install-recommends openjdk-17-jre-headless && rm -rf /var/lib/apt/lists/*
COPY java /java
USER 10001:10001
ENTRYPOINT ["java", "--add-opens", "java.base/java.nio=ALL-UNNAMED", "-Djava.net.preferIPv4Stack=true", "-Xmx192m", \
"-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Duser.home=/tmp", "-Drocketmq.client.logUseSlf4j=true", \
"-cp", "/java/classes:/java/lib/*"]
"""
_BUILD_S = 900
_START_S = 120

_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Java:
    """The image, on the node where test pods run; and the peer lab's own client on this machine."""

    image: str
    peer: Peer

    def probe_outside(self, *words: str, timeout_s: float = 180) -> str:
        """`probe` on this machine. AssertionError: something is not as expected."""
        status, said = self.peer.call("probe", *words, timeout_s=timeout_s)
        assert status == 0, f"probe {' '.join(words)}: status {status}\n{said[-3000:]}\nsee {self.peer.log}"
        return said

    def probe_inside(self, api: Api, namespace: str, *words: str, timeout_s: float = 180) -> str:
        """`probe` in a pod. AssertionError."""
        name = f"e2e-java-{next(_numbers)}"
        apply(self._pod(namespace, name, "Probe", *words))
        try:
            return output_of(api, namespace, name, timeout_s)
        finally:
            _delete(namespace, name)

    @contextmanager
    def producer(self, namespace: str, name_server: str, topic: str, poll_ms: int = 0) -> Iterator[JavaProducer]:
        """One that sends the whole time. `poll_ms`: between its looks at the route; 0: the client's default of 30 s."""
        name = f"e2e-java-{next(_numbers)}"
        apply(self._pod(namespace, name, "SendAgain", name_server, topic, str(poll_ms)))
        try:
            producer = JavaProducer(namespace, name)
            producer.sent_after(0, _START_S)
            yield producer
        finally:
            _delete(namespace, name)

    def _pod(self, namespace: str, name: str, *command: str) -> dict[str, object]:
        mounts = [{"name": "tmp", "mountPath": "/tmp"}]
        container = {"name": "java", "image": self.image, "args": list(command), "securityContext": RESTRICTED}
        volumes = [{"name": "tmp", "emptyDir": {}}]
        return restricted_pod(namespace, name, container | {"volumeMounts": mounts}, volumes)


@dataclass(frozen=True, slots=True)
class JavaProducer:
    namespace: str
    pod: str

    def sends(self) -> list[Sent]:
        """All of them, in order."""
        said = kubectl("logs", self.pod, "--namespace", self.namespace)
        return [sent for line in said.splitlines() if (sent := Sent.parse(line)) is not None]

    def outage_after(self, moment_ms: int) -> int:
        """ms: the longest time without any acknowledgement that ended after the moment."""
        ended = [sent.end_ms for sent in self.sends() if sent.ok]
        return max(after - before for before, after in itertools.pairwise(ended) if after > moment_ms)

    def sent_after(self, moment_ms: int, timeout_s: float = 60) -> Sent:
        """The first that was begun after this time (ms since 1970) and was acknowledged. WaitError."""

        def look() -> Sent:
            sends = self.sends()
            for sent in sends:
                if sent.ok and sent.begin_ms >= moment_ms:
                    return sent
            raise NotYetError(str(sends[-1:]))

        return wait_for("the Java producer sends", look, timeout_s)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def build(kind: Kind) -> Java:
    """PeerMissingError: there is no peer lab. ToolError, ProcessError."""
    need_peer()
    peer = Peer(WORK / "peer")
    status, path = peer.call("classpath")
    assert status == 0, f"peer.sh classpath: status {status}, see {peer.log}"
    classes, _, jars = path.strip().partition(":")
    folder = WORK / "java-image"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(classes, folder / "java" / "classes", ignore=shutil.ignore_patterns(".*"))
    shutil.copytree(Path(jars).parent, folder / "java" / "lib", ignore=shutil.ignore_patterns(".*"))
    compiler = ["javac", "--release", "17", "-cp", jars, "-d", str(folder / "java" / "classes")]
    run(*compiler, str(SOURCE), timeout_s=120)
    (folder / "Dockerfile").write_text(_DOCKERFILE)
    run("docker", "build", "--tag", f"{_NAME}:built", str(folder), timeout_s=_BUILD_S)
    identity = run("docker", "image", "inspect", "--format", "{{.Id}}", f"{_NAME}:built").strip()
    image = f"{_NAME}:{hashlib.sha256(identity.encode()).hexdigest()[:10]}"
    run("docker", "tag", f"{_NAME}:built", image)
    kind.load([image], [kind.control_plane])
    return Java(image, peer)


def _delete(namespace: str, name: str) -> None:
    kubectl("delete", "pod", name, "--namespace", namespace, "--grace-period=0", "--force")
