"""`make mqadmin`: runs RocketMQ's own admin tool against our broker, command by command.

    python e2e/mqadmin.py                      every command that an operator needs, about two minutes
    python e2e/mqadmin.py --compare            and the same commands against real RocketMQ 4.8.0
    python e2e/mqadmin.py --only clusterList,topicStatus

A command passes if its output contains the expected text and no exception: the tool of 4.8 ends with status 0 even
after a failure. Each run ends with a list of the commands that it leaves out, and the reasons.

Exit status: 0 all commands passed, 1 a command failed (with --compare: one that passes against RocketMQ), 2 the test
could not run.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lab.peer import SERVER_VERSION, Peer, PeerMissingError
from lab.places import PEER, work_folder
from lab.processes import ProcessError, end_on_signals
from lab.tally import Tally

CLUSTER, BROKER_NAME = "PeerCluster", "broker-a"
TOPIC, OTHER_TOPIC = "AdminSmoke", "AdminSmokeOther"
GROUP, OTHER_GROUP, IDLE_GROUP = "admin-online", "admin-made", "admin-idle"

_FAILED = re.compile(r"^.*(?:Exception|CODE: \d+|not exist).*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Check:
    """A command line, what its output must show (a regular expression), and values to keep from its named groups."""

    line: str
    shows: str = ""
    name: str = ""

    @property
    def title(self) -> str:
        return self.name or self.line.split()[0]


# {broker}, {nameserver} and what earlier outputs gave ({key_id}, {offset_id}, ...) are filled in. The order matters.
CHECKS = (
    Check("updateTopic -b {broker} -t {topic} -r 4 -w 4", r"create topic to .* success"),
    Check("updateTopic -c {cluster} -t {other_topic} -r 2 -w 2", r"create topic to .* success", "updateTopic -c"),
    Check("updateTopicPerm -c {cluster} -t {other_topic} -p 4", r"update topic perm from 6 to 4"),
    Check("clusterList", r"{cluster}\s+broker-a\s+0\s+127\.0\.0\.1:\d+\s+V4_8_0"),
    Check("clusterList -m", r"{cluster}\s+broker-a\s+\d+", "clusterList -m"),
    Check("topicList", r"(?m)^{topic}$"),
    Check("topicList -c", r"{cluster}\s+{topic}", "topicList -c"),
    Check("topicRoute -t {topic}", r'"brokerName":\s*"broker-a"'),
    Check("topicStatus -t {topic}", r"broker-a\s+3\s+0\s+\d+"),
    Check("topicClusterList -t {topic}", r"(?m)^{cluster}$"),
    Check("allocateMQ -t {topic} -i 10.0.0.1,10.0.0.2", r"10\.0\.0\.2"),
    Check("updateOrderConf -t {topic} -m put -v broker-a:4", r"success", "updateOrderConf put"),
    Check("updateOrderConf -t {topic} -m get", r"broker-a:4", "updateOrderConf get"),
    Check("updateOrderConf -t {topic} -m delete", r"success", "updateOrderConf delete"),
    Check("sendMessage -t {topic} -p hello -k key-1 -c TagA", r"broker-a\s+(?P<queue>\d+)\s+SEND_OK\s+(?P<key_id>\w+)"),
    Check("sendMsgStatus -b broker-a -s 100 -c 3", r"SEND_OK"),
    Check("checkMsgSendRT -t {topic} -a 5 -s 100", r"broker-a.*true"),
    Check("queryMsgByKey -t {topic} -k key-1", r"{key_id}\s+{queue}\s+(?P<offset>\d+)"),
    Check("queryMsgByOffset -t {topic} -b broker-a -i {queue} -o {offset}", r"OffsetID:\s+(?P<offset_id>\w+)"),
    Check("queryMsgByUniqueKey -t {topic} -i {key_id}", r"(?s)Topic:\s+{topic}.*Keys:\s+\[key-1\]"),
    Check("queryMsgById -i {offset_id}", r"(?s)Topic:\s+{topic}.*Keys:\s+\[key-1\]"),
    Check("queryCq -t {topic} -q {queue} -i 0 -c 5 -b {broker}", r"(?s)max: \d+, min: 0"),
    Check("printMsg -t {topic}", r"key-1"),
    Check("printMsgByQueue -t {topic} -a broker-a -i {queue} -p true -d true", r"hello"),
    Check("consumeMessage -t {topic} -g {idle_group}", r"Consume ok"),
    Check("updateSubGroup -b {broker} -g {other_group}", r"create subscription group to .* success"),
    Check("updateSubGroup -c {cluster} -g {other_group} -r 3", r"create .* to .* success", "updateSubGroup -c"),
    Check("consumerProgress", r"{group}\s+1\s+V4_8_0"),
    Check("consumerProgress -g {group}", r"(?s){topic}\s+broker-a\s+{queue}.*Diff Total: \d+", "consumerProgress -g"),
    Check("consumerProgress -g {group} -s true", r"(?s){topic}.*Diff Total", "consumerProgress -s"),
    Check("consumerConnection -g {group}", r"(?s)001 .*JAVA\s+V4_8_0.*CLUSTERING"),
    Check("consumerStatus -g {group}", r"(?s)001.*V4_8_0"),
    Check("brokerConsumeStats -b {broker}", r"(?s){topic}\s+{group}.*Diff Total"),
    Check("statsAll -t {topic}", r"{topic}\s+{group}"),
    Check("cloneGroupOffset -s {group} -d {other_group} -t {topic}", r"clone group offset success"),
    Check("resetOffsetByTime -g {group} -t {topic} -s now", r"broker-a\s+\d"),
    Check("brokerStatus -b {broker}", r"commitLogMaxOffset\s+: \d+"),
    Check("brokerStatus -c {cluster}", r"putTps\s+: ", "brokerStatus -c"),
    Check("getBrokerConfig -b {broker}", r"brokerName\s+=\s+broker-a"),
    Check("getBrokerConfig -c {cluster}", r"flushDiskType\s+=", "getBrokerConfig -c"),
    Check("updateBrokerConfig -b {broker} -k longPollingEnable -v true", r"update broker config success"),
    Check("cleanExpiredCQ -b {broker}", r"success"),
    Check("cleanUnusedTopic -b {broker}", r"success"),
    Check("getNamesrvConfig -n {nameserver}", r"listenPort\s+=\s+\d+"),
    Check("updateNamesrvConfig -n {nameserver} -k orderMessageEnable -v false", r"(?i)success"),
    Check("updateKvConfig -s admin -k one -v 1", r"create or update kv config to namespace success"),
    Check("deleteKvConfig -s admin -k one", r"delete kv config from namespace success"),
    Check("deleteSubGroup -b {broker} -g {other_group}", r"delete subscription group .* success"),
    Check("deleteTopic -c {cluster} -t {other_topic}", r"delete topic \[{other_topic}\] from NameServer success"),
    Check("wipeWritePerm -b broker-a", r"wipe write perm of broker\[broker-a\] in name server\[.*\] OK"),
)

NOT_HERE = {
    "consumer, getConsumerStatus, resetOffsetByTimeOld, DecodeMessageId": "4.8's tool has no command with this name",
    "clusterRT, startMonitoring": "run until they are stopped",
    "updateAclConfig and the other ACL commands": "there is no access control, as in a RocketMQ without aclEnable",
    "QueryMsgTraceById": "needs clients that trace",
}


class Target:
    """One broker: its addresses, and what was kept from its outputs."""

    def __init__(self, name: str, nameserver: str, broker: str, tool: Peer) -> None:
        self.name, self.nameserver, self._tool = name, nameserver, tool
        self.tried: set[str] = set()
        self.failures: dict[str, str] = {}
        self._values = {
            "broker": broker,
            "nameserver": nameserver,
            "cluster": CLUSTER,
            "topic": TOPIC,
            "other_topic": OTHER_TOPIC,
            "group": GROUP,
            "other_group": OTHER_GROUP,
            "idle_group": IDLE_GROUP,
        }

    def run(self, only: frozenset[str]) -> None:
        """All commands, with a producer's messages and one consumer online from the first question about groups on."""
        with consumer(self._tool, self.nameserver) if not only or only & _NEED_CONSUMER else _nobody():
            for check in CHECKS:
                if only and check.title not in only and check.line.split()[0] not in _MAKE:
                    continue
                self._check(check)

    def _check(self, check: Check) -> None:
        self.tried.add(check.title)
        try:
            arguments = check.line.format_map(self._values).split()
        except KeyError as missing:
            self.failures[check.title] = f"not tried: an earlier command did not give {missing}"
            return
        if "-n" not in arguments:
            arguments += ["-n", self.nameserver]
        begin = self._tool.log.stat().st_size if self._tool.log.exists() else 0
        _, output = self._tool.call("mqadmin", *arguments, timeout_s=120)
        with self._tool.log.open(errors="replace") as log:
            log.seek(begin)
            errors = log.read()
        found = re.search(_filled(check.shows, self._values), output)
        complaint = _FAILED.search(errors) or _FAILED.search(output)
        if complaint is not None:
            self.failures[check.title] = complaint[0].strip()[:400]
        elif found is None:
            self.failures[check.title] = f"does not show {check.shows!r}: {output.strip()[:400]!r}"
        else:
            self._values |= {name: value for name, value in found.groupdict().items() if value}
        state = "FAILED" if check.title in self.failures else "ok"
        print(f"{self.name:15} {check.title:24} {state}", file=sys.stderr, flush=True)


