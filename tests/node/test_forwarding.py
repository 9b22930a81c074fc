"""A member that does not lead passes on what only the leader can do, over real sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from forwarding_lab import TOPIC, Node, send, until

from tallystick.node.broker.group import envelope, forwarding
from tallystick.node.broker.group.leader_only import LOG
from tallystick.node.remoting.client import RemotingClient
from tallystick.node.remoting.codec import encode
from tallystick.node.remoting.codes import RequestCode, ResponseCode
from tallystick.node.remoting.command import Command, HeaderType, ResponseError
from tallystick.node.remoting.errors import RemotingConnectError
from tallystick.store.formats.message import Host

NOBODY = Host("192.0.2.1", 4711)
OFFSET = {"consumerGroup": "cg", "topic": TOPIC, "queueId": "1"}


class Lab:
    """n0 leads, n1 follows it, and a client is connected to n1."""

    def __init__(self) -> None:
        self.leader, self.follower = Node(0), Node(1)
        self.client = RemotingClient({RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: self._reply})
        self.replies: list[Command] = []

    def _reply(self, connection: Any, command: Command) -> Command:
        self.replies.append(command)
        return command.reply(body=b"taken")

    async def start(self) -> None:
        for node in (self.leader, self.follower):
            await node.start()
        self.leader.group.lead()
        self.follower.group.follow(self.leader)

    async def stop(self) -> None:
        await self.client.close()
        for node in (self.follower, self.leader):
            await node.stop()

    async def ask(self, command: Command) -> Command:
        return await self.client.call(self.follower.address, command, 10)

    def asking(self, command: Command) -> asyncio.Task[Command]:
        return asyncio.create_task(self.ask(command))

    async def own_address(self) -> str:
        link = await self.client.connection(self.follower.address)
        assert link._transport is not None
        ip, port = link._transport.get_extra_info("sockname")
        return f"{ip}:{port}"


@pytest.fixture
async def lab() -> AsyncIterator[Lab]:
    lab = Lab()
    await lab.start()
    yield lab
    await lab.stop()


# -- changes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("header_type", HeaderType)
async def test_a_send_to_a_follower_is_stored_at_the_leader_as_its_clients(lab: Lab, header_type: HeaderType) -> None:
    answer = await lab.ask(send(b"one", header_type=header_type))
    (record,) = lab.leader.broker.store.records(TOPIC)
    assert answer.code == 0
    assert answer.ext is not None and answer.ext["msgId"] == record.message_id
    assert answer.header_type == header_type
    assert str(record.born_host) == await lab.own_address(), "not the follower's"
    assert lab.follower.bodies() == []


async def test_oneway_requests_are_forwarded_too(lab: Lab) -> None:
    link = await lab.client.connection(lab.follower.address)
    link.oneway(Command(RequestCode.UPDATE_CONSUMER_OFFSET, ext={**OFFSET, "commitOffset": "7"}))
    link.oneway(send(b"one"))
    await until(lambda: lab.leader.bodies() == [b"one"])
    assert lab.leader.broker.offsets.query("cg", TOPIC, 1) == 7
    assert lab.follower.broker.offsets.query("cg", TOPIC, 1) == -1
    assert (await lab.ask(send(b"two"))).code == 0, "every answer must belong to a pending request"


async def test_a_lock_is_granted_and_freed_by_the_leader_alone(lab: Lab) -> None:
    queue = {"topic": TOPIC, "brokerName": "b", "queueId": 0}

    def request(code: int, client: str) -> Command:
        body = {"consumerGroup": "cg", "clientId": client, "mqSet": [queue]}
        return Command(code, body=json.dumps(body).encode())

    first = await lab.ask(request(RequestCode.LOCK_BATCH_MQ, "c1"))
    assert len(json.loads(first.body)["lockOKMQSet"]) == 1
    other = await lab.client.call(lab.leader.address, request(RequestCode.LOCK_BATCH_MQ, "c2"))
    assert json.loads(other.body)["lockOKMQSet"] == []
    assert (await lab.ask(request(RequestCode.UNLOCK_BATCH_MQ, "c1"))).code == 0
    other = await lab.client.call(lab.leader.address, request(RequestCode.LOCK_BATCH_MQ, "c2"))
    assert len(json.loads(other.body)["lockOKMQSet"]) == 1


async def test_an_error_of_the_leader_is_returned(lab: Lab) -> None:
    command = Command(RequestCode.UPDATE_CONSUMER_OFFSET, ext={**OFFSET, "topic": "none", "commitOffset": "7"})
    answer = await lab.ask(command)
    assert (answer.code, answer.remark) == (17, "topic[none] not exist")


async def test_no_request_is_forwarded_twice(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two members take each other for the leader: the receiver refuses, and the request ends where it came."""
    monkeypatch.setattr(forwarding, "HOLD_S", 0.2)
    lab.leader.group.follow(lab.follower)
    asked = lab.asking(send(b"one"))
    await until(lambda: lab.follower.held)
    assert lab.leader.held == 0
    answer = await asked
    assert (answer.code, answer.remark) == (14, "this member follows")
    assert lab.leader.bodies() == lab.follower.bodies() == []
    assert lab.leader.leader_only.forwarder.forwarded == lab.follower.leader_only.forwarder.forwarded == 0


