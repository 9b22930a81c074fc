"""`make mqadmin`: runs RocketMQ's own admin tool against our broker, command by command.

    python e2e/mqadmin.py                      every command of the 4.8.0 tool
    python e2e/mqadmin.py --version 5.5.0      every command of the 5.5.0 tool
    python e2e/mqadmin.py --compare            and the same commands against real RocketMQ of the tool's version
    python e2e/mqadmin.py --only clusterList,topicStatus
    python e2e/mqadmin.py --compare --write docs/mqadmin-4.8.0.md

A command passes when its output shows what it should and no exception: the tool ends with status 0 even when it has
failed. A command for something that tallystick does not have passes when the broker refuses it at once. A command that
the tool offers and that is not tried is a failure.

Exit status: 0 all commands passed, 1 a command failed (with --compare: one that passes against RocketMQ), 2 the test
could not run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from lab.admin_tool import AdminTool
from lab.mqadmin_checks import (
    CLUSTER,
    GROUP,
    IDLE_GROUP,
    OTHER_GROUP,
    OTHER_TOPIC,
    TOPIC,
    Check,
    checks_of,
    without_line,
)
from lab.peer import SERVER_VERSION, Peer, PeerMissingError
from lab.places import PEER, work_folder
from lab.processes import ProcessError, end_on_signals
from lab.tally import Tally

from tallystick.node.core.client import ClusterClient, QueueAddress

_FAILED = re.compile(r"^.*(?:Exception|CODE: \d+|not exist).*$", re.MULTILINE)
# The tool of 5.5 replaces some refusals with other words.
_REFUSED = re.compile(
    r"^.*(?:CODE: 3 |not supported|\] error\.|\serror\s*$|Mapping info should not be null).*$", re.MULTILINE
)
_OFFERED = re.compile(r"^ {2,}(\w+) {2,}\S", re.MULTILINE)
_TRACES = "traceTopicEnable=true"
_CONSUMER_S = 180.0
OK, REFUSED, FAILED = "ok", "refused", "FAILED"


class Target:
    """One broker: its addresses, the result of each command, and what was kept from the outputs."""

    def __init__(self, name: str, nameserver: str, broker: str, peer: Peer, *, is_ours: bool) -> None:
        self.name, self.nameserver, self._peer, self._is_ours = name, nameserver, peer, is_ours
        self._broker = broker
        self._tool = AdminTool(peer)
        self.results: dict[str, str] = {}
        self.reasons: dict[str, str] = {}
        self._values = {
            "broker": broker,
            "nameserver": nameserver,
            "cluster": CLUSTER,
            "topic": TOPIC,
            "other_topic": OTHER_TOPIC,
            "group": GROUP,
            "other_group": OTHER_GROUP,
            "idle_group": IDLE_GROUP,
            **_files(peer.work),
        }

    def offered(self) -> list[str]:
        """The commands of the tool. ProcessError: it lists none."""
        found: list[str] = _OFFERED.findall(self._tool(""))
        if not found:
            raise ProcessError("the tool lists no commands")
        return found

    def run(self, checks: tuple[Check, ...], only: frozenset[str]) -> None:
        """All commands, with a producer's messages and one consumer online from the first question about groups on."""
        needed = frozenset(check.title for check in checks if "{group}" in check.line or check.title == "statsAll")
        try:
            with consumer(self._peer, self.nameserver, self._broker) if not only or only & needed else _nobody():
                for check in checks:
                    if not only or check.title in only or check.line.split()[0] in _MAKE:
                        self._check(check)
        finally:
            self._tool.close()

    def _check(self, check: Check) -> None:
        try:
            arguments = check.line.format_map(self._values).split()
        except KeyError as missing:
            self._note(check, FAILED, f"not tried: an earlier command did not give {missing}")
            return
        if "-n" not in arguments:
            arguments += ["-n", self.nameserver]
        output = self._tool(*arguments, timeout_s=check.seconds or 240)
        refusal, complaint = _REFUSED.search(output), _FAILED.search(output)
        found = re.search(_filled(check.shows, self._values), output)
        if check.lacks and self._is_ours:
            if refusal is not None:
                self._note(check, REFUSED, check.lacks)
            else:
                self._note(check, FAILED, f"is not refused: {output.strip()[:400]!r}")
        elif complaint is not None:
            self._note(check, FAILED, complaint[0].strip()[:400])
        elif found is None:
            self._note(check, FAILED, f"does not show {check.shows!r}: {output.strip()[:400]!r}")
        else:
            self._values |= {name: value for name, value in found.groupdict().items() if value}
            self._note(check, OK)

    def _note(self, check: Check, result: str, reason: str = "") -> None:
        self.results[check.title] = result
        if reason:
            self.reasons[check.title] = reason
        print(f"{self.name:15} {check.title:24} {result} {reason}".rstrip(), file=sys.stderr, flush=True)


