"""`make acl-matrix`: each request code with right, wrong, missing, repeated and changed credentials.

    python e2e/acl_matrix.py                                  RocketMQ's clients of 4.8.0 and 5.5.0
    python e2e/acl_matrix.py --write docs/access-matrix.md    and writes the table

RocketMQ's remoting client sends a request of each code that has a rule, to a broker and a name server with access
control, signed by RocketMQ's AclClientRPCHook. What is expected follows from the text of the rule, which is that of the
table in docs/security.md. Requests have only the fields that their rule reads: one that is allowed gets any answer of
its processor.

Exit status: 0 all decisions are as expected, 1 not, 2 the matrix could not run.
"""

from __future__ import annotations

import argparse
import base64
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from lab.peer import Peer, PeerMissingError
from lab.places import ROOT, work_folder
from lab.processes import ProcessError, end_on_signals, run
from lab.tally import Tally

from tallystick.node.access.needs import Rule
from tallystick.node.access.request_table import BROKER, NAME_SERVER
from tallystick.node.remoting.codes import RequestCode as Code

_CLIENT = ROOT / "e2e" / "lab" / "AclMatrix.java"
_VERSIONS = ("4.8.0", "5.5.0")
_SECRET = "12345678"
_FILE = """
accounts:
- {accessKey: administrator, secretKey: "12345678", admin: true}
- {accessKey: permitted, secretKey: "12345678", topicPerms: [Orders=PUB|SUB], groupPerms: [readers=PUB|SUB]}
- {accessKey: nothing, secretKey: "12345678"}
"""
_COLUMNS = {
    "administrator": ("administrator", "signed"),
    "permitted": ("permitted", "signed"),
    "not permitted": ("nothing", "signed"),
    "wrong secret": ("administrator", "signed"),
    "no signature": ("administrator", "missing"),
    "repeated": ("administrator", "replayed"),
    "changed": ("administrator", "changed"),
}
"""By the title of a column: user and credentials."""
_ORDERS = '{"topic":"Orders","subString":"*"}'
_BODIES = {
    Code.HEART_BEAT: '{"clientID":"c","consumerDataSet":'
    f'[{{"groupName":"readers","subscriptionDataSet":[{_ORDERS}]}}]}}',
    Code.LOCK_BATCH_MQ: '{"consumerGroup":"readers","clientId":"c","mqSet":[{"topic":"Orders","queueId":0}]}',
    Code.CHECK_CLIENT_CONFIG: f'{{"group":"readers","clientId":"c","subscriptionData":{_ORDERS}}}',
}
_BODIES[Code.UNLOCK_BATCH_MQ] = _BODIES[Code.LOCK_BATCH_MQ]
_ADMINISTRATION = re.compile(r"cluster|Create|Delete|(?<!or )Update|of the message")
"""In the text of a rule: no permission for topics and groups allows it. No message begins at the position that the
requests name, which needs a permission for the cluster."""


@dataclass(frozen=True, slots=True)
class Case:
    """One request."""

    code: Code
    rule: Rule
    at_broker: bool
    column: str

    def is_allowed(self) -> bool:
        """What the text of the rule says."""
        if self.rule.is_open:
            return True
        if self.column == "permitted":
            return not _ADMINISTRATION.search(self.rule.text)
        if self.column == "not permitted":
            return self.rule.text == "a signature"
        return self.column in ("administrator", "repeated")

    def line(self, number: int, address: str) -> str:
        """For the client."""
        user, credentials = _COLUMNS[self.column]
        secret = "87654321" if self.column == "wrong secret" else _SECRET
        fields = ",".join(f"{name}={_value(name)}" for name in re.findall(r"`(\w+)`", self.rule.text))
        body = base64.b64encode(_BODIES.get(self.code, "").encode()).decode()
        return "\t".join((str(number), address, str(int(self.code)), credentials, user, secret, fields, body))


def _value(name: str) -> str:
    if "ffset" in name:
        return "0"
    return "readers" if "roup" in name else "Orders"