_MAKE = frozenset({"updateTopic", "sendMessage", "queryMsgByKey", "queryMsgByOffset"})  # others build on them
_NEED_CONSUMER = frozenset(check.title for check in CHECKS if "{group}" in check.line or check.title == "statsAll")


def _filled(pattern: str, values: Mapping[str, str]) -> str:
    """Only our own names are filled in: a pattern's other braces are its own."""
    for name, value in values.items():
        pattern = pattern.replace(f"{{{name}}}", re.escape(value))
    return pattern


@contextmanager
def _nobody() -> Iterator[None]:
    yield


@contextmanager
def consumer(tool: Peer, nameserver: str) -> Iterator[None]:
    """A push consumer of the topic, online inside the `with`."""
    status, _ = tool.call("probe", "produce", "--topic", TOPIC, "--count", "40", "--key", "k%d", "-n", nameserver)
    if status != 0:
        raise ProcessError(f"cannot produce to {nameserver}, see {tool.log}")
    command = [str(PEER / "peer.sh"), "probe", "consume-push", "--topic", TOPIC, "--group", GROUP, "-n", nameserver]
    command += ["--timeout", "600", "--expect", "1000000", "--quiet"]
    with tool.log.open("a") as log:
        process = subprocess.Popen(
            command, env=tool.environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
        )
    try:
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # the group that start_new_session made: the script and its Java
        process.wait()


