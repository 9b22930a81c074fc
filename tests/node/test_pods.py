"""A group of three as Kubernetes runs it: settings from the environment, names for addresses, a token, HTTP to rule it.

Each process gets what a pod gets and nothing else; what differs is ports, as all are on one host here.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from group_lab import until
from ports import free_ports
from tally_process import TallyProcess, command, environment

from tallystick.node.core.client import ClusterClient
from tallystick.operator.clusters.recovery_source import RESULT_FILE, STORE, RecoverySpec, Source, find_source, restore
from tallystick.operator.core.names import Names
from tallystick.store import fastjson

pytestmark = pytest.mark.process

TOKEN = "token-of-the-cluster"
GROUP, CLUSTER = "orders-0", "orders"
# Small files: a test's store is not worth gigabytes of preallocation. One host has no two ports 10909.
FILE = """
[broker]
autoCreateTopicEnable = false
vipListenerEnable = false
[store]
mappedFileSizeCommitLog = 1048576
maxHashSlotNum = 1000
maxIndexNum = 4000
"""


class Pod(TallyProcess):
    """A process with the environment of a pod. `http` is known before it is ready."""

    def __init__(self, folder: Path, http: int, *arguments: str, **settings: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.log, self.http = folder, folder / "log.txt", http
        variables = {
            f"TALLY_{name.upper()}": value
            for name, value in {"HTTP_HOST": "0.0.0.0", "HTTP_OPEN": "true", "HTTP_PORT": str(http), **settings}.items()
        }
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                command(*arguments),
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment(**variables),
                cwd=folder,
            )
        self.places = {"http": f"127.0.0.1:{http}"}

    def ask(self, method: str, path: str, body: Any = None, token: str = TOKEN) -> tuple[int, Any]:
        """Status and JSON. OSError: there is no answer."""
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.http}{path}", data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    def node(self) -> Any:
        return self.ask("GET", "/node")[1]


class Cluster:
    """A name server and three members. n3 may join, but does not run yet; the name of n4 does not resolve."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        (folder / "token").write_text(TOKEN)
        (folder / "broker.toml").write_text(FILE)
        ports = free_ports(15)
        self.inside, self.outside, names_http, *ports = ports
        self.clients, self.https, self.rafts = ports[:4], ports[4:8], ports[8:]
        self.peers = ";".join(f"n{number}-localhost:{port}" for number, port in enumerate(self.rafts))
        self.peers += ";n4-orders-0-4.shop.invalid:10912"
        self.names = Pod(
            folder / "names",
            names_http,
            "nameserver",
            nameserver_listenPort=str(self.inside),
            externalListenPort=str(self.outside),
            nameserver_kvConfigPath=str(folder / "kv.json"),
            adminTokenFile=str(folder / "token"),
        )
        self.pods: dict[int, Pod] = {}

    def start(self, number: int, *, bootstrap: bool) -> Pod:
        making = {"groupBootstrap": "true", "groupBootstrapMembers": "n0;n1;n2"} if bootstrap else {}
        folder = self.folder / f"{GROUP}-{number}"
        pod = self.pods[number] = Pod(
            folder,
            self.https[number],
            "broker",
            "--config",
            str(self.folder / "broker.toml"),
            "--dir",
            str(folder / "store"),
            brokerName=GROUP,
            brokerClusterName=CLUSTER,
            enableDLegerCommitLog="true",
            dLegerSelfId=f"n{number}",
            dLegerPeers=self.peers,
            brokerIP1="localhost",
            listenPort=str(self.clients[number]),
            namesrvAddr=f"localhost:{self.inside}",
            externalAddress=f"127.0.0.1:{self.clients[number]}",
            adminTokenFile=str(self.folder / "token"),
            **making,
        )
        return pod

    def close(self) -> None:
        for pod in (self.names, *self.pods.values()):
            pod.__exit__(None, None, None)

    async def leader(self) -> int:
        async def look() -> int | None:
            for number, pod in self.pods.items():
                node = await asyncio.to_thread(pod.node)
                if node["role"] == "leader" and node["phase"] == "ready":
                    return number
            return None

        return await until("a leader is ready", look)

    async def ready(self, number: int) -> None:
        async def look() -> bool | None:
            return (await asyncio.to_thread(self.pods[number].get, "/readyz"))[0] == 200 or None

        await until(f"n{number} is ready", look)

    async def masters(self, port: int) -> str | None:
        """Who is told there to be the master."""
        async with ClusterClient(f"127.0.0.1:{port}") as client:
            return (await client.masters()).get(GROUP)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path / "cluster")
    try:
        cluster.names.wait_ready()
        for number in range(3):
            cluster.start(number, bootstrap=True)
        for pod in cluster.pods.values():
            pod.wait_ready()
        yield cluster
    finally:
        cluster.close()


