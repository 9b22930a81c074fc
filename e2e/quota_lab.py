"""`make quota-lab`: RocketMQ's own Java clients at brokers with quotas.

    python e2e/quota_lab.py                     the 4.8.0 client
    python e2e/quota_lab.py --version 5.5.0

Each producer and consumer sends and pulls as fast as it can for some seconds. What it got must be what the quota gives,
and each refusal must have the code on which the client backs off: SYSTEM_BUSY (2) for sends, FLOW_CONTROL (215) for
pulls. A push consumer must receive everything. With a second broker without a quota, a client of 5.x sends what the
first one refuses to the second; a client of 4.8 does not try again after code 2, and its program gets the error.

Exit status: 0 all steps are as they should be, 1 a step is not, 2 the lab could not run.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from lab.peer import SERVER_VERSION, Peer, PeerMissingError
from lab.places import HOST, ROOT, TALLY, free_block, work_folder
from lab.processes import ProcessError, Server, clean_environment, end_on_signals, run

_CLIENT = ROOT / "e2e" / "lab" / "QuotaClient.java"
_RATE, _BURST_S = 20, 2
_SENDING_MS = 6_000


class Lab:
    """A name server, brokers, and a Java client."""

    def __init__(self, work: Path, version: str) -> None:
        self.client = Peer(work / "client", version)
        self._work = work
        self._first = free_block(40)
        self.nameserver = f"{HOST}:{self._first}"
        self._servers: list[Server] = []
        self._serve("nameserver", "--port", str(self._first), "--http-port", "-1")

    def broker(self, number: int, *settings: str) -> None:
        """Starts a broker."""
        port = str(self._first + 3 + 6 * number)
        command = ["--dir", str(self._work / f"broker-{number}"), "--port", port, "--http-port", "-1"]
        command += ["--nameserver", self.nameserver]
        for setting in (f"brokerName=broker-{number}", "defaultTopicQueueNums=4", *settings):
            command += ["--set", setting]
        self._serve("broker", *command)

    def step(self, name: str, topic: str, argument: int) -> dict[str, int]:
        """The counts of one step of the client."""
        command = self.client.client_command(_CLIENT, self.nameserver, name, topic, str(argument))
        _, output = run(command, timeout_s=300, log=self.client.log, cwd=self._work, env=self.client.environment)
        found = re.search(rf"^STEP {name}:(.*)$", output, re.MULTILINE)
        if found is None:
            raise ProcessError(f"the step {name} printed no result: {output[-1000:]}")
        counts = {key: int(value) for key, value in re.findall(r"(\S+)=(\d+)", found[1])}
        print(f"{name}: {found[1].strip()}", flush=True)
        return counts

    def make_topic(self, name: str) -> None:
        """Creates a topic at all brokers."""
        arguments = ("updateTopic", "-n", self.nameserver, "-c", "DefaultCluster", "-t", name)
        status, output = self.client.call("mqadmin", *arguments)
        if status or "create topic to" not in output:
            raise ProcessError(f"{name} was not created: {output[-1000:]}")

    def stop(self) -> None:
        """Ends all processes."""
        for server in reversed(self._servers):
            server.stop()

    def _serve(self, what: str, *arguments: str) -> None:
        log = self._work / f"{what}-{len(self._servers)}.log"
        server = Server([str(TALLY), what, "--host", HOST, *arguments], log, clean_environment())
        self._servers.append(server)
        server.wait_for("tally is ready", 60)


def measure(work: Path, version: str) -> list[str]:
    """What is wrong."""
    lab, wrong = Lab(work, version), []

    def check(condition: bool, what: str) -> None:
        if not condition:
            wrong.append(what)

    try:
        lab.broker(0, f"clientMessagesPerSecond={_RATE}", f"quotaBurstSeconds={_BURST_S}")
        sent = lab.step("produce-limited", "Limited", _SENDING_MS)
        most = _RATE * (_BURST_S + sent["ms"] / 1000) + 1
        check(_RATE * _BURST_S <= sent["sent"] <= most, f"a producer sent {sent['sent']}, not about {most:.0f}")
        codes = sent.keys() - {"sent", "ms"}
        check(codes <= {"code-2"}, f"a producer got {codes}")
        # 4.8 does not try again after code 2; 5.x does, at brokers that answer late, and mostly succeeds.
        check(version.startswith("5.") or "code-2" in codes, "a producer of 4.8 was not refused")
        received = lab.step("consume-limited", "Limited", sent["sent"])
        check(received["received"] == sent["sent"], f"a consumer received {received['received']} of {sent['sent']}")
        pulled = lab.step("pull-limited", "Limited", 2 * _SENDING_MS)
        most = _RATE * (_BURST_S + pulled["ms"] / 1000) + 8
        check(0 < pulled.get("pulled", 0) <= most, f"a pull consumer pulled {pulled}, at most {most:.0f}")
        codes = pulled.keys() - {"pulled", "ms"}
        check(codes <= {"code-215"}, f"a pull consumer got {codes}")
        lab.broker(1)
        lab.make_topic("Both")
        sent = lab.step("produce-both", "Both", _SENDING_MS)
        most = _RATE * (_BURST_S + sent["ms"] / 1000) + 1
        if version.startswith("5."):
            check(sent.keys() <= {"sent", "ms"} and sent["sent"] > most, f"5.x did not use the other broker: {sent}")
        else:
            check(sent.get("code-2", 0) > 0, f"4.8 was not refused by one of two brokers: {sent}")
    finally:
        lab.stop()
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", default=SERVER_VERSION, help="version of the client")
    options = parser.parse_args()
    end_on_signals()
    with work_folder("quota-") as work:
        try:
            wrong = measure(work.path, options.version)
            work.status = 1 if wrong else 0
            print("\n".join(f"WRONG: {each}" for each in wrong) or "all steps are as they should be")
        except (PeerMissingError, ProcessError) as error:
            print(f"cannot run: {error}", file=sys.stderr)
    return work.status


if __name__ == "__main__":
    sys.exit(main())