def table(targets: list[Target]) -> str:
    """Commands and results, one line each; the reasons of failures below."""
    checks = [check for check in CHECKS if check.title in targets[0].tried]
    width = max((len(check.title) for check in checks), default=0)
    lines = [f"{'command':{width}}  " + "  ".join(f"{target.name:15}" for target in targets).rstrip()]
    for check in checks:
        cells = ("FAILED" if check.title in target.failures else "ok" for target in targets)
        lines.append(f"{check.title:{width}}  " + "  ".join(f"{cell:15}" for cell in cells).rstrip())
    for target in targets:
        lines += [f"{target.name}, {title}: {reason}" for title, reason in target.failures.items()]
    lines += [f"not here: {names} ({reason})" for names, reason in NOT_HERE.items()]
    return "\n".join(lines)


def measure(options: argparse.Namespace, work: Path) -> int:
    """Ours, and then theirs."""
    only = frozenset(filter(None, options.only.split(",")))
    tally = Tally(work / "tally", (f"brokerClusterName={CLUSTER}",))
    tool = Peer(work / "tool")
    targets = [Target("tallystick", tally.nameserver, tally.broker, tool)]
    try:
        tally.start()
        targets[0].run(only)
    finally:
        tally.stop()
    if options.compare:
        server = Peer(work / "server")
        try:
            server.up()
            targets.append(Target(f"RocketMQ {SERVER_VERSION}", server.nameserver, server.broker, tool))
            targets[1].run(only)
        finally:
            server.down()
    print(table(targets))
    failed = set(targets[0].failures)
    blamed = failed - set(targets[1].failures) if options.compare else failed
    print(
        f"FAILED: {', '.join(sorted(blamed))}"
        if blamed
        else "all passed"
        if not failed
        else "no command failed only here"
    )
    return 1 if blamed else 0


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compare", action="store_true", help="also run the commands against RocketMQ")
    parser.add_argument("--only", default="", help="names of commands, separated by commas")
    options = parser.parse_args(arguments)
    end_on_signals()
    with work_folder("mqadmin-") as work:
        try:
            work.status = measure(options, work.path)
        except (PeerMissingError, ProcessError) as error:
            print(f"could not be tried: {error}", file=sys.stderr)
    return work.status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
