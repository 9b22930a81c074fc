"""Compares the decisions of access control with those of RocketMQ.

    python e2e/acl_decisions.py [--rounds 20] [--requests 60] [--seed 1]     account files, with RocketMQ 4.8.0
    python e2e/acl_decisions.py --policies                                   users and policies, with RocketMQ 5.5.0

Each round gives both brokers the same account file, or creates the same users and policies with the requests of the
admin tool. Then it sends the same signed requests to both, from different addresses of loopback. The decisions must be
equal on the requests that `exact` names. Others may be refused here, and must not be allowed where RocketMQ refuses
them: RocketMQ does not check them. To send a message back needs permission for its topic here, because the request
names the message by its position.

Exit status: 0 as expected, 1 not, 2 the comparison cannot run.
"""

from __future__ import annotations

import argparse
import collections
import json
import socket
import sys
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import NamedTuple

from lab.acl_cases import Request, make_policy_round, make_round
from lab.peer import Peer, PeerMissingError
from lab.places import HOST, work_folder
from lab.processes import ProcessError, end_on_signals
from lab.tally import Tally

from tallystick.node.access.request_table import ADMINISTRATION_OF_ROCKETMQ, CHECKED_BY_ROCKETMQ
from tallystick.node.access.signatures import sign
from tallystick.node.remoting.codec import decode, encode
from tallystick.node.remoting.codes import RequestCode, ResponseCode
from tallystick.node.remoting.command import Command

_ADMINISTRATOR = ("administrator", "12345678")
_REFUSED = "AclException"
_FILE_S = 60.0
_TOOLS = 'accessKey: administrator\nsecretKey: "12345678"\n'
_FIRST = "accounts:\n- {accessKey: administrator, secretKey: '12345678', admin: true}\n"


class Answer(NamedTuple):
    """What a broker answered."""

    is_refused: bool
    text: str


