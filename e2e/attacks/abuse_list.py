"""The abuses of a server. Each runs until its process is told to stop. `attacks/abuses.py` measures its effects."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import json
import random
import ssl
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass

from attacks.abuser import (
    Abuse,
    Got,
    Target,
    at_once,
    churn,
    drip,
    flood,
    hold,
    link,
    pull,
    request,
    trusting,
)
from attacks.traffic import send_command
from lab.places import HOST

from tallystick.node.remoting.codec import encode
from tallystick.node.remoting.codes import RequestCode as Code
from tallystick.node.remoting.command import Command
from tallystick.replication.messages import AppendRequest, TermRun, VoteRequest
from tallystick.replication.transport import codec
from tallystick.replication.transport.frames import encode_frame
from tallystick.replication.transport.handshake import HANDSHAKE_VERSION, KIND_HELLO, Hello, Identity, Lane

_FOREVER_MS = str(4_000_000_000_000)


class Place(enum.Enum):
    """The server that is abused."""

    open = "default settings"
    guarded = "access control, TLS required, HTTP token"
    group = "a group of three, without TLS between members"


@dataclass(frozen=True, slots=True)
class Listed:
    """One abuse: what it is, where it is run, and how."""

    text: str
    place: Place
    run: Abuse
    memory_mib: float = 48.0
    """Private memory that the server may use for it."""


ABUSES: dict[str, Listed] = {}


def _abuse(name: str, text: str, place: Place = Place.open, memory_mib: float = 48.0) -> Callable[[Abuse], Abuse]:
    def add(run: Abuse) -> Abuse:
        ABUSES[name] = Listed(text, place, run, memory_mib)
        return run

    return add


# -- connections and frames --------------------------------------------------------------------------------------------


@_abuse("garbage", "connections with random bytes, 20 at a time")
async def _garbage(target: Target, got: Got) -> None:
    dice = random.Random(1)
    await churn(target, target.broker, lambda: b"\0\0\0" + dice.randbytes(200), 20, got)


@_abuse("announced", "frames that announce two gigabytes")
async def _announced(target: Target, got: Got) -> None:
    await churn(target, target.broker, lambda: struct.pack(">II", 2**31 - 1, 100) + bytes(1000), 20, got)


@_abuse("unfinished", "60 connections with all of a frame of 8 MiB but its last byte", memory_mib=60 * 16)
async def _unfinished(target: Target, got: Got) -> None:
    size = 8 << 20
    frame = struct.pack(">II", 4 + size, 100) + bytes(size - 1)
    await hold(target, target.broker, frame, 60, got)


@_abuse("dripping", "400 connections that send a byte of a frame every 20 ms")
async def _dripping(target: Target, got: Got) -> None:
    frame = struct.pack(">II", 100_000, 100) + bytes(1000)
    await drip(target, target.broker, b"", frame, 0.02, got)


@_abuse("connections", "connections that are opened and closed, 50 at a time")
async def _connections(target: Target, got: Got) -> None:
    await churn(target, target.broker, lambda: b"", 50, got)


@_abuse("idle", "2 000 idle connections")
async def _idle(target: Target, got: Got) -> None:
    await hold(target, target.broker, b"", 2000, got)


@_abuse("unread", "50 connections that ask for 200 pulls of 32 messages each and read nothing", memory_mib=160.0)
async def _unread(target: Target, got: Got) -> None:
    data = encode(pull(target.topic, 0)) * 200

    async def one(_: int) -> None:
        async with link(target, target.broker) as (_reader, writer):
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(data)
            got["connections held"] += 1
            await asyncio.sleep(3600)

    await at_once(50, one)


@_abuse("held", "60 000 pulls that wait for messages, on 20 connections", memory_mib=160.0)
async def _held(target: Target, got: Got) -> None:
    held = {"sysFlag": "6", "suspendTimeoutMillis": "30000"}
    waiting = [pull("abused", 0, consumerGroup=f"g{n}", **held) for n in range(500)]
    await flood(target, target.broker, waiting, got, connections=20, window=3000)


# -- requests ----------------------------------------------------------------------------------------------------------


@_abuse("sends", "sends of messages of 128 bytes, 64 at a time on each of 4 connections", memory_mib=96.0)
async def _sends(target: Target, got: Got) -> None:
    await flood(target, target.broker, [send_command("abused", 0, bytes(128))], got, window=64)


@_abuse("queries", "searches by key")
async def _queries(target: Target, got: Got) -> None:
    ext = {"topic": target.topic, "maxNum": "64", "beginTimestamp": "0", "endTimestamp": _FOREVER_MS}
    await flood(target, target.broker, [request(Code.QUERY_MESSAGE, ext | {"key": f"k{n}"}) for n in range(50)], got)


@_abuse("filters", "pulls with SQL92 filters of 4 KiB, each of them another one")
async def _filters(target: Target, got: Got) -> None:
    texts = [" OR ".join(f"(a{n} > {n} AND b IS NOT NULL)" for n in range(k, k + 110)) for k in range(200)]
    texts += ["(" * 2000 + "a > 1" + ")" * 2000, "NOT " * 1000 + "a"]
    await flood(
        target,
        target.broker,
        [pull(target.topic, 0, subscription=text, expressionType="SQL92") for text in texts],
        got,
    )


@_abuse("headers", "requests whose headers are deeply nested or have 20 000 fields")
async def _headers(target: Target, got: Got) -> None:
    nested = b'{"code":34,"opaque":1,"extFields":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    wide = json.dumps({"code": 34, "opaque": 1, "extFields": {f"f{n}": "x" for n in range(20_000)}}).encode()
    frames = [struct.pack(">II", 4 + len(header), len(header)) + header for header in (nested, wide)]
    dice = random.Random(1)
    await churn(target, target.broker, lambda: dice.choice(frames), 8, got)


@_abuse("bodies", "heartbeats with a body of nested JSON")
async def _bodies(target: Target, got: Got) -> None:
    bodies = [b'{"clientID":' + b"[" * 200_000, b'{"a":' * 50_000 + b"1" + b"}" * 50_000]
    await flood(target, target.broker, [request(Code.HEART_BEAT, {}, body) for body in bodies], got, window=4)


@_abuse("locks", "locks of queues of groups and topics that do not exist", memory_mib=64.0)
async def _locks(target: Target, got: Got) -> None:
    def body(n: int) -> bytes:
        queues = [{"topic": f"none{n}", "brokerName": "none", "queueId": q} for q in range(200)]
        return json.dumps({"consumerGroup": f"none{n}", "clientId": "abuser", "mqSet": queues}).encode()

    requests = [request(Code.LOCK_BATCH_MQ, {}, body(n)) for n in range(4000)]
    await flood(target, target.broker, requests, got, window=4)


@_abuse("offsets", "offsets of groups and topics that do not exist", memory_mib=64.0)
async def _offsets(target: Target, got: Got) -> None:
    def ext(n: int) -> dict[str, str]:
        return {"consumerGroup": f"none{n}", "topic": f"none{n % 1000}", "queueId": str(n % 8), "commitOffset": "1"}

    await flood(target, target.broker, [request(Code.UPDATE_CONSUMER_OFFSET, ext(n)) for n in range(50_000)], got)


@_abuse("clients", "heartbeats of made-up clients with made-up groups", memory_mib=96.0)
async def _clients(target: Target, got: Got) -> None:
    def body(n: int) -> bytes:
        subscriptions = [{"topic": f"none{n}", "subString": "*", "expressionType": "TAG", "subVersion": n}]
        group = {"groupName": f"made{n}", "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
                 "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET", "subscriptionDataSet": subscriptions}  # fmt: skip
        told = {"clientID": f"abuser@{n}", "producerDataSet": [{"groupName": f"p{n}"}], "consumerDataSet": [group]}
        return json.dumps(told).encode()

    await flood(target, target.broker, [request(Code.HEART_BEAT, {}, body(n)) for n in range(10_000)], got, window=8)


@_abuse("topics", "sends that create topics", memory_mib=96.0)
async def _topics(target: Target, got: Got) -> None:
    await flood(
        target,
        target.broker,
        [send_command(f"made-{n}", 0, b"x") for n in range(20_000)],
        got,
        connections=2,
        window=4,
    )


@_abuse("times", "searches by time, and offsets of all queues")
async def _times(target: Target, got: Got) -> None:
    where = {"topic": target.topic, "queueId": "0"}
    requests = [
        request(Code.SEARCH_OFFSET_BY_TIMESTAMP, where | {"timestamp": str(n)}) for n in range(0, 10**13, 10**11)
    ]
    await flood(target, target.broker, requests, got)


@_abuse("dumps", "all topics, offsets, groups, settings and figures of the broker, again and again")
async def _dumps(target: Target, got: Got) -> None:
    codes = (Code.GET_ALL_TOPIC_CONFIG, Code.GET_ALL_CONSUMER_OFFSET, Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
             Code.GET_BROKER_CONFIG, Code.GET_BROKER_RUNTIME_INFO, Code.GET_ALL_DELAY_OFFSET)  # fmt: skip
    await flood(target, target.broker, [request(code, {}) for code in codes], got)


# -- the name server ---------------------------------------------------------------------------------------------------


def _registration(n: int, body: bytes, *, compressed: bool) -> Command:
    crc = zlib.crc32(body) & 0x7FFFFFFF
    return request(
        Code.REGISTER_BROKER,
        {"brokerName": f"forged-{n}", "brokerAddr": f"10.0.{n >> 8 & 255}.{n & 255}:10911", "clusterName": f"forged{n}",
         "haServerAddr": "", "brokerId": "0", "compressed": str(compressed).lower(), "bodyCrc32": str(crc),
         "groupTerm": str(2**62)},
        body,
    )  # fmt: skip


@_abuse("registrations", "registrations of brokers that do not exist, with the highest term", memory_mib=96.0)
async def _registrations(target: Target, got: Got) -> None:
    topics = {f"forged-{n}": {"perm": 6, "readQueueNums": 4, "topicName": f"forged-{n}", "writeQueueNums": 4,
                              "topicFilterType": "SINGLE_TAG"} for n in range(20)}  # fmt: skip
    version = {"counter": 1, "timestamp": 1}
    wrapper = {"dataVersion": version, "topicConfigTable": topics}
    body = json.dumps({"filterServerList": [], "topicConfigSerializeWrapper": wrapper}).encode()
    requests = [_registration(n, body, compressed=False) for n in range(2000)]
    await flood(target, target.nameserver, requests, got, window=8)


@_abuse("bombs", "registrations whose body is 64 KiB and has 64 MiB when it is not compressed", memory_mib=160.0)
async def _bombs(target: Target, got: Got) -> None:
    body = zlib.compress(bytes(63 << 20), 9)
    await flood(target, target.nameserver, [_registration(0, body, compressed=True)], got, connections=2, window=2)


@_abuse("values", "values of 32 KiB for the name server's table", memory_mib=96.0)
async def _values(target: Target, got: Got) -> None:
    requests = [
        request(Code.PUT_KV_CONFIG, {"namespace": f"n{n}", "key": f"k{n}", "value": "v" * 32_000}) for n in range(2000)
    ]
    await flood(target, target.nameserver, requests, got, window=4)


@_abuse("routes", "routes of topics that do not exist")
async def _routes(target: Target, got: Got) -> None:
    requests = [request(Code.GET_ROUTEINFO_BY_TOPIC, {"topic": f"none{n}"}) for n in range(1000)]
    await flood(target, target.nameserver, requests, got)


# -- TLS ---------------------------------------------------------------------------------------------------------------


def client_hello() -> bytes:
    """The first message of a client."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        trusting().wrap_bio(incoming, outgoing).do_handshake()
    return outgoing.read()