# Others build on these.
_MAKE = frozenset({"updateTopic", "sendMessage", "sendTraced", "queryMsgByKey", "queryMsgByOffset"})


def _files(folder: Path) -> dict[str, str]:
    """Files that some commands read, and a folder that some write to."""
    topics, groups = folder / "topics.json", folder / "groups.json"
    queues = {"readQueueNums": 2, "writeQueueNums": 2, "perm": 6}
    topics.write_text(json.dumps([{"topicName": f"AdminList{number}", **queues} for number in range(2)]))
    groups.write_text(json.dumps([{"groupName": f"admin-list-{number}"} for number in range(2)]))
    return {"topics_file": str(topics), "groups_file": str(groups), "folder": str(folder / "export")}


def _filled(pattern: str, values: Mapping[str, str]) -> str:
    """Only our own names are filled in: a pattern's other braces are its own."""
    for name, value in values.items():
        pattern = pattern.replace(f"{{{name}}}", re.escape(value))
    return pattern


@contextmanager
def _nobody() -> Iterator[None]:
    yield


@contextmanager
def consumer(tool: Peer, nameserver: str, broker: str) -> Iterator[None]:
    """A push consumer of the topic, online inside the `with`. ProcessError: it has consumed nothing in time."""
    sends = ("probe", "produce", "--topic", TOPIC, "--count", "40", "--key", "k%d", "-n", nameserver)
    if all(tool.call(*sends)[0] != 0 for _ in range(12)):  # on a busy machine requests time out
        raise ProcessError(f"cannot produce to {nameserver}, see {tool.log}")
    command = [str(PEER / "peer.sh"), "probe", "consume-push", "--topic", TOPIC, "--group", GROUP, "-n", nameserver]
    command += ["--timeout", "3600", "--expect", "1000000", "--quiet"]
    with tool.log.open("a") as log:
        process = subprocess.Popen(
            command, env=tool.environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
        )
    try:
        asyncio.run(_has_consumed(broker))
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # the group that start_new_session made: the script and its Java
        process.wait()


async def _has_consumed(broker: str) -> None:
    """Returns when the group has committed an offset: from then on it is online, and in all statistics."""
    end_s = time.monotonic() + _CONSUMER_S
    async with ClusterClient("", timeout_s=30) as client:
        while time.monotonic() < end_s:
            for queue_id in range(4):
                if (await client.committed(QueueAddress(TOPIC, "", broker, queue_id), GROUP) or 0) > 0:
                    return
            await asyncio.sleep(0.5)
    raise ProcessError(f"the consumer has committed nothing at {broker} after {_CONSUMER_S:.0f} s")


def table(targets: list[Target]) -> str:
    """Commands and results, one line each; the reasons below."""
    titles = list(targets[0].results)
    width = max(map(len, titles), default=0)
    lines = [f"{'command':{width}}  " + "  ".join(f"{target.name:15}" for target in targets).rstrip()]
    for title in titles:
        cells = (f"{target.results.get(title, 'not run'):15}" for target in targets)
        lines.append(f"{title:{width}}  " + "  ".join(cells).rstrip())
    for target in targets:
        lines += [f"{target.name}, {title}: {reason}" for title, reason in target.reasons.items()]
    return "\n".join(lines)


