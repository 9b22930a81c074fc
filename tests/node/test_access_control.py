"""The checks of requests: who is refused, for what reason, with which answer and which line in the access log."""

import json
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from tallystick.node.access.access_log import AccessLog
from tallystick.node.access.control import AccessControl, Accounts
from tallystick.node.access.plain_acl import parse
from tallystick.node.access.request_table import (
    ADMINISTRATION_OF_ROCKETMQ,
    BROKER,
    CHECKED_BY_ROCKETMQ,
    NAME_SERVER,
)
from tallystick.node.access.signatures import sign
from tallystick.node.broker.group.leader_only import CHANGES, HERE, LOG, QUESTIONS
from tallystick.node.remoting.codes import RequestCode as Code
from tallystick.node.remoting.command import Command, ResponseError
from tallystick.store import fastjson
from tallystick.store.formats.message import Host

SECRET = "12345678"
ACL = b"""
globalWhiteRemoteAddresses: [10.9.9.9]
accounts:
- {accessKey: producer, secretKey: "12345678", topicPerms: [orders=PUB, other=DENY]}
- {accessKey: consumer, secretKey: "12345678", defaultGroupPerm: DENY, topicPerms: [orders=SUB], groupPerms: [g=SUB]}
- {accessKey: trusted, secretKey: "12345678", whiteRemoteAddress: 10.0.0.7}
- {accessKey: administrator, secretKey: "12345678", admin: true}
"""
POSITIONS = {100: "orders", 200: "other", 300: "%RETRY%g"}


class Checked:
    """A guarded route of every code of the broker. `served`: the codes that passed."""

    def __init__(self) -> None:
        self.served: list[int] = []
        self.now_s = 0.0
        self.control = AccessControl(BROKER, AccessLog(lambda: self.now_s), topic_at=POSITIONS.get)
        self.control.accounts = Accounts.of(parse(ACL))
        self.routes = self.control.guard(dict.fromkeys([*BROKER, 9999], self._serve))

    def _serve(self, connection: Any, command: Command) -> None:
        self.served.append(command.code)

    def send(
        self, command: Command, user: str | None = None, address: str = "10.0.0.1", names: tuple[str, ...] = ()
    ) -> str:
        """Sends a request, signed if there is a user; returns the remark of the refusal, empty if it was served.
        `names`: of the client's certificate."""
        if user is not None:
            sign(command, user, SECRET)
        remote = Host(address, 4711)
        connection: Any = SimpleNamespace(remote=remote, id=str(remote), certificate_names=names)
        try:
            self.routes[command.code](connection, command)
        except ResponseError as error:
            assert error.code == 1
            prefix = "org.apache.rocketmq.acl.common.AclException: "
            assert error.remark.startswith(prefix)
            return error.remark.removeprefix(prefix)
        return ""


@pytest.fixture
def checked() -> Checked:
    return Checked()


def test_every_code_of_the_broker_has_a_rule() -> None:
    served = CHANGES | QUESTIONS | LOG | HERE | {Code.HEART_BEAT, Code.UNREGISTER_CLIENT}
    served -= {Code.AUDIT_LINES}  # no client can send it
    assert served - BROKER.keys() == set()
    assert (CHECKED_BY_ROCKETMQ | ADMINISTRATION_OF_ROCKETMQ) - BROKER.keys() == set()


def test_nothing_but_envelopes_is_open() -> None:
    open_codes = {code for table in (BROKER, NAME_SERVER) for code, rule in table.items() if rule.is_open}
    assert open_codes == {Code.FORWARDED_REQUEST, Code.CLIENT_LEFT}


@pytest.mark.parametrize("code", sorted(BROKER))
def test_without_a_signature_no_code_is_served(checked: Checked, code: int) -> None:
    refused = checked.send(Command(code, ext={"topic": "orders", "b": "orders"}))
    if BROKER[code].is_open:
        assert refused == ""
    else:
        assert refused == "No accessKey is configured" and checked.served == []
        assert checked.send(Command(code)) == "No accessKey is configured"


@pytest.mark.parametrize("code", sorted({*BROKER, 9999}))
def test_an_administrator_may_send_every_code(checked: Checked, code: int) -> None:
    assert checked.send(Command(code, ext={"topic": "orders"}), "administrator") == ""
    assert checked.served == [code]