class Side:
    """One broker: its account file, and its connections, one for each source address."""

    def __init__(self, name: str, port: int, file: Path) -> None:
        self.name, self._port, self._file = name, port, file
        self._sockets: dict[str, socket.socket] = {}
        self._offset: int | None = None

    def use(self, content: str, sentinel: Request) -> None:
        """Replaces the account file, and waits until the broker uses it. ProcessError: it does not."""
        temporary = self._file.with_suffix(".new")
        temporary.write_text(content)
        temporary.replace(self._file)
        deadline_s = time.monotonic() + _FILE_S
        while (answer := self.ask(sentinel)).is_refused:
            if time.monotonic() > deadline_s:
                raise ProcessError(f"{self.name} does not use the account file {self._file}: {answer.text}")
            time.sleep(0.1)

    def ask(self, request: Request) -> Answer:
        """The answer to a request, from its source address."""
        answer = self._call(request.source, request.command)
        text = answer.remark or ""
        is_refused = _REFUSED in text or answer.code == ResponseCode.NO_PERMISSION
        return Answer(is_refused, f"{answer.code} {text}")

    def carry_out(self, command: Command) -> None:
        """Sends a request of the administrator. ProcessError: it is refused."""
        answer = self._call(HOST, command)
        if answer.code != 0:
            raise ProcessError(f"{self.name} refused {command.code} {command.ext}: {answer.code} {answer.remark}")

    def message(self) -> int:
        """The position of a message of the topic Orders."""
        if self._offset is None:
            fields = {"a": "g", "b": "Orders", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0"}
            command = Command(RequestCode.SEND_MESSAGE_V2, ext=fields | {"i": "", "j": "0"}, body=b"body")
            sign(command, *_ADMINISTRATOR)
            answer = self._call(HOST, command)
            if answer.code != 0 or answer.ext is None:
                raise ProcessError(f"{self.name} stored no message: {answer.code} {answer.remark}")
            self._offset = int(answer.ext["msgId"][-16:], 16)
        return self._offset

    def _call(self, source: str, command: Command) -> Command:
        connection = self._sockets.get(source)
        if connection is None:
            connection = socket.create_connection((HOST, self._port), 10, source_address=(source, 0))
            connection.settimeout(20)
            self._sockets[source] = connection
        connection.sendall(encode(command))
        while True:
            answer = _receive(connection)
            if answer.is_response and answer.opaque == command.opaque:
                return answer


def _receive(connection: socket.socket) -> Command:
    size = int.from_bytes(_exactly(connection, 4), "big")
    frame = _exactly(connection, size)
    mark = int.from_bytes(frame[:4], "big")
    end = 4 + (mark & 0xFFFFFF)
    return decode(mark >> 24, frame[4:end], frame[end:])


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            raise ProcessError("the broker closed the connection")
        data += piece
    return data


class Comparison(ABC):
    """One kind of rules: how both brokers are started, and how they get the rules of a round."""

    exact: frozenset[int]
    """Requests on which the decisions must be equal."""

    def __init__(self, work: Path, version: str, settings: list[str]) -> None:
        self.peer = Peer(work / "peer", version)
        self._version, self._settings = version, settings
        accounts, tools = work / "plain_acl.yml", work / "tools.yml"
        accounts.write_text(_FIRST)
        tools.write_text(_TOOLS)
        self.tally = Tally(work / "tally", ["aclEnable=true", f"aclFile={accounts}", f"aclCredentialsFile={tools}"])
        self.tally.folder.mkdir()
        self.theirs_file = self.peer.work / "home" / "conf" / "plain_acl.yml"
        self.sides = [
            Side("tallystick", self.tally.port, accounts),
            Side(f"RocketMQ {version}", self.peer.port, self.theirs_file),
        ]

    def start(self) -> None:
        """Starts both brokers."""
        self.tally.start()
        self.peer.up(self._settings, version=self._version)

    def stop(self) -> None:
        """Kills both."""
        self.peer.down(kill=True)
        self.tally.kill()

    @abstractmethod
    def prepare(self, side: Side, seed: int, number: int, count: int) -> list[Request]:
        """Gives one broker the rules of a round, and returns the round's requests."""


class AccountFiles(Comparison):
    """`plain_acl.yml` of RocketMQ 4.8.0."""

    exact = (CHECKED_BY_ROCKETMQ | ADMINISTRATION_OF_ROCKETMQ) - {RequestCode.CONSUMER_SEND_MSG_BACK}

    def __init__(self, work: Path) -> None:
        super().__init__(work, "4.8.0", ["aclEnable=true"])
        self.theirs_file.parent.mkdir(parents=True)
        self.theirs_file.write_text(_FIRST)

    def prepare(self, side: Side, seed: int, number: int, count: int) -> list[Request]:
        made = make_round(seed, number, count, side.message)
        side.use(made.content, made.sentinel)
        return made.requests


class Policies(Comparison):
    """Users and policies of RocketMQ 5.5.0."""

    exact = frozenset(
        {
            RequestCode.SEND_MESSAGE,
            RequestCode.SEND_MESSAGE_V2,
            RequestCode.PULL_MESSAGE,
            RequestCode.QUERY_MESSAGE,
            RequestCode.HEART_BEAT,
            RequestCode.UNREGISTER_CLIENT,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP,
            RequestCode.QUERY_CONSUMER_OFFSET,
            RequestCode.UPDATE_CONSUMER_OFFSET,
            RequestCode.GET_MAX_OFFSET,
            RequestCode.UPDATE_AND_CREATE_TOPIC,
            RequestCode.DELETE_TOPIC_IN_BROKER,
            RequestCode.DELETE_SUBSCRIPTIONGROUP,
        }
    )

    def __init__(self, work: Path) -> None:
        key, secret = _ADMINISTRATOR
        providers = {
            "authenticationProvider": "authentication.provider.DefaultAuthenticationProvider",
            "authorizationProvider": "authorization.provider.DefaultAuthorizationProvider",
            "authenticationMetadataProvider": "authentication.provider.LocalAuthenticationMetadataProvider",
            "authorizationMetadataProvider": "authorization.provider.LocalAuthorizationMetadataProvider",
        }
        settings = [f"{name}=org.apache.rocketmq.auth.{value}" for name, value in providers.items()]
        settings += ["authenticationEnabled=true", "authorizationEnabled=true"]
        settings.append("initAuthenticationUser=" + json.dumps({"username": key, "password": secret}))
        credentials = json.dumps({"accessKey": key, "secretKey": secret})
        super().__init__(work, "5.5.0", [*settings, f"innerClientAuthenticationCredentials={credentials}"])

    def prepare(self, side: Side, seed: int, number: int, count: int) -> list[Request]:
        made = make_policy_round(seed, number, count, side.message, _ADMINISTRATOR)
        for command in made.commands:
            side.carry_out(command)
        return made.requests


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policies", action="store_true", help="users and policies of RocketMQ 5.5.0")
    parser.add_argument("--rounds", type=int, default=20, help="account files, or sets of users")
    parser.add_argument("--requests", type=int, default=60, help="requests of each round")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    end_on_signals()
    try:
        with work_folder("acl-decisions-") as work:
            comparison = (Policies if options.policies else AccountFiles)(work.path)
            try:
                comparison.start()
                work.status = _run(comparison, options.seed, options.rounds, options.requests)
            finally:
                comparison.stop()
            return work.status
    except (PeerMissingError, ProcessError) as error:
        print(error, file=sys.stderr)
        return 2


def _run(comparison: Comparison, seed: int, rounds: int, count: int) -> int:
    seen: collections.Counter[str] = collections.Counter()
    wrong = 0
    for number in range(rounds):
        # Both brokers get the same requests; the position of the message differs.
        both = [comparison.prepare(side, seed, number, count) for side in comparison.sides]
        for requests in zip(*both, strict=True):
            ours, theirs = (side.ask(request) for side, request in zip(comparison.sides, requests, strict=True))
            is_exact = requests[0].command.code in comparison.exact
            rule = "must be equal" if is_exact else "may be stricter"
            seen[f"{rule}: RocketMQ {_word(theirs)}, tallystick {_word(ours)}"] += 1
            if ours.is_refused != theirs.is_refused and (is_exact or theirs.is_refused):
                wrong += 1
                print(f"WRONG round {number}: {requests[0].name}")
                print(f"  RocketMQ:   {theirs.text}\n  tallystick: {ours.text}")
    for text, times in sorted(seen.items()):
        print(f"{times:6} {text}")
    print(f"{seen.total()} requests, {rounds} rounds, seed {seed}: {wrong} decisions differ")
    return 1 if wrong else 0


def _word(answer: Answer) -> str:
    return "refuses" if answer.is_refused else "allows"


if __name__ == "__main__":
    sys.exit(main())