def page(version: str, targets: list[Target], checks: tuple[Check, ...]) -> str:
    """The document with the results."""
    ours, theirs = targets
    lines = [
        f"# mqadmin {version}",
        "",
        f"`make mqadmin PEER_VERSION={version} COMPARE=1 WRITE=docs/mqadmin-{version}.md` made this page. It ran each",
        "command of the tool against `tally run` and against real RocketMQ of the same version. A consumer was online.",
        "",
        "- ok: the output shows what it should, and no error;",
        "- refused: tallystick does not have what the command is for, and says so at once;",
        "- fails: an error, which the note contains for RocketMQ.",
        "",
        f"| command line | tallystick | RocketMQ {version} | note |",
        "| --- | --- | --- | --- |",
    ]
    for check in (check for check in checks if check.title in ours.results):
        mine, other = (target.results.get(check.title, "not run") for target in targets)
        if mine == REFUSED:
            note = f"tallystick does not have {check.lacks}"
        elif mine == FAILED:
            note = ours.reasons[check.title]
        else:
            note = f"RocketMQ: {theirs.reasons[check.title]}" if other == FAILED else ""
        words = {OK: "ok", REFUSED: "refused", FAILED: "fails"}
        cells = (f"`{check.line}`", words.get(mine, mine), words.get(other, other), _cell(note))
        lines.append(f"| {' | '.join(cells)} |".replace("|  |", "| |"))
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    """A text without what differs from run to run, or has a meaning in a table."""
    text = re.sub(r"\d+\.\d+\.\d+\.\d+:\d+", "HOST:PORT", text)
    return re.sub(r"/\S*/(?=\w)", "", text).replace("|", "\\|").replace("\n", " ")[:160].strip()


def measure(options: argparse.Namespace, work: Path) -> int:
    """Ours, and then theirs."""
    only = frozenset(filter(None, options.only.split(",")))
    version: str = options.version
    checks = checks_of(version)
    tally = Tally(work / "tally", (f"brokerClusterName={CLUSTER}", "brokerName=broker-a", _TRACES))
    tool = Peer(work / "tool", version)
    targets = [Target("tallystick", tally.nameserver, tally.broker, tool, is_ours=True)]
    missing = without_line(version, targets[0].offered())
    try:
        tally.start()
        targets[0].run(checks, only)
    finally:
        tally.stop()
    if options.compare:
        server = Peer(work / "server", version)
        try:
            server.up((_TRACES, "waitTimeMillsInSendQueue=30000"), version=version)
            targets.append(Target(f"RocketMQ {version}", server.nameserver, server.broker, tool, is_ours=False))
            targets[1].run(checks, only)
        finally:
            server.down()
    print(table(targets))
    if options.write:
        options.write.write_text(page(version, targets, checks))
    failed = {title for title, result in targets[0].results.items() if result == FAILED}
    if options.compare:
        failed = {title for title in failed if targets[1].results.get(title) == OK}
    if missing:
        print(f"NOT TRIED: {', '.join(missing)}")
    print(f"FAILED: {', '.join(sorted(failed))}" if failed else "no command failed only here")
    return 1 if failed or missing else 0


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", default=os.environ.get("PEER_VERSION") or SERVER_VERSION, help="of the tool")
    parser.add_argument("--compare", action="store_true", help="against RocketMQ of this version as well")
    parser.add_argument("--only", default="", help="names of commands, separated by commas")
    parser.add_argument("--write", type=Path, help="with --compare: the document to write")
    options = parser.parse_args(arguments)
    if options.write and (not options.compare or options.only):
        parser.error("--write: only with --compare and without --only")
    end_on_signals()
    with work_folder("mqadmin-") as work:
        try:
            work.status = measure(options, work.path)
        except (PeerMissingError, ProcessError) as error:
            print(f"could not be tried: {error}", file=sys.stderr)
    return work.status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