@_abuse("cut-handshakes", "TLS handshakes of which only the first message comes, 500 a second or more")
async def _cut_handshakes(target: Target, got: Got) -> None:
    hello = client_hello()

    async def one(_: int) -> None:
        while True:
            with contextlib.suppress(OSError):
                async with link(target, target.broker, tls=False) as (_reader, writer):
                    writer.write(hello)
                    got["handshakes"] += 1
                    await asyncio.sleep(0.02)

    await at_once(20, one)


@_abuse("slow-handshakes", "300 TLS handshakes that send a byte every 50 ms", memory_mib=64.0)
async def _slow_handshakes(target: Target, got: Got) -> None:
    hello = client_hello()

    async def one(_: int) -> None:
        while True:
            with contextlib.suppress(OSError):
                async with link(target, target.broker, tls=False) as (_reader, writer):
                    for byte in hello:
                        writer.write(bytes([byte]))
                        got["bytes"] += 1
                        await asyncio.sleep(0.05)
            got["connections ended"] += 1

    await at_once(300, one)


@_abuse("handshakes", "TLS handshakes that are completed, one after the other, 8 at a time")
async def _handshakes(target: Target, got: Got) -> None:
    async def one(_: int) -> None:
        while True:
            try:
                async with link(target, target.broker, tls=True):
                    got["handshakes"] += 1
            except OSError:
                got["connections closed by the server"] += 1

    await at_once(8, one)


