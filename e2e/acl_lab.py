"""Access control with RocketMQ's own Java client and admin tool, against one process with name server and broker.

    python e2e/acl_lab.py [--version 4.8.0]

Accounts with different permissions produce, consume and administer. Each step must be allowed or refused as the
accounts say. Exit status: 0 as expected, 1 not, 2 the lab cannot run.
"""

import argparse
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from lab.peer import PeerMissingError, need_peer
from lab.places import HOST, PEER, ROOT, free_block

_CLIENT = Path(__file__).parent / "lab" / "AclClient.java"
_ACCOUNTS = """accounts:
- {accessKey: producer1, secretKey: "12345678", topicPerms: [Orders=PUB]}
- {accessKey: consumer1, secretKey: "12345678", topicPerms: [Orders=SUB], groupPerms: [g1=SUB]}
- {accessKey: administrator, secretKey: "12345678", admin: true}
"""
_TOOLS = 'accessKey: administrator\nsecretKey: "12345678"\n'
_STEPS = {
    "producer, its topic": "sent 22",
    "producer, another topic": "No default permission for topic:Other",
    "consumer produces": "No default permission for topic:Orders",
    "wrong secret": "Check signature failed for accessKey=producer1",
    "unknown account": "No acl config for stranger",
    "no signature": "No accessKey is configured",
    "consumer, its topic and group": "received 22",
    "consumer, another group": "No default permission for group:g2",
    "consumer, another topic": "No default permission for topic:Other",
    "producer consumes": "No default permission for topic:Orders",
    "mqadmin updateTopic of administrator": "create topic to",
    "mqadmin updateTopic of producer1": "Need admin permission for request code=17, but accessKey=producer1 is not",
    "mqadmin brokerStatus of administrator": "brokerVersion",
}
_STEPS_OF_4 = {
    "mqadmin updateAclConfig of administrator": "success",
    "added account": "sent 3",
    "mqadmin updateGlobalWhiteAddr of administrator": "success",
    "mqadmin clusterAclConfigVersion of administrator": "broker-a",
    "mqadmin getAccessConfigSubCommand of administrator": "******",
    "mqadmin deleteAccessConfig of administrator": "success",
    "deleted account": "No acl config for added01",
}
_STEPS_OF_5 = {
    "mqadmin createUser of administrator": "success",
    "user without a policy": "No default permission for topic:Other",
    "mqadmin createAcl of administrator": "success",
    "user with a policy": "sent 5",
    "user consumes": "received 5",
    "user, another topic": "No default permission for topic:Orders",
    "mqadmin listUser of alice01": "Need admin permission for request code=3005, but accessKey=alice01 is not",
    "mqadmin getUser of administrator": "******",
    "mqadmin getAcl of administrator": "Topic:Oth*",
    "mqadmin updateAcl of administrator": "success",
    "user with a policy that denies": "No default permission for topic:Other",
    "mqadmin listAcl of administrator": "Group:u1",
    "mqadmin deleteAcl of administrator": "success",
    "mqadmin deleteUser of administrator": "success",
    "deleted user": "No acl config for alice01",
}
"""The admin tool of 4.x manages accounts, that of 5.x users and policies of ACL 2.0."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", default="4.8.0", help="of RocketMQ's client and admin tool")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "acl-lab", help="folder for the store and logs")
    options = parser.parse_args()
    try:
        need_peer()
    except PeerMissingError as error:
        print(error, file=sys.stderr)
        return 2
    work: Path = options.work
    (work / "home" / "conf").mkdir(parents=True, exist_ok=True)
    for name in ("logback_tools.xml", "rmq.tools.logback.xml"):
        (work / "home" / "conf" / name).write_text("<configuration></configuration>")
    (work / "plain_acl.yml").write_text(_ACCOUNTS)
    (work / "tools.yml").write_text(_TOOLS)
    port = free_block(20)
    server = _serve(work, port)
    try:
        printed = _run_client(options.version, work, f"{HOST}:{port}", f"{HOST}:{port + 6}")
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(timeout=60)
    return _judge(printed, _STEPS | (_STEPS_OF_4 if options.version.startswith("4.") else _STEPS_OF_5))


def _serve(work: Path, port: int) -> subprocess.Popen[bytes]:
    settings = {
        "listenPort": port,
        "nameserver.listenPort": port + 6,
        "nameserver.kvConfigPath": work / "kv" / "kvConfig.json",
        "bindAddress": HOST,
        "brokerIP1": HOST,
        "haListenPort": port + 2,
        "http.port": -1,
        "storePathRootDir": work / f"store-{port}-{os.getpid()}",
        "aclEnable": "true",
        # As RocketMQ's: if the name server refuses a client, the client reports that there is no route, and not why.
        "nameserver.aclEnable": "false",
        "aclFile": work / "plain_acl.yml",
        "aclCredentialsFile": work / "tools.yml",
    }
    command = [str(ROOT / ".venv" / "bin" / "tally"), "run"]
    for name, value in settings.items():
        command += ["--set", f"{name}={value}"]
    log = (work / "server.log").open("wb")
    server = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    deadline_s = time.monotonic() + 60
    while b"tally is ready" not in (work / "server.log").read_bytes():
        if server.poll() is not None or time.monotonic() > deadline_s:
            raise SystemExit(f"the server did not start: see {work / 'server.log'}")
        time.sleep(0.1)
    return server


def _run_client(version: str, work: Path, broker: str, nameserver: str) -> str:
    environment = os.environ | {"PEER_VERSION": version}
    found = subprocess.run(
        [str(PEER / "peer.sh"), "classpath"], env=environment, check=True, capture_output=True, text=True
    )
    java = ["java", "--add-opens", "java.base/java.nio=ALL-UNNAMED", f"-Drocketmq.home.dir={work / 'home'}"]
    command = [*java, "-cp", found.stdout.strip(), str(_CLIENT), nameserver, broker, version]
    ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300)
    (work / "client.log").write_text(ended.stdout)
    return ended.stdout


def _judge(printed: str, expected: dict[str, str]) -> int:
    found: dict[str, str] = {}
    for part in re.split(r"^STEP ", printed, flags=re.MULTILINE)[1:]:
        name, _, result = part.partition(":")
        found[name] = found.get(name, "") + result
    wrong = 0
    for name, text in expected.items():
        result = found.get(name, "the step did not run")
        right = text in result
        wrong += not right
        print(f"{'ok   ' if right else 'WRONG'} {name}: {text if right else ' '.join(result.split())[:400]}")
    for command in ("getAccessConfigSubCommand", "getUser"):
        if "12345678" in found.get(f"mqadmin {command} of administrator", ""):
            print("WRONG the admin tool got a secret")
            wrong += 1
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