async def test_a_group_from_its_environment_alone(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    leader = await cluster.leader()
    for number, pod in cluster.pods.items():
        await cluster.ready(number)
        assert pod.ask("GET", "/node", token="") == (
            401,
            {"error": "a valid token is required: Authorization: Bearer ...", "leader": None},
        )
        node = pod.node()
        assert (node["phase"], node["member"], node["group"], node["leader"]) == ("ready", number, GROUP, leader)
    assert cluster.names.get("/readyz")[0] == 200

    async def registered() -> bool | None:
        return (await asyncio.to_thread(cluster.names.node))["brokers"] == 3 or None

    await until("all members are registered", registered)
    group = cluster.pods[leader].ask("GET", "/group")[1]
    assert group["voters"] == [0, 1, 2], "the others may come later"

    follower = next(number for number in cluster.pods if number != leader)
    items = [{"name": f"topic-{number}", "readQueues": 4, "writeQueues": 4} for number in range(1000)]
    assert cluster.pods[follower].ask("POST", "/topics", items)[0] == 409
    begin = time.perf_counter()
    status, answer = cluster.pods[leader].ask("POST", "/topics", items)
    seconds = time.perf_counter() - begin
    assert (status, len(answer["results"])) == (200, 1000)
    with capsys.disabled():
        print(f"\n1000 topics in {seconds * 1000:.0f} ms")

    async def everywhere() -> bool | None:
        told = [await asyncio.to_thread(pod.ask, "GET", "/topics") for pod in cluster.pods.values()]
        return all(sum(not topic["system"] for topic in body["topics"]) == 1000 for _, body in told) or None

    await until("all members have all topics", everywhere)
    inside, outside = f"localhost:{cluster.clients[leader]}", f"127.0.0.1:{cluster.clients[leader]}"
    assert await cluster.masters(cluster.inside) == inside
    assert await cluster.masters(cluster.outside) == outside
    async with ClusterClient(f"127.0.0.1:{cluster.outside}") as client:

        async def sent() -> bool | None:
            queues = await client.queues("topic-999", writable=True)
            await client.send(queues[0], b"from outside")
            return queues[0].address == outside or None

        await until("it is sent by the external route", sent)
    shown = cluster.pods[leader].ask("GET", "/topics/topic-999")[1]
    assert (shown["messages"], shown["queues"][0]) == (1, {"queue": 0, "min": 0, "max": 1})


async def test_a_leader_that_is_stopped_hands_over_and_says_goodbye(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    first = await cluster.leader()
    for number in cluster.pods:
        await cluster.ready(number)
    term = cluster.pods[first].node()["term"]
    pod = cluster.pods.pop(first)
    begin = time.perf_counter()
    assert await asyncio.to_thread(pod.end, signal.SIGTERM) == 0
    seconds = time.perf_counter() - begin
    said = pod.log.read_text()
    handed = next(line for line in said.splitlines() if "handed leadership to" in line)
    with capsys.disabled():
        print(f"\nstopped in {seconds:.2f} s; {handed}")
    assert "Traceback" not in said
    second = await cluster.leader()
    assert cluster.pods[second].node()["term"] == term + 1, "one election, by the leader's own wish"
    async with ClusterClient(f"127.0.0.1:{cluster.inside}") as client:
        answer = fastjson.loads((await client.ask_nameserver(106, {})).body)["brokerAddrTable"][GROUP]
    third = next(number for number in cluster.pods if number != second)
    places = {number: f"localhost:{cluster.clients[number]}" for number in range(3)}
    assert answer["brokerAddrs"] == {0: places[second], third + 1: places[third]}, "told before it ended"
    pod.__exit__(None, None, None)

    cluster.start(first, bootstrap=False).wait_ready()
    await cluster.ready(first)
    status, answer = cluster.pods[second].ask("POST", "/group/transfer", {"target": first})
    assert (status, answer) == (200, {"leader": first})
    assert await cluster.leader() == first


async def test_a_later_member_is_added_and_removed_again(cluster: Cluster) -> None:
    leader = await cluster.leader()
    # As a member that was added before its group had formed: it gets the bootstrap setting, and is not a founder.
    pod = cluster.start(3, bootstrap=True).wait_ready()
    assert pod.node()["phase"] == "waiting-to-join"
    assert pod.get("/readyz")[0] == 503

    async def voter() -> bool | None:
        asked = {"member": 3, "role": "voter"}
        status, answer = await asyncio.to_thread(cluster.pods[leader].ask, "POST", "/group/members", asked)
        return (status, answer.get("role")) == (200, "voter") or None

    await until("n3 has caught up and votes", voter)
    await cluster.ready(3)
    assert pod.node()["role"] == "follower"
    peers = {peer["member"]: peer for peer in cluster.pods[leader].node()["peers"]}
    assert (peers[3]["voter"], peers[3]["connected"], peers[4]["connected"]) == (True, True, False)
    assert cluster.pods[leader].ask("DELETE", "/group/members/3")[0] == 200

    async def out() -> bool | None:
        return (await asyncio.to_thread(pod.node))["phase"] == "waiting-to-join" or None

    await until("it knows that it is out", out)


def run_to_its_end(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*words), capture_output=True, text=True, env=environment(), check=False)


def restored_by_the_init_container(backups: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs the command that the operator writes into the pod of n0, with the folders of this machine."""
    asked = {"recovery": {"source": {"persistentVolumeClaim": {"name": "backups"}}}}
    recovery = RecoverySpec.parse(asked)
    assert recovery is not None
    source = find_source(recovery, CLUSTER, 1, None)
    assert isinstance(source, Source)
    names = Names("shop", CLUSTER)
    made = restore(
        source, recovery, names, 0, uid="uid-1", image="i", pull_policy="Always", segment_bytes=1 << 20, resources={}
    )
    places = {STORE: str(folder / "store"), RESULT_FILE: str(folder / "result")}
    words = [places.get(word, word.replace("/backups", str(backups))) for word in made.container["command"]]
    return run_to_its_end(*words[1:])


async def test_a_group_starts_from_its_backup_as_the_operator_starts_it(cluster: Cluster, tmp_path: Path) -> None:
    leader = await cluster.leader()
    assert cluster.pods[leader].ask("PUT", "/topics/T", {"readQueues": 1, "writeQueues": 1})[0] == 201
    async with ClusterClient(f"127.0.0.1:{cluster.inside}") as client:

        async def sent() -> bool | None:
            (queue,) = await client.queues("T", writable=True)
            for number in range(50):
                await client.send(queue, b"%d" % number)
            return True

        await until("messages are acknowledged", sent)
    backups, store = tmp_path / "backups", cluster.pods[leader].folder / "store"
    there = f"127.0.0.1:{cluster.pods[leader].http}"
    words = ["backup", "create", str(store), str(backups), "--http", there, "--token-file"]
    done = await asyncio.to_thread(run_to_its_end, *words, str(cluster.folder / "token"))
    assert done.returncode == 0, done.stderr
    cluster.close()

    new = Cluster(tmp_path / "new")
    try:
        new.names.wait_ready()
        first = new.folder / f"{GROUP}-0"
        first.mkdir()
        for _ in range(2):  # the init container of a pod that is created again runs again
            done = await asyncio.to_thread(restored_by_the_init_container, backups, first)
            assert done.returncode == 0, done.stderr
        result = json.loads((first / "result").read_text())
        assert result["messages"] >= 50 and result["sound"]
        new.start(0, bootstrap=False)
        assert await new.leader() == 0
        assert new.pods[0].ask("GET", "/group")[1]["voters"] == [0]
        done = await asyncio.to_thread(restored_by_the_init_container, backups, first)
        assert done.returncode == 0, "while the broker runs"
        for number in (1, 2):
            new.start(number, bootstrap=False).wait_ready()

            async def joined(number: int = number) -> bool | None:
                asked = {"member": number, "role": "voter"}
                status, answer = await asyncio.to_thread(new.pods[0].ask, "POST", "/group/members", asked)
                return (status, answer.get("role")) == (200, "voter") or None

            await until("it has caught up and votes", joined)
            await new.ready(number)
        assert new.pods[0].ask("GET", "/group")[1]["voters"] == [0, 1, 2]
        shown = new.pods[0].ask("GET", "/topics/T")[1]
        assert (shown["messages"], shown["queues"]) == (50, [{"queue": 0, "min": 0, "max": 50}])
    finally:
        new.close()


async def test_a_pod_whose_name_has_no_address_yet(tmp_path: Path) -> None:
    http, port = free_ports(2)
    settings = {"brokerIP1": "no-such-name..", "listenPort": str(port), "storePathRootDir": str(tmp_path / "store")}
    pod = Pod(tmp_path / "pod", http, "broker", **settings)
    try:

        async def waits() -> bool | None:
            return (await asyncio.to_thread(pod.node))["phase"] == "waiting-for-name" or None

        await until("it waits", waits)
        assert pod.get("/healthz")[0] == 200
        status, reason = pod.get("/readyz")
        assert (status, "no address yet" in reason) == (503, True)
        assert pod.ask("PUT", "/topics/T", {})[0] == 503
        assert pod.ask("GET", "/group")[0] == 404
        assert pod.end(signal.SIGTERM) == 0
        assert "Traceback" not in pod.log.read_text()
        assert not (tmp_path / "store").exists()
    finally:
        pod.__exit__(None, None, None)
    failed = Pod(tmp_path / "pod2", http, "broker", **settings, addressWaitMills="0")
    try:
        assert failed.process.wait(30) == 2
        assert "brokerIP1: 'no-such-name..' has no address" in failed.log.read_text()
    finally:
        failed.__exit__(None, None, None)