@_abuse("renegotiation", "TLS 1.2 clients that ask for a new handshake on their connection (openssl s_client)")
async def _renegotiation(target: Target, got: Got) -> None:
    async def one(_: int) -> None:
        while True:
            client = await asyncio.create_subprocess_exec(
                "openssl", "s_client", "-connect", f"{HOST}:{target.broker}", "-tls1_2",
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
            )  # fmt: skip
            assert client.stdin is not None
            client.stdin.write(b"R\n" * 20)
            try:
                async with asyncio.timeout(2):
                    output, _errors = await client.communicate()
                got["refused" if b"no renegotiation" in output or b"error" in output else "other"] += 1
            except TimeoutError:
                client.kill()
                got["no answer"] += 1

    await at_once(4, one)


# -- HTTP --------------------------------------------------------------------------------------------------------------


@_abuse("slowloris", "400 HTTP requests whose head sends a byte every 50 ms")
async def _slowloris(target: Target, got: Got) -> None:
    head = b"GET /healthz HTTP/1.1\r\nHost: x\r\nX: "
    await drip(target, target.http, head, b"a" * 2000, 0.05, got, tls=False)


@_abuse("heads", "HTTP requests with a head of 1 MiB")
async def _heads(target: Target, got: Got) -> None:
    head = b"GET /node HTTP/1.1\r\nHost: localhost\r\n" + b"".join(
        b"X%d: %s\r\n" % (n, b"a" * 1000) for n in range(1000)
    )
    await churn(target, target.http, lambda: head + b"\r\n", 8, got)