def cases() -> list[Case]:
    """All codes of brokers and name servers, with all credentials."""
    tables = ((BROKER, True), (NAME_SERVER, False))
    return [
        Case(Code(code), rule, at_broker, column)
        for table, at_broker in tables
        for code, rule in sorted(table.items())
        for column in _COLUMNS
    ]


def measure(work: Path, version: str) -> dict[Case, bool]:
    """Whether each request was allowed. ProcessError."""
    client = Peer(work / f"client-{version}", version)
    accounts, tools = work / "plain_acl.yml", work / "tools.yml"
    accounts.write_text(_FILE)
    tools.write_text(f'accessKey: administrator\nsecretKey: "{_SECRET}"\n')
    settings = ("aclEnable=true", f"aclFile={accounts}", f"aclCredentialsFile={tools}")
    tally = Tally(work / f"tally-{version}", settings)
    asked = cases()
    file = work / f"cases-{version}.tsv"
    addresses = {True: tally.broker, False: tally.nameserver}
    file.write_text("\n".join(case.line(number, addresses[case.at_broker]) for number, case in enumerate(asked)))
    tally.start()
    try:
        command = client.client_command(_CLIENT, str(file))
        _, output = run(command, timeout_s=300, log=client.log, cwd=work, env=client.environment)
    finally:
        tally.stop()
    found: dict[Case, bool] = {}
    for number, code, remark in re.findall(r"^RESULT (\d+) (\S+) (.*)$", output, re.MULTILINE):
        if code == "none":
            raise ProcessError(f"{asked[int(number)]} got no answer: {remark}")
        found[asked[int(number)]] = "AclException" not in remark
    if missing := set(asked) - found.keys():
        raise ProcessError(f"{len(missing)} requests were not sent: {output[-2000:]}")
    return found


def page(found: dict[Case, bool]) -> str:
    """The table as a document."""
    lines = [
        "# Access control: each request with each kind of credentials",
        "",
        f"RocketMQ's Java clients of {' and '.join(_VERSIONS)} sent these requests to a broker and a name server with",
        "`aclEnable=true`, and got the same decisions. `make acl-matrix WRITE=docs/access-matrix.md` writes this page.",
        "",
        "`permitted` is an account with `PUB|SUB` on the topic and the group of the request, `not permitted` one",
        "without permissions. `repeated` is a recorded request of the administrator, sent unchanged from another",
        "connection. It is allowed, because a signature contains no time: use TLS. `changed` is the same with another",
        "value of a field.",
        "`yes` is allowed, `no` is refused with code 1. What each request needs is in [security.md](security.md).",
        "",
    ]
    for at_broker, title in ((True, "Brokers"), (False, "Name servers")):
        lines += [f"## {title}", "", "| code | request | " + " | ".join(_COLUMNS) + " |"]
        lines.append("| --- " * (2 + len(_COLUMNS)) + "|")
        for code in dict.fromkeys(case.code for case in found if case.at_broker is at_broker):
            row = {case.column: case for case in found if (case.code, case.at_broker) == (code, at_broker)}
            cells = " | ".join("yes" if found[row[column]] else "no" for column in _COLUMNS)
            lines.append(f"| {int(code)} | {code.name} | {cells} |")
        lines.append("")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", action="append", default=[], help="version of the client; both if it is missing")
    parser.add_argument("--write", type=Path, help="file for the table")
    options = parser.parse_args()
    end_on_signals()
    with work_folder("matrix-") as work:
        try:
            work.status = 0
            for version in options.version or _VERSIONS:
                found = measure(work.path, version)
                wrong = [case for case, allowed in found.items() if allowed is not case.is_allowed()]
                for case in wrong:
                    was = "allowed" if found[case] else "refused"
                    print(f"WRONG with {version}: {case.code.name}, {case.column}: {was} ({case.rule.text})")
                print(f"client {version}: {len(found)} requests, {len(wrong)} decisions are not those of the table")
                work.status |= bool(wrong)
            if options.write and not work.status:
                options.write.write_text(page(found))
        except (PeerMissingError, ProcessError) as error:
            work.status = 2
            print(f"cannot run: {error}", file=sys.stderr)
    return work.status


if __name__ == "__main__":
    sys.exit(main())