def test_a_code_without_a_rule_is_closed(checked: Checked) -> None:
    assert checked.send(Command(9999, ext={"topic": "orders"}), "producer").startswith("Need admin permission")


HEARTBEAT = {
    "clientID": "c",
    "consumerDataSet": [{"groupName": "g", "subscriptionDataSet": [{"topic": "orders"}, {"topic": "%RETRY%g"}]}],
}


@pytest.mark.parametrize(
    ("user", "command", "refused"),
    [
        ("producer", Command(10, ext={"topic": "orders"}), ""),
        ("producer", Command(310, ext={"b": "orders", "topic": "other"}), ""),
        ("producer", Command(310, ext={"b": "other", "topic": "orders"}), "No default permission for topic:other"),
        ("producer", Command(320, ext={"b": "other"}), "No default permission for topic:other"),
        ("producer", Command(10, ext={"topic": "unknown"}), "No default permission for topic:unknown"),
        ("consumer", Command(10, ext={"topic": "orders"}), "No default permission for topic:orders"),
        ("consumer", Command(10, ext={"topic": "%RETRY%g"}), "No default permission for group:g"),
        ("consumer", Command(11, ext={"topic": "orders", "consumerGroup": "g"}), ""),
        ("consumer", Command(361, ext={"topic": "orders", "consumerGroup": "h"}), "No default permission for group:h"),
        ("consumer", Command(11, ext={"topic": "%RETRY%g", "consumerGroup": "g"}), ""),
        ("consumer", Command(11, ext={"topic": "%RETRY%h", "consumerGroup": "g"}), "No default permission for group:h"),
        ("producer", Command(11, ext={"topic": "orders", "consumerGroup": "g"}), "permission for topic:orders"),
        ("consumer", Command(34, body=fastjson.dumps(HEARTBEAT)), ""),
        ("producer", Command(34, body=fastjson.dumps(HEARTBEAT)), "No default permission for group:g"),
        ("producer", Command(34, body=b'{"clientID":"c","producerDataSet":[{"groupName":"p"}]}'), ""),
        ("producer", Command(34, body=b"["), "the body is not JSON"),
        ("producer", Command(34, body=b'{"consumerDataSet":[{"groupName":5}]}'), "the name of a group is not a text"),
        ("consumer", Command(41, body=b'{"consumerGroup":"g","mqSet":[{"topic":"other"}]}'), "topic:other"),
        ("consumer", Command(41, body=b'{"consumerGroup":"g","mqSet":[{"topic":"orders"}]}'), ""),
        ("consumer", Command(33, ext={"offset": "100"}), ""),
        ("consumer", Command(33, ext={"offset": "200"}), "No default permission for topic:other"),
        ("consumer", Command(33, ext={"offset": "300"}), ""),
        ("consumer", Command(33, ext={"offset": "400"}), "Need admin permission for request code=33"),
        ("consumer", Command(33, ext={"offset": "1" * 5000}), "Need admin permission for request code=33"),
        ("producer", Command(37, ext={"commitLogOffset": "100"}), ""),
        ("producer", Command(37, ext={"commitLogOffset": "200"}), "No default permission for topic:other"),
        ("consumer", Command(36, ext={"originTopic": "other", "group": "g", "offset": "100"}), "topic:other"),
        ("consumer", Command(36, ext={"group": "g", "offset": "200"}), "topic:other"),
        ("consumer", Command(36, ext={"group": "g", "offset": "300"}), ""),
        ("producer", Command(30, ext={"topic": "orders"}), ""),
        ("producer", Command(30, ext={"topic": "other"}), "topic:other"),
        ("producer", Command(17, ext={"topic": "orders"}), "request code=17, but accessKey=producer is not"),
        ("producer", Command(25), "Need admin permission for request code=25"),
        ("producer", Command(26), "Need admin permission for request code=26"),
        ("producer", Command(50, ext={"accessKey": "producer"}), "Need admin permission for request code=50"),
        ("unknown1", Command(10, ext={"topic": "orders"}), "No acl config for unknown1"),
    ],
)  # fmt: skip
def test_a_request_needs_its_permissions(checked: Checked, user: str, command: Command, refused: str) -> None:
    answer = checked.send(command, user)
    assert refused in answer if refused else answer == ""
    assert checked.served == ([] if refused else [command.code])


