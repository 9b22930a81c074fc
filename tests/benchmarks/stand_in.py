"""A broker for the benchmark's tests: a thread a connection, messages in lists, frames decoded by the standard library.

It shares no code with the product or the generator: a frame that both of them understand wrongly is found here.
`python stand_in.py run --dir D --host H --port P ...` answers like `tally run` for what the benchmark's harness needs.
"""

import argparse
import json
import os
import socket
import socketserver
import struct
import threading
import time
from pathlib import Path
from typing import Any

SEND, PULL, CREATE_TOPIC, RUNTIME_INFO, MAX_OFFSET, STATS = 310, 11, 17, 28, 30, 202


def record(queue: int, queue_offset: int, pos: int, body: bytes, topic: str) -> bytes:
    """One stored record with the fields that a puller looks at."""
    name = topic.encode()
    size = 91 + len(body) + len(name)
    head = struct.pack(">iIiiiqqi", size, 0xDAA320A7, 0, queue, 0, queue_offset, pos, 0)
    middle = bytes(84 - len(head)) + struct.pack(">i", len(body)) + body
    return head + middle + struct.pack(">b", len(name)) + name + struct.pack(">h", 0)


class StandIn:
    """Answers sends and pulls; what a test wants to go wrong is an attribute.

    `refuse_each`: every so-many-th send is refused with code 2. `lose_each`: every so-many-th acknowledged one is not
    stored. `stall_s`: it answers nothing for so long, once, at the 4 000th send. `spoil`: changes the body of a pull's
    answer. `received`: the requests as (header, body).
    """

    def __init__(self, port: int = 0) -> None:
        self.queues: dict[tuple[str, int], list[bytes]] = {}
        self.received: list[tuple[dict[str, Any], bytes]] = []
        self.keep_received = True
        self.refuse_each = 0
        self.lose_each = 0
        self.stall_s = 0.0
        self.spoil: Any = None
        self.stored_bytes = 0
        self._sends = 0
        self._lock = threading.Lock()
        stand_in = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                stand_in._serve(self.request)

        class Server(socketserver.ThreadingTCPServer):
            allow_reuse_address = True
            request_queue_size = 256  # all connections of a load at once: a lost SYN is repeated after a second
            daemon_threads = True

        self._server = Server(("127.0.0.1", port), Handler)
        self.port: int = self._server.server_address[1]

    def __enter__(self) -> "StandIn":
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def _serve(self, link: socket.socket) -> None:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream = link.makefile("rb")
        try:
            while head := stream.read(8):
                length, header_length = struct.unpack(">iI", head)
                assert header_length >> 24 == 0, "a JSON header"
                header = json.loads(stream.read(header_length))
                body = stream.read(length - 4 - header_length)
                with self._lock:
                    if self.keep_received:
                        self.received.append((header, body))
                    code, fields, answer = self._answer(header["code"], header.get("extFields", {}), body)
                reply = {"code": code, "extFields": fields, "flag": 1, "language": "PYTHON", "opaque": header["opaque"]}
                if code != 0:
                    reply["remark"] = f'stand-in says "{code}"'
                text = json.dumps(reply).encode()
                link.sendall(struct.pack(">ii", 4 + len(text) + len(answer), len(text)) + text + answer)
        except (ConnectionError, struct.error):
            pass  # the client went away

    def _answer(self, code: int, fields: dict[str, str], body: bytes) -> tuple[int, dict[str, str], bytes]:
        match code:
            case 310:
                return self._send(fields, body)
            case 11:
                return self._pull(fields)
            case 17:
                for queue in range(int(fields["writeQueueNums"])):
                    self.queues.setdefault((fields["topic"], queue), [])
                return 0, {}, b""
            case 28:
                info = {"dispatchBehindBytes": "0", "commitLogMaxOffset": str(self.stored_bytes)}
                return 0, {}, json.dumps({"table": info}).encode()
            case 202:
                ends = [len(messages) for (topic, _), messages in self.queues.items() if topic == fields["topic"]]
                if not ends:
                    return 17, {}, b""
                # As fastjson writes it: objects as keys, no JSON.
                entries = ",".join(
                    f'{{"brokerName":"b","queueId":{queue},"topic":"t"}}:{{"lastUpdateTimestamp":0,"maxOffset":{end},"minOffset":0}}'
                    for queue, end in enumerate(ends)
                )
                return 0, {}, f'{{"offsetTable":{{{entries}}}}}'.encode()
            case _:
                return 3, {}, b""

    def _send(self, fields: dict[str, str], body: bytes) -> tuple[int, dict[str, str], bytes]:
        self._sends += 1
        if self._sends == 4000 and self.stall_s:
            time.sleep(self.stall_s)  # under the lock: all connections wait
        if self.refuse_each and self._sends % self.refuse_each == 0:
            return 2, {}, b""
        queue = self.queues.setdefault((fields["b"], int(fields["e"])), [])
        if not (self.lose_each and self._sends % self.lose_each == 0):
            queue.append(body)
            self.stored_bytes += 91 + len(body)
        return 0, {"msgId": "0" * 32, "queueId": fields["e"], "queueOffset": str(len(queue) - 1)}, b""

    def _pull(self, fields: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
        queue, offset = int(fields["queueId"]), int(fields["queueOffset"])
        messages = self.queues.get((fields["topic"], queue), [])[offset : offset + int(fields["maxMsgNums"])]
        place = {"nextBeginOffset": str(offset + len(messages)), "minOffset": "0", "maxOffset": "0"}
        if not messages:
            return 19, place, b""
        records = b"".join(
            record(queue, offset + index, (offset + index) * 4096, body, fields["topic"])
            for index, body in enumerate(messages)
        )
        return 0, place, self.spoil(records) if self.spoil else records


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("command", choices=["run"])
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--host")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--nameserver-port")
    parser.add_argument("--http-port")
    parser.add_argument("--set", action="append", default=[])
    options = parser.parse_args()
    settings = dict(pair.split("=", 1) for pair in options.set)
    (options.dir / "commitlog").mkdir(parents=True, exist_ok=True)
    with StandIn(options.port) as broker:
        broker.keep_received = False
        broker.lose_each = int(settings.get("loseEach", "0"))
        broker.stall_s = float(settings.get("stallS", "0"))
        print(f"ready, process {os.getpid()}", flush=True)
        while True:
            time.sleep(3600)


if __name__ == "__main__":
    main()
