"""`kubectl tally`: the clusters of tallystick's operator, as a plugin of kubectl.

kubectl finds the program `kubectl-tally` on the path. It calls kubectl again, so that the same configuration, context
and permissions apply; it needs no other library and reads no Secret.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tallystick.node.commands.report import archive
from tallystick.node.commands.terminal import InputError, bad, good, number, table
from tallystick.store.clock import wall_ms
from tallystick.store.command_line import CommandParser
from tallystick.store.standard_output import while_it_is_read

_CLUSTERS, _NODES = "brokerclusters.tallystick.dev", "brokernodes.tallystick.dev"
_OTHERS = ("topics", "consumergroups", "backups", "scheduledbackups", "storejobs")
_PARTS = ("pods", "statefulsets", "services", "persistentvolumeclaims", "poddisruptionbudgets")
_LABEL = "tallystick.dev/cluster"
_TOKEN = "/etc/tallystick-admin/token"
_HTTP = 8080
_MEMBER = re.compile(r"(.+)-(\d+)")
_LOG_LINES = 2000
_GOOD_WHEN_TRUE = ("Ready", "SecurityReady", "Adopted", "Recovered")
_BAD_WHEN_TRUE = ("Degraded", "QuorumAtRisk", "UpdateBlocked", "OperatorConflict", "LossAccepted")


class KubectlError(Exception):
    """kubectl ended with an error, or is not installed. The text is its own."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the plugin and returns its exit code: 0, 1 if kubectl or a broker refused, 2 if it could not be tried."""
    return while_it_is_read("kubectl-tally", lambda: _main(arguments))