async def test_the_final_leader_gets_the_requests_that_were_refused_before(lab: Lab) -> None:
    lab.leader.group.follow(lab.follower)
    asked = lab.asking(send(b"one"))
    await until(lambda: lab.follower.held)
    lab.follower.group.lead()
    assert (await asked).code == 0
    assert lab.follower.bodies() == [b"one"]


# -- holding -----------------------------------------------------------------------------------------------------------


async def test_requests_wait_for_a_leader_and_go_on_in_their_order(lab: Lab) -> None:
    lab.follower.group.follow(None)
    bodies = [b"%d" % number for number in range(50)]
    asked = [lab.asking(send(body)) for body in bodies]
    await until(lambda: lab.follower.held == 50)
    lab.follower.group.follow(lab.leader)
    assert {(await each).code for each in asked} == {0}
    assert lab.leader.bodies() == bodies
    assert (lab.follower.held, lab.follower.leader_only.forwarder.held_bytes) == (0, 0)


async def test_a_new_request_does_not_overtake_those_that_wait(lab: Lab) -> None:
    lab.follower.group.follow(None)
    asked = [lab.asking(send(b"%d" % number)) for number in range(3)]
    await until(lambda: lab.follower.held == 3)
    lab.follower.group.lead()
    # Their tasks have not run yet when this one is looked at.
    late: Any = lab.follower.leader_only.routes[RequestCode.SEND_MESSAGE_V2](_Here(), send(b"late"))  # type: ignore[arg-type]
    answer = await asyncio.create_task(late)
    assert answer is not None and answer.code == 0
    assert {(await each).code for each in asked} == {0}
    assert lab.follower.bodies() == [b"0", b"1", b"2", b"late"]


class _Here:
    remote = NOBODY
    closed = False

    def __init__(self) -> None:
        self.attributes: dict[str, Any] = {}


async def test_a_leader_that_hands_over_holds_and_forwards(lab: Lab) -> None:
    lab.follower.group.lead(accepting=False)
    asked = lab.asking(send(b"one"))
    await until(lambda: lab.follower.held)
    lab.follower.group.follow(lab.leader, term=2)
    assert (await asked).code == 0
    assert lab.leader.bodies() == [b"one"]


async def test_a_send_that_has_not_begun_when_leadership_is_lost_is_forwarded(lab: Lab) -> None:
    lab.follower.group.lead()
    route: Any = lab.follower.leader_only.routes[RequestCode.SEND_MESSAGE_V2]
    asked = route(_Here(), send(b"one"))  # a connection makes a task of it, which runs in a later turn of the loop
    lab.follower.group.follow(lab.leader, term=2)
    answer = await asked
    assert answer is not None and answer.code == 0
    assert (lab.follower.bodies(), lab.leader.bodies()) == ([], [b"one"])


async def test_a_forwarded_send_that_has_not_begun_is_returned(lab: Lab) -> None:
    route: Any = lab.leader.leader_only.routes[RequestCode.FORWARDED_REQUEST]
    asked = route(_Here(), envelope.forwarded(send(b"one"), NOBODY, lab.leader.group.key))
    lab.leader.group.lead(accepting=False)
    with pytest.raises(ResponseError) as refused:
        await asked
    assert refused.value.code == ResponseCode.SERVICE_NOT_AVAILABLE, "nothing was done, says the envelope's own code"
    assert lab.leader.bodies() == []