async def _http(target: Target, got: Got, *heads: str, parallel: int = 8) -> None:
    """HTTP requests, each on its own connection as a stranger's; counts the statuses."""
    dice = random.Random(1)

    async def one(_: int) -> None:
        while True:
            with contextlib.suppress(OSError, TimeoutError):
                async with link(target, target.http, tls=False) as (reader, writer), asyncio.timeout(5):
                    writer.write(dice.choice(heads).encode())
                    status = (await reader.readline()).split(b" ")
                    got[f"status {status[1].decode()}" if len(status) > 1 else "closed by the server"] += 1

    await at_once(parallel, one)


def _post(extra: str, *, host: str = "localhost") -> str:
    body = '{"name": "cross-site", "queues": 1}'
    head = f"POST /topics HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{extra}"
    return f"{head}Content-Length: {len(body)}\r\n\r\n{body}"


@_abuse("cross-site", "HTTP POSTs that a page of another site can send, and foreign Host headers")
async def _cross_site(target: Target, got: Got) -> None:
    await _http(
        target,
        got,
        _post("Content-Type: text/plain\r\n"),
        _post("Content-Type: application/json\r\nOrigin: http://evil.example\r\n"),
        _post("Content-Type: application/json\r\nSec-Fetch-Site: cross-site\r\n"),
        _post("Content-Type: application/json\r\n", host="evil.example"),
    )


@_abuse("scrapes", "metrics and probes over HTTP, again and again")
async def _scrapes(target: Target, got: Got) -> None:
    heads = [
        f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n" for path in ("/metrics", "/healthz")
    ]
    await _http(target, got, *heads)


@_abuse("missing-bodies", "100 HTTP requests whose body does not come")
async def _missing_bodies(target: Target, got: Got) -> None:
    head = (
        b"POST /topics HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 60000\r\n\r\n{"
    )
    await hold(target, target.http, head, 100, got)


# -- the port for slaves -----------------------------------------------------------------------------------------------


@_abuse("slaves", "strangers at the port for slaves: they ask for the log, confirm what they lack, and read nothing")
async def _slaves(target: Target, got: Got) -> None:
    positions = (0, 2**62, 1000, -1)

    async def one(number: int) -> None:
        while True:
            with contextlib.suppress(OSError):
                async with link(target, target.slaves, tls=False) as (reader, writer):
                    writer.write(struct.pack(">q", positions[number % len(positions)]))
                    if number % 2:
                        writer.transport.pause_reading()  # type: ignore[attr-defined]
                        await asyncio.sleep(0.2)
                    elif data := await reader.read(1 << 16):
                        got["bytes of the log"] += len(data)
                        continue
            got["connections closed"] += 1
            await asyncio.sleep(0.02)

    await at_once(100, one)


# -- access control ----------------------------------------------------------------------------------------------------