def _main(arguments: Sequence[str] | None) -> int:
    args = _parser().parse_args(arguments)
    if not hasattr(args, "call"):
        _parser().print_help()
        return 2
    try:
        code: int = args.call(args)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        raise  # standard output was closed
    except InputError as error:
        print(f"kubectl-tally: {error}", file=sys.stderr)
        return 2
    except (KubectlError, OSError) as error:
        print(f"kubectl-tally: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    return code


def _parser() -> CommandParser:
    parser = CommandParser(prog="kubectl-tally", description="Shows and operates clusters of tallystick's operator.")
    parser.add_version()
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    status = commands.add_parser("status", help="show clusters, their members, and the conditions that need attention")
    status.add_argument("cluster", nargs="?", help="name of the BrokerCluster (all of the namespace)")
    status.set_defaults(call=_status)
    promote = commands.add_parser("promote", help="make a member the leader of its group")
    promote.add_argument("node", help="name of the BrokerNode, such as orders-0-1")
    promote.set_defaults(call=_promote)
    restart = commands.add_parser("restart", help="let the operator restart the pods of a cluster, one at a time")
    restart.add_argument("cluster", help="name of the BrokerCluster")
    restart.set_defaults(call=_restart)
    report = commands.add_parser("report", help="write the resources, events and logs of a cluster to one archive")
    report.add_argument("cluster", help="name of the BrokerCluster")
    report.add_argument("--file", type=Path, help="the archive (CLUSTER-report-TIME.tar.gz in this folder)")
    report.set_defaults(call=_report)
    connect = commands.add_parser("connect", help="forward the HTTP port of a leader to this machine, until Ctrl-C")
    connect.add_argument("cluster", help="name of the BrokerCluster")
    connect.add_argument("--port", type=number(0, 65535), default=_HTTP, help=f"port here ({_HTTP}; 0: any free one)")
    connect.set_defaults(call=_connect)
    for each in (status, promote, restart, report, connect):
        each.add_argument("--namespace", "-n", help="namespace of the cluster (that of kubectl's context)")
        each.add_argument("--kube-context", metavar="NAME", help="context of kubectl")
    return parser


# --- kubectl ---


def _command(args: argparse.Namespace, *words: str) -> list[str]:
    program = shutil.which("kubectl")
    if program is None:
        raise KubectlError("kubectl is not installed, or not on the path")
    options = ["--namespace", args.namespace] if args.namespace else []
    options += ["--context", args.kube_context] if args.kube_context else []
    return [program, *options, *words]


def _kubectl(args: argparse.Namespace, *words: str) -> str:
    """What kubectl prints. KubectlError: it ended with another status than 0."""
    done = subprocess.run(_command(args, *words), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise KubectlError(done.stderr.strip() or f"kubectl {words[0]} ended with status {done.returncode}")
    return done.stdout


def _objects(args: argparse.Namespace, *words: str) -> list[dict[str, Any]]:
    found = json.loads(_kubectl(args, "get", *words, "--output", "json"))
    return list(found["items"]) if "items" in found else [found]


def _nodes(args: argparse.Namespace, cluster: str | None) -> list[dict[str, Any]]:
    nodes = _objects(args, _NODES)
    return [node for node in nodes if cluster in (None, node["spec"].get("clusterName"))]


# --- status ---


def _status(args: argparse.Namespace) -> int:
    clusters = _objects(args, _CLUSTERS, *([args.cluster] if args.cluster else []))
    if not clusters:
        print("there is no BrokerCluster in this namespace")
        return 0
    nodes = _nodes(args, args.cluster)
    parts = [_cluster_table(clusters), _node_table(nodes)]
    parts += [line for cluster in clusters for line in _conditions(cluster)]
    print("\n\n".join(part for part in parts if part))
    return 0


def _cluster_table(clusters: Iterable[dict[str, Any]]) -> str:
    rows = []
    for each in clusters:
        status = each.get("status") or {}
        address = (status.get("nameServers") or {}).get("address")
        phase = _text(status.get("phase"))
        shown = good(phase) if phase == "Ready" else phase
        counts = (_text(status.get("readyNodes")), _text(status.get("leaders")))
        rows.append((each["metadata"]["name"], shown, *counts, _text(address)))
    return table(rows, ("cluster", "phase", "ready", "leaders", "name servers"))


def _node_table(nodes: Iterable[dict[str, Any]]) -> str:
    rows = []
    for each in nodes:
        status = each.get("status") or {}
        rows.append(
            (each["metadata"]["name"], *(_text(status.get(name)) for name in ("phase", "role", "lagBytes", "nodeName")))
        )
    return table(rows, ("member", "phase", "role", "lag bytes", "machine")) if rows else ""


def _conditions(cluster: dict[str, Any]) -> Iterable[str]:
    for each in (cluster.get("status") or {}).get("conditions") or ():
        kind, status = each.get("type"), each.get("status")
        wrong = (kind in _GOOD_WHEN_TRUE and status != "True") or (kind in _BAD_WHEN_TRUE and status != "False")
        if wrong:
            reason = f"{each.get('reason', '')}: {each.get('message', '')}"
            yield bad(f"{cluster['metadata']['name']}: {kind} is {status}, {reason}")


def _text(value: Any) -> str:
    return "-" if value is None else str(value)


# --- changes ---


def _promote(args: argparse.Namespace) -> int:
    match = _MEMBER.fullmatch(args.node)
    if match is None:
        raise InputError(f"{args.node!r} is not a BrokerNode such as orders-0-1")
    members = [node for node in _nodes(args, None) if node["metadata"]["name"].rpartition("-")[0] == match[1]]
    names = {node["metadata"]["name"]: (node.get("status") or {}).get("role") for node in members}
    if args.node not in names:
        raise InputError(f"there is no BrokerNode {args.node}")
    leader = next((name for name, role in names.items() if str(role).lower() == "leader"), None)
    if leader is None:
        raise KubectlError(f"no member of {match[1]} leads now")
    if leader == args.node:
        print(f"{args.node} leads already")
        return 0
    command = ("tally", "group", "transfer", f"n{match[2]}", "--http", f"127.0.0.1:{_HTTP}", "--token-file", _TOKEN)
    print(_kubectl(args, "exec", f"{leader}-0", "--container", "broker", "--", *command), end="")
    return 0


def _restart(args: argparse.Namespace) -> int:
    _objects(args, _CLUSTERS, args.cluster)  # it must exist
    print(_kubectl(args, "rollout", "restart", "statefulset", "--selector", f"{_LABEL}={args.cluster}"), end="")
    print("the operator restarts one pod at a time, the leader of each group last: see `kubectl tally status`")
    return 0


def _connect(args: argparse.Namespace) -> int:
    _objects(args, _CLUSTERS, args.cluster)
    nodes = _nodes(args, args.cluster)
    leader = next((node for node in nodes if str((node.get("status") or {}).get("role")).lower() == "leader"), None)
    if leader is None:
        raise KubectlError(f"no member of cluster {args.cluster} leads now")
    pod = f"{leader['metadata']['name']}-0"
    print(f"{pod}: http://127.0.0.1:{args.port or 'PORT'}/ until Ctrl-C", flush=True)
    ports = f"{args.port or ''}:{_HTTP}"
    return subprocess.run(_command(args, "port-forward", f"pod/{pod}", ports), check=False).returncode


# --- report ---


def _report(args: argparse.Namespace) -> int:
    """What could not be read is in the archive as its error."""
    path = args.file or Path(f"{args.cluster}-report-{wall_ms()}.tar.gz")
    cluster = _objects(args, _CLUSTERS, args.cluster)
    contents: dict[str, Any] = {"cluster": cluster}
    failed = 0

    def add(name: str, read: Callable[[], Any]) -> None:
        nonlocal failed
        try:
            contents[name] = read()
        except KubectlError as error:
            failed += 1
            contents[name] = {"error": str(error)}
            print(f"kubectl-tally: {name}: {error}", file=sys.stderr)

    add("nodes", lambda: _nodes(args, args.cluster))
    for kind in _OTHERS:
        add(kind, partial(_objects, args, f"{kind}.tallystick.dev"))
    add("events", partial(_objects, args, "events"))
    for kind in _PARTS:
        add(kind, partial(_objects, args, kind, "--selector", f"{_LABEL}={args.cluster}"))
    for pod in contents["pods"] if isinstance(contents["pods"], list) else []:
        add(f"log-{pod['metadata']['name']}", partial(_log, args, pod["metadata"]["name"]))
    archive(path, contents)
    print(path)
    return 1 if failed else 0


def _log(args: argparse.Namespace, pod: str) -> list[str]:
    return _kubectl(args, "logs", pod, "--tail", str(_LOG_LINES)).splitlines()


if __name__ == "__main__":
    sys.exit(main())