async def test_a_leader_that_stays_after_all_serves_what_it_held(lab: Lab) -> None:
    lab.follower.group.lead(accepting=False)
    asked = lab.asking(send(b"one"))
    await until(lambda: lab.follower.held)
    lab.follower.group.lead()
    assert (await asked).code == 0
    assert lab.follower.bodies() == [b"one"]


async def test_a_leader_with_a_full_disk_refuses_at_once(lab: Lab) -> None:
    lab.follower.group.full = True
    lab.follower.group.lead(accepting=False)
    assert (await lab.ask(send(b"one"))).code == 14


async def test_without_a_leader_a_request_is_refused_in_the_end(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwarding, "HOLD_S", 0.05)
    lab.follower.group.follow(None)
    answer = await lab.ask(send(b"one"))
    assert answer.code == 14
    assert answer.ext is not None and "MSG_REGION" in answer.ext, "a 4.8 client fails on a null map"
    assert lab.follower.held == 0
    assert lab.follower.broker.stats.send_failures == 1
    offset = Command(RequestCode.UPDATE_CONSUMER_OFFSET, ext={**OFFSET, "commitOffset": "7"})
    assert (await lab.ask(offset)).code == 14
    assert lab.follower.broker.stats.send_failures == 1, "it is not a send"


@pytest.mark.parametrize(("name", "limit"), [("HELD_MAX", 2), ("HELD_BYTES_MAX", 2 * 1500)])
async def test_what_is_held_is_bounded(lab: Lab, monkeypatch: pytest.MonkeyPatch, name: str, limit: int) -> None:
    monkeypatch.setattr(forwarding, name, limit)
    lab.follower.group.follow(None)
    asked = [lab.asking(send(b"x" * 800)) for _ in range(2)]
    await until(lambda: lab.follower.held == 2)
    answer = await lab.ask(send(b"y" * 800))
    assert (answer.code, answer.remark) == (14, "this member follows")
    lab.follower.group.follow(lab.leader)
    assert {(await each).code for each in asked} == {0}


async def test_a_client_that_retried_elsewhere_is_not_served_late(lab: Lab) -> None:
    lab.follower.group.follow(None)
    link = await lab.client.connection(lab.follower.address)
    asked = lab.asking(send(b"one"))
    await until(lambda: lab.follower.held)
    link.oneway(Command(RequestCode.UPDATE_CONSUMER_OFFSET, ext={**OFFSET, "commitOffset": "7"}))
    await until(lambda: lab.follower.held == 2)
    link.close()
    with pytest.raises(RemotingConnectError):
        await asked
    await until(lambda: not lab.follower.connections)
    other = RemotingClient()
    waiting = asyncio.create_task(other.call(lab.follower.address, send(b"two"), 10))
    await until(lambda: lab.follower.held == 3)
    lab.follower.group.follow(lab.leader)
    assert (await waiting).code == 0
    assert lab.leader.bodies() == [b"two"]
    assert lab.leader.broker.offsets.query("cg", TOPIC, 1) == 7, "what it said last, and waits for no answer to"
    await other.close()


# -- when the leader does not answer -----------------------------------------------------------------------------------


async def test_an_unreachable_leader_counts_as_no_leader(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwarding, "HOLD_S", 0.2)
    address, lab.leader.address = lab.leader.address, "127.0.0.1:1"
    lab.follower.group.follow(lab.leader)
    lab.leader.address = address
    assert (await lab.ask(send(b"one"))).code == 14


@pytest.mark.parametrize("dies", [True, False])
async def test_an_answer_that_does_not_come_is_unknown(lab: Lab, monkeypatch: pytest.MonkeyPatch, dies: bool) -> None:
    monkeypatch.setattr(forwarding, "CALL_S", 10 if dies else 0.1)

    class Silent(Node):
        def __init__(self) -> None:
            super().__init__(2)
            self.served[RequestCode.SEND_MESSAGE_V2] = self.take

        async def take(self, connection: Any, command: Command) -> None:
            if dies:
                connection._link.abort()
            await asyncio.Event().wait()

    silent = Silent()
    await silent.start()
    silent.group.lead()
    lab.follower.group.follow(silent, term=2)
    answer = await lab.ask(send(b"one"))
    assert answer.code == 1 and str(answer.remark).startswith("UNKNOWN_ERROR")
    assert answer.ext is not None and "MSG_REGION" in answer.ext
    assert len(silent.arrived) == 1, "not sent again: it may be done"
    await silent.stop()


# -- questions ---------------------------------------------------------------------------------------------------------