def test_a_wrong_signature_is_refused(checked: Checked) -> None:
    command = Command(10, ext={"topic": "orders"}, body=b"body")
    sign(command, "producer", "another secret")
    assert checked.send(command) == "Check signature failed for accessKey=producer"
    sign(command, "producer", SECRET)
    command.body = b"changed"
    assert checked.send(command) == "Check signature failed for accessKey=producer"
    sign(command, "producer", SECRET)
    assert command.ext is not None
    command.ext["added"] = "later"
    assert checked.send(command) == "Check signature failed for accessKey=producer"
    assert checked.control.denied["wrong_signature"] == 3


def test_addresses_that_are_trusted_need_no_signature(checked: Checked) -> None:
    assert checked.send(Command(25), address="10.9.9.9") == ""
    assert checked.send(Command(25, ext={"AccessKey": "trusted"}), address="10.0.0.7") == ""
    assert checked.send(Command(25, ext={"AccessKey": "trusted"}), address="10.0.0.8") != ""
    assert checked.send(Command(25, ext={"AccessKey": "producer"}), address="10.0.0.7") != ""
    assert checked.send(Command(25), address="10.0.0.7") != ""


def test_a_certificate_names_the_account_of_a_request_without_one(checked: Checked) -> None:
    orders, other = Command(10, ext={"topic": "orders"}), Command(10, ext={"topic": "other"})
    assert checked.send(orders, names=("CN of something", "producer")) == ""
    assert checked.send(other, names=("producer",)) == "No default permission for topic:other"
    assert checked.send(Command(310, ext={"b": "orders"}), names=("nobody",)) == "No accessKey is configured"
    assert checked.send(Command(17, ext={"topic": "orders"}), names=("producer",)).startswith("Need admin permission")
    assert checked.send(Command(17), names=("administrator",)) == ""


def test_a_request_that_names_an_account_needs_its_signature_whatever_the_certificate_says(checked: Checked) -> None:
    orders = {"topic": "orders", "AccessKey": "producer"}
    assert checked.send(Command(10, ext=orders), names=("administrator",)).startswith("Check signature failed")
    assert (
        checked.send(Command(11, ext={"topic": "orders", "consumerGroup": "g"}), "consumer", names=("producer",)) == ""
    )


def test_the_access_log_names_the_account_of_a_certificate(checked: Checked, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    checked.send(Command(17), names=("administrator",))
    checked.send(Command(17, ext={"topic": "orders"}), names=("producer",))
    allowed, denied = (json.loads(record.message) for record in caplog.records)
    assert (allowed["certificate"], allowed["by"]) == (["administrator"], "certificate")
    assert (denied["certificate"], denied["reason"]) == (["producer"], "not_permitted")


def test_refusals_and_administration_are_in_the_access_log(checked: Checked, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tallystick.access")
    checked.send(Command(310, ext={"b": 'other\n"x', "i": "secret property"}, body=b"secret body"), "producer")
    checked.send(Command(17, ext={"topic": "orders"}), "administrator")
    checked.send(Command(310, ext={"b": "orders"}), "producer")
    lines = [json.loads(record.getMessage()) for record in caplog.records]
    assert lines == [
        {
            "result": "denied",
            "reason": "not_permitted",
            "user": "producer",
            "from": "10.0.0.1:4711",
            "code": 310,
            "request": "SEND_MESSAGE_V2",
            "fields": {"b": 'other\n"x'},
            "left_out": 0,
        },
        {
            "result": "allowed",
            "by": "signature",
            "answer": None,
            "user": "administrator",
            "from": "10.0.0.1:4711",
            "code": 17,
            "request": "UPDATE_AND_CREATE_TOPIC",
            "fields": {"topic": "orders"},
            "left_out": 0,
        },
    ]
    assert all("\n" not in record.getMessage() for record in caplog.records)


def test_a_flood_does_not_fill_the_access_log(checked: Checked, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(1000):
        checked.send(Command(310, ext={"b": "orders"}))
    assert len(caplog.records) == 20
    checked.now_s = 3.0
    checked.send(Command(310, ext={"b": "orders"}))
    assert json.loads(caplog.records[-1].getMessage())["left_out"] == 980
    assert checked.control.denied["no_access_key"] == 1001
