"""What happens to machines and processes: killed, stopped, cut off from each other; all of it from outside of pods."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from harness.api import Api, Json
from harness.brokers import Brokers, now_s
from harness.kind import Kind
from harness.release import is_ready
from harness.shell import ToolError, run
from harness.waiting import NotYetError, wait_for

_SIGNAL = """
for status in /proc/[0-9]*/cgroup; do
    process=${status%/cgroup}
    if grep -q "$1" "$status" 2>/dev/null && tr '\\0' ' ' <"$process/cmdline" | grep -q "$2"; then
        kill "-$3" "${process#/proc/}" && echo "${process#/proc/}"
    fi
done
"""


def signal_process(kind: Kind, pod: Json, program: str, name: str) -> None:
    """To the process of a pod that has `program` in its command line, from its machine. ToolError, AssertionError."""
    identity = pod["metadata"]["uid"]
    # The kubelet writes a pod's identity with underscores into names of systemd's slices, and as it is elsewhere.
    pattern = f"{identity}\\|{identity.replace('-', '_')}"
    found = kind.on(pod["spec"]["nodeName"], "sh", "-c", _SIGNAL, "sh", pattern, program, name).split()
    assert found, f"no process {program} of {pod['metadata']['name']} on {pod['spec']['nodeName']}"


def kill_broker(kind: Kind, brokers: Brokers, node: str) -> float:
    """kill -9. The moment before. ToolError, AssertionError."""
    pod, moment_s = brokers.pod(node), now_s()
    signal_process(kind, pod, "tally broker", "KILL")
    return moment_s


def stop_machine(machine: str) -> tuple[float, float]:
    """As if its plug were pulled: `docker kill`. The moments at which it began and was over. ToolError.

    `docker stop` tells the machine's systemd first; in the half second that it has even without any grace, a leader
    hands over, and nothing is seen of a loss.
    """
    begin_s = now_s()
    run("docker", "kill", machine, timeout_s=60)
    return begin_s, now_s()


def start_machine(api: Api, machine: str, timeout_s: float = 180) -> None:
    """Until Kubernetes says that it is ready. WaitError, ToolError."""
    run("docker", "start", machine, timeout_s=60)

    def look() -> None:
        if not is_ready(api.call("GET", f"api/v1/nodes/{machine}")):
            raise NotYetError("not ready")

    wait_for(f"{machine} is ready again", look, timeout_s)


def drain(machine: str, timeout_s: int) -> None:
    """`kubectl drain`, as an administrator does it. ToolError: a pod could not be evicted in this time."""
    options = ["--ignore-daemonsets", "--delete-emptydir-data", "--force", f"--timeout={timeout_s}s"]
    run("kubectl", "drain", machine, *options, timeout_s=timeout_s + 30)


def uncordon(machine: str) -> None:
    """ToolError."""
    run("kubectl", "uncordon", machine)


def transfer(brokers: Brokers, leader: str, member: str) -> float:
    """`tally group transfer` from one node to another one. The moment before. ToolError."""
    command = ["tally", "group", "transfer", f"n{member.rpartition('-')[2]}", "--http", "127.0.0.1:8080"]
    command += ["--token-file", "/etc/tallystick-admin/token"]
    moment_s = now_s()
    run("kubectl", "exec", f"{leader}-0", "--namespace", brokers.namespace, "--", *command, timeout_s=60)
    return moment_s


@contextmanager
def cut(kind: Kind, brokers: Brokers, node: str, others: Sequence[str]) -> Iterator[float]:
    """No packets pass between the pod of a node and those of others, in both directions; all other clients reach all of
    them.

    Yields the moment at which the first was cut. ToolError.
    """
    address = brokers.pod(node)["status"]["podIP"]
    machine = brokers.machine(node)
    rules: list[list[str]] = []
    for other in others:
        theirs = brokers.pod(other)["status"]["podIP"]
        rules += [["-s", address, "-d", theirs, "-j", "DROP"], ["-s", theirs, "-d", address, "-j", "DROP"]]
    moment_s = now_s()
    try:
        for rule in rules:
            kind.on(machine, "iptables", "-I", "FORWARD", *rule)
        yield moment_s
    finally:
        for rule in rules:
            try:
                kind.on(machine, "iptables", "-D", "FORWARD", *rule)
            except ToolError:
                continue  # it was never made: the error of making it is on its way