async def test_offsets_come_from_the_leader_and_without_one_are_the_committed_ones(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forwarding, "ASK_S", 0.05)
    lab.leader.broker.offsets.commit("cg", TOPIC, 1, 9)
    lab.follower.broker.offsets.commit("cg", TOPIC, 1, 5)
    question = Command(RequestCode.QUERY_CONSUMER_OFFSET, ext=OFFSET)
    assert (await lab.ask(question)).ext == {"offset": "9"}
    lab.leader.group.lead(accepting=False)
    assert (await lab.ask(question)).ext == {"offset": "9"}, "one that hands over still knows"
    lab.follower.group.follow(None)
    assert (await lab.ask(question)).ext == {"offset": "5"}


async def test_a_member_knows_clients_of_which_the_leader_has_not_heard(lab: Lab) -> None:
    beat = {"clientID": "c1", "consumerDataSet": [{"groupName": "cg", "subscriptionDataSet": []}]}
    assert (await lab.ask(Command(RequestCode.HEART_BEAT, body=json.dumps(beat).encode()))).code == 0
    question = Command(RequestCode.GET_CONSUMER_LIST_BY_GROUP, ext={"consumerGroup": "cg"})
    assert json.loads((await lab.ask(question)).body) == {"consumerIdList": ["c1"]}
    await lab.client.call(
        lab.leader.address, Command(RequestCode.HEART_BEAT, body=json.dumps(beat | {"clientID": "c2"}).encode())
    )
    assert json.loads((await lab.ask(question)).body) == {"consumerIdList": ["c2"]}, "the leader has heard more of them"


async def test_the_reported_end_of_a_queue_is_after_all_acknowledged_messages(lab: Lab) -> None:
    question = Command(RequestCode.GET_MAX_OFFSET, ext={"topic": TOPIC, "queueId": "1"})
    assert (await lab.ask(question)).ext == {"offset": "0"}
    assert lab.follower.group.reads == 1
    lab.follower.group.behind = True
    assert (await lab.ask(question)).ext == {"offset": "0"}, "reads go on"
    lab.follower.group.follow(None)
    await lab.ask(question)
    assert lab.follower.group.reads == 2, "without a leader no read may be sent"


@pytest.mark.parametrize("code", sorted(LOG))
async def test_reads_of_the_log_include_all_acknowledged_messages(code: int) -> None:
    leader, node, client = Node(0), Node(1), RemotingClient()
    node.served[code] = lambda connection, command: command.reply(remark=f"{node.group.reads} reads")
    for each in (leader, node):
        await each.start()
    node.group.follow(leader)
    assert (await client.call(node.address, Command(code))).remark == "1 reads"
    node.group.lead()
    assert (await client.call(node.address, Command(code))).remark == "1 reads", "a leader has it all"
    await client.close()
    for each in (node, leader):
        await each.stop()


# -- who is believed ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["", "key of n1", "key of n0 "])
async def test_only_a_member_may_speak_for_a_client(lab: Lab, key: str) -> None:
    answer = await lab.client.call(lab.leader.address, envelope.forwarded(send(b"one"), NOBODY, key))
    assert answer.code == 16
    assert lab.leader.bodies() == []


@pytest.mark.parametrize(
    ("body", "client", "code"),
    [
        (b"", "192.0.2.1:1", 1),
        (b"junk", "192.0.2.1:1", 1),
        (encode(send(b"one")) * 2, "192.0.2.1:1", 1),
        (encode(send(b"one")), "somewhere", 1),
        (encode(Command(RequestCode.PULL_MESSAGE)), "192.0.2.1:1", 3),
        (encode(envelope.forwarded(send(b"one"), NOBODY, "key of n0")), "192.0.2.1:1", 3),
    ],
    ids=["nothing", "junk", "two", "no address", "a pull", "an envelope"],
)
async def test_what_is_no_request_of_a_client_is_refused(lab: Lab, body: bytes, client: str, code: int) -> None:
    ext = {envelope.KEY: "key of n0", envelope.CLIENT: client}
    answer = await lab.client.call(lab.leader.address, Command(RequestCode.FORWARDED_REQUEST, ext=ext, body=body))
    assert answer.code == code
    assert lab.leader.bodies() == []


async def test_clients_do_not_send_what_only_members_do(lab: Lab) -> None:
    beat = json.dumps({"clientID": "p1", "producerDataSet": [{"groupName": "pg"}]}).encode()
    answer = await lab.client.call(lab.leader.address, Command(RequestCode.RELAYED_HEART_BEAT, body=beat))
    assert answer.code == 3


