"""Compares the decisions of access control with those of RocketMQ 4.8.0, on the same `plain_acl.yml`.

    python e2e/acl_decisions.py [--rounds 20] [--requests 60] [--seed 1]

Each round gives both brokers the same account file, and sends the same signed requests to both, from different
addresses of loopback. Of the requests that RocketMQ checks, the decisions must be equal. Other requests may be refused
here, and must not be allowed where RocketMQ refuses them. A message that is sent back belongs to them: here it needs
`SUB` on the topic of the message, because the request names the message by its position.

Exit status: 0 as expected, 1 not, 2 the comparison cannot run.
"""

from __future__ import annotations

import argparse
import collections
import socket
import sys
import time
from pathlib import Path
from typing import NamedTuple

from lab.acl_cases import Request, make_round
from lab.peer import Peer, PeerMissingError
from lab.places import HOST, work_folder
from lab.processes import ProcessError, end_on_signals
from lab.tally import Tally

from tallystick.node.access.request_table import ADMINISTRATION_OF_ROCKETMQ, CHECKED_BY_ROCKETMQ
from tallystick.node.access.signatures import sign
from tallystick.node.remoting.codec import decode, encode
from tallystick.node.remoting.codes import RequestCode
from tallystick.node.remoting.command import Command

_EXACT = (CHECKED_BY_ROCKETMQ | ADMINISTRATION_OF_ROCKETMQ) - {RequestCode.CONSUMER_SEND_MSG_BACK}
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
        return Answer(_REFUSED in text, f"{answer.code} {text}")

    def message(self) -> int:
        """The position of a message of the topic Orders."""
        if self._offset is None:
            fields = {"a": "g", "b": "Orders", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0"}
            command = Command(RequestCode.SEND_MESSAGE_V2, ext=fields | {"i": "", "j": "0"}, body=b"body")
            sign(command, "administrator", "12345678")
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20, help="account files")
    parser.add_argument("--requests", type=int, default=60, help="requests for each account file")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    end_on_signals()
    try:
        with work_folder("acl-decisions-") as work:
            work.status = _compare(work.path, options.seed, options.rounds, options.requests)
            return work.status
    except (PeerMissingError, ProcessError) as error:
        print(error, file=sys.stderr)
        return 2


def _compare(work: Path, seed: int, rounds: int, count: int) -> int:
    peer = Peer(work / "peer")
    theirs_file = peer.work / "home" / "conf" / "plain_acl.yml"
    ours_file = work / "plain_acl.yml"
    theirs_file.parent.mkdir(parents=True)
    for file in (theirs_file, ours_file):
        file.write_text(_FIRST)
    (work / "tools.yml").write_text(_TOOLS)
    acl = ("aclEnable=true", f"aclFile={ours_file}", f"aclCredentialsFile={work / 'tools.yml'}")
    tally = Tally(work / "tally", acl)
    tally.folder.mkdir()
    try:
        tally.start()
        peer.up(["aclEnable=true"])
        sides = [Side("tallystick", tally.port, ours_file), Side("RocketMQ 4.8.0", peer.port, theirs_file)]
        return _run(sides, seed, rounds, count)
    finally:
        peer.down(kill=True)
        tally.kill()


def _run(sides: list[Side], seed: int, rounds: int, count: int) -> int:
    seen: collections.Counter[str] = collections.Counter()
    wrong = 0
    for number in range(rounds):
        # Both brokers get the same requests; the position of the message differs.
        made = [make_round(seed, number, count, side.message) for side in sides]
        for side, its in zip(sides, made, strict=True):
            side.use(its.content, its.sentinel)
        for ours_request, theirs_request in zip(made[0].requests, made[1].requests, strict=True):
            ours, theirs = sides[0].ask(ours_request), sides[1].ask(theirs_request)
            is_exact = ours_request.command.code in _EXACT
            rule = "must be equal" if is_exact else "may be stricter"
            seen[f"{rule}: RocketMQ {_word(theirs)}, tallystick {_word(ours)}"] += 1
            if ours.is_refused != theirs.is_refused and (is_exact or theirs.is_refused):
                wrong += 1
                print(
                    f"WRONG round {number}: {ours_request.name}\n  RocketMQ:   {theirs.text}\n  tallystick: {ours.text}"
                )
    for text, times in sorted(seen.items()):
        print(f"{times:6} {text}")
    print(f"{seen.total()} requests, {rounds} account files, seed {seed}: {wrong} decisions differ")
    return 1 if wrong else 0


def _word(answer: Answer) -> str:
    return "refuses" if answer.is_refused else "allows"


if __name__ == "__main__":
    sys.exit(main())