def _all_codes(topic: str) -> list[Command]:
    fields = {"topic": topic, "b": topic, "consumerGroup": "abuser", "group": "abuser", "a": "p", "offset": "0"}
    return [request(code, dict(fields)) for code in Code]


@_abuse("unsigned", "requests of all codes without a signature", Place.guarded)
async def _unsigned(target: Target, got: Got) -> None:
    await flood(target, target.broker, _all_codes(target.topic), got)


@_abuse("wrong-signatures", "sends with the name of an account and wrong signatures", Place.guarded)
async def _wrong_signatures(target: Target, got: Got) -> None:
    requests = []
    for n in range(200):
        command = send_command(target.topic, 0, bytes(128))
        assert command.ext is not None
        command.ext |= {"AccessKey": target.account[0] if n % 2 else f"nobody{n}", "Signature": f"{n:028d}"}
        requests.append(command)
    await flood(target, target.broker, requests, got)


@_abuse("replays", "signed requests that are sent again with another body, topic or group", Place.guarded)
async def _replays(target: Target, got: Got) -> None:
    requests = []
    for change in ({"b": "other"}, {"a": "other"}, {"e": "1"}):
        command = request(Code.SEND_MESSAGE_V2, send_command(target.topic, 0, b"x").ext or {}, b"x", target=target)
        assert command.ext is not None
        command.ext |= change
        requests.append(command)
    command = request(Code.SEND_MESSAGE_V2, send_command(target.topic, 0, b"x").ext or {}, b"x", target=target)
    command.body = b"another body"
    await flood(target, target.broker, [*requests, command], got)


@_abuse("tenant", "an account that asks for what it may not do", Place.guarded)
async def _tenant(target: Target, got: Got) -> None:
    requests = [request(each.code, each.ext or {}, target=target) for each in _all_codes("other")]
    await flood(target, target.broker, requests, got)


@_abuse("tokens", "HTTP requests with wrong tokens", Place.guarded)
async def _tokens(target: Target, got: Got) -> None:
    head = "GET /node HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAuthorization: Bearer wrong\r\n\r\n"
    await _http(target, got, head)


@_abuse("guarded-registrations", "registrations without a signature", Place.guarded)
async def _guarded_registrations(target: Target, got: Got) -> None:
    requests = [_registration(n, b"{}", compressed=False) for n in range(500)]
    await flood(target, target.nameserver, requests, got)


@_abuse("guarded-handshakes", "TLS handshakes that are completed, where TLS is required", Place.guarded)
async def _guarded_handshakes(target: Target, got: Got) -> None:
    await _handshakes(target, got)


# -- members -----------------------------------------------------------------------------------------------------------


async def _as_member(target: Target, got: Got, *messages: object) -> None:
    """Connections that claim to be a follower, with these messages."""
    pieces = []
    hello = Hello(Identity("DefaultCluster", target.group, target.follower), target.leader, Lane.CONTROL)
    layouts = {layout.message: layout for layout in codec.LAYOUTS}
    for message in messages:
        layout = layouts[type(message)]
        pieces.append(encode_frame(layout.kind, layout.version, layout.encode(message), 0))
    data = encode_frame(KIND_HELLO, HANDSHAKE_VERSION, hello.encode()) + b"".join(pieces) * 20
    await churn(target, target.member, lambda: data, 8, got)


@_abuse("votes", "votes with huge and with current terms at the members' port", Place.group)
async def _votes(target: Target, got: Got) -> None:
    terms = (1, 2, 1000, 2**40, 2**62)
    await _as_member(target, got, *(_vote(target, term) for term in terms))


def _vote(target: Target, term: int) -> VoteRequest:
    return VoteRequest(target.follower, target.leader, term, 1, term, 10**6)


@_abuse("appends", "forged entries at the members' port", Place.group)
async def _appends(target: Target, got: Got) -> None:
    await _as_member(
        target, got, AppendRequest(target.follower, target.leader, 2, 0, 0, 0, (TermRun(2, 10**6),), 10**6)
    )


@_abuse("member-noise", "silent connections, and garbage, at the members' port", Place.group)
async def _member_noise(target: Target, got: Got) -> None:
    dice = random.Random(1)

    async def noise() -> None:
        await churn(target, target.member, lambda: dice.randbytes(300), 10, got)

    async with asyncio.TaskGroup() as group:
        group.create_task(noise())
        group.create_task(hold(target, target.member, b"", 300, got))