# -- clients that another member has -----------------------------------------------------------------------------------

BEAT = Command(
    RequestCode.HEART_BEAT, body=json.dumps({"clientID": "p1", "producerDataSet": [{"groupName": "pg"}]}).encode()
)


async def test_the_leader_reaches_a_producer_by_the_member_that_has_it(lab: Lab) -> None:
    assert (await lab.ask(BEAT)).code == 0
    producers = lab.leader.broker.producers
    await until(lambda: producers.find("p1"))
    client = producers.find("p1")
    assert client is not None
    assert str(client.remote) == await lab.own_address()
    question = Command(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, ext={"topic": "T"}, body=b"reply")
    assert (await client.call(question, 5)).body == b"taken"
    client.oneway(Command(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, body=b"one way"))
    await until(lambda: len(lab.replies) == 2)
    assert [reply.body for reply in lab.replies] == [b"reply", b"one way"]


async def test_a_reply_finds_a_requester_that_is_connected_to_a_follower(lab: Lab) -> None:
    await lab.ask(BEAT)
    await until(lambda: lab.leader.broker.producers.find("p1"))
    command = send(b"answer")
    assert command.ext is not None
    command.code, command.ext["i"] = RequestCode.SEND_REPLY_MESSAGE_V2, "REPLY_TO_CLIENT\x01p1\x02"
    assert (await lab.client.call(lab.leader.address, command)).code == 0
    assert [reply.body for reply in lab.replies] == [b"answer"]


async def test_a_producer_that_leaves_is_removed_at_the_leader(lab: Lab) -> None:
    producers = lab.leader.broker.producers
    await lab.ask(BEAT)
    await until(lambda: producers.find("p1"))
    client = producers.find("p1")
    (await lab.client.connection(lab.follower.address)).close()
    await until(lambda: not producers.groups())
    assert client is not None and client.closed
    await lab.ask(BEAT)
    await until(lambda: producers.find("p1"))
    farewell = Command(RequestCode.UNREGISTER_CLIENT, ext={"clientID": "p1", "producerGroup": "pg"})
    assert (await lab.ask(farewell)).code == 0
    await until(lambda: not producers.groups())


async def test_a_link_that_breaks_takes_its_clients_along(lab: Lab) -> None:
    producers = lab.leader.broker.producers
    await lab.ask(BEAT)
    await until(lambda: producers.find("p1"))
    await lab.follower.leader_only._client.close()
    await until(lambda: not producers.groups())


async def test_a_new_leader_learns_the_producers_of_the_old_one(lab: Lab) -> None:
    assert (await lab.client.call(lab.leader.address, BEAT)).code == 0
    assert lab.follower.broker.producers.find("p1") is None
    lab.leader.group.follow(None)
    lab.follower.group.lead()
    lab.leader.group.follow(lab.follower, term=2)
    await until(lambda: lab.follower.broker.producers.find("p1"))


async def test_a_group_that_no_leader_heard_of_is_made_when_there_is_one(lab: Lab) -> None:
    lab.follower.group.follow(None)
    # A follower makes no groups: what its processor makes here is taken away again.
    consumers = [{"groupName": "new", "subscriptionDataSet": []}]
    beat = {"clientID": "c1", "consumerDataSet": consumers, "producerDataSet": [{"groupName": "pg"}]}
    await lab.ask(Command(RequestCode.HEART_BEAT, body=json.dumps(beat).encode()))
    lab.follower.group.follow(lab.leader, term=2)
    await until(lambda: lab.leader.broker.groups.find("new"))
    assert "%RETRY%new" in lab.leader.broker.topics
    assert list(lab.leader.broker.consumers) == [], "it heartbeats there itself"
    assert lab.leader.broker.producers.find("c1") is None, "and the follower would not pass requests on to it"


async def test_a_member_that_leads_in_the_end_makes_the_group_itself(lab: Lab) -> None:
    lab.follower.group.follow(None)
    beat = {"clientID": "c1", "consumerDataSet": [{"groupName": "new", "subscriptionDataSet": []}]}
    await lab.ask(Command(RequestCode.HEART_BEAT, body=json.dumps(beat).encode()))
    lab.follower.broker.groups.delete("new")
    lab.follower.group.lead()
    await until(lambda: lab.follower.broker.groups.find("new"))
