"""`kubectl tally` with a stand-in for kubectl that answers with objects as the operator writes them."""

from __future__ import annotations

import json
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tallystick.node.commands.kubectl_tally import main

pytestmark = pytest.mark.process

CLUSTER: dict[str, Any] = {
    "metadata": {"name": "orders"},
    "status": {
        "phase": "Degraded",
        "readyNodes": "2/3",
        "leaders": "1/1",
        "nameServers": {"address": "orders-ns:9876"},
        "conditions": [
            {"type": "Ready", "status": "False", "reason": "NodeMissing", "message": "orders-0-2 is away"},
            {"type": "Degraded", "status": "True", "reason": "NodeMissing", "message": "orders-0-2 is away"},
            {"type": "QuorumAtRisk", "status": "False", "reason": "Healthy", "message": ""},
        ],
    },
}


def node(number: int, role: str) -> dict[str, Any]:
    return {
        "metadata": {"name": f"orders-0-{number}"},
        "spec": {"clusterName": "orders"},
        "status": {"phase": "Ready", "role": role, "lagBytes": 0, "nodeName": "machine"},
    }


NODES = [node(0, "follower"), node(1, "leader"), node(2, "follower")]
OTHER = {"metadata": {"name": "theirs-0-0"}, "spec": {"clusterName": "theirs"}, "status": {"role": "leader"}}
PODS = [
    {
        "metadata": {"name": "orders-0-1-0"},
        "spec": {
            "containers": [{"env": [{"name": "S3_SECRET_KEY", "value": "a-secret"}, {"name": "A", "value": "b"}]}]
        },
    }
]
STAND_IN = """#!{python}
import json, pathlib, sys
words = [word for word in sys.argv[1:]]
with open({calls!r}, "a") as file:
    file.write(json.dumps(words) + "\\n")
for option in ("--namespace", "--context"):
    if option in words:
        at = words.index(option)
        del words[at : at + 2]
answers = json.loads(pathlib.Path({answers!r}).read_text())
key = " ".join(words[:2]) if words[0] == "get" else words[0]
if words[:2] == ["get", "brokerclusters.tallystick.dev"] and len(words) > 4:
    key += " " + words[2]
if key not in answers:
    print(f"Error from server (NotFound): {{key}} not found", file=sys.stderr)
    sys.exit(1)
print(answers[key] if isinstance(answers[key], str) else json.dumps(answers[key]))
"""


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Puts the stand-in on the path. Returns the file with its calls."""
    folder, answers, calls = tmp_path / "bin", tmp_path / "answers.json", tmp_path / "calls"
    folder.mkdir()
    empty: dict[str, Any] = {"items": []}
    answers.write_text(
        json.dumps(
            {
                "get brokerclusters.tallystick.dev": {"items": [CLUSTER]},
                "get brokerclusters.tallystick.dev orders": CLUSTER,
                "get brokernodes.tallystick.dev": {"items": [*NODES, OTHER]},
                "get pods": {"items": PODS},
                **{f"get {kind}": empty for kind in ("statefulsets", "services", "persistentvolumeclaims", "events")},
                **{
                    f"get {kind}.tallystick.dev": empty for kind in ("topics", "consumergroups", "backups", "storejobs")
                },
                "get poddisruptionbudgets": empty,
                "logs": "a line\nanother one",
                "exec": "n2 leads",
                "rollout": "statefulset.apps/orders-0-0 restarted",
                "port-forward": "Forwarding from 127.0.0.1:8080",
            }
        )
    )
    program = folder / "kubectl"
    program.write_text(STAND_IN.format(python=sys.executable, calls=str(calls), answers=str(answers)))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    return calls


def last_call(calls: Path) -> list[str]:
    found: list[str] = json.loads(calls.read_text().splitlines()[-1])
    return found


def test_the_status_names_what_needs_attention(calls: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "orders", "-n", "shop"]) == 0
    shown = capsys.readouterr().out
    assert "orders-0-1  Ready  leader" in shown and "theirs" not in shown
    assert "Ready is False, NodeMissing: orders-0-2 is away" in shown
    assert "Degraded is True" in shown and "QuorumAtRisk" not in shown
    assert all("--namespace shop" in line.replace('", "', " ") for line in calls.read_text().splitlines())
    assert main(["status"]) == 0
    assert main(["status", "nothing"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("kubectl-tally: Error from server (NotFound)") and error.count("\n") == 1


def test_a_member_is_made_the_leader_by_the_present_one(calls: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["promote", "orders-0-2"]) == 0
    assert last_call(calls) == [
        *("exec", "orders-0-1-0", "--container", "broker", "--", "tally", "group", "transfer", "n2"),
        *("--http", "127.0.0.1:8080", "--token-file", "/etc/tallystick-admin/token"),
    ]
    assert main(["promote", "orders-0-1"]) == 0
    assert "leads already" in capsys.readouterr().out
    assert main(["promote", "orders-0-7"]) == 2 and main(["promote", "orders"]) == 2


def test_a_cluster_is_restarted_and_connected(calls: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["restart", "orders"]) == 0
    assert last_call(calls) == ["rollout", "restart", "statefulset", "--selector", "tallystick.dev/cluster=orders"]
    assert main(["connect", "orders", "--port", "9000"]) == 0
    assert last_call(calls) == ["port-forward", "pod/orders-0-1-0", "9000:8080"]
    assert "http://127.0.0.1:9000/" in capfd.readouterr().out
    assert main(["restart", "nothing"]) == 1


def test_a_report_has_no_secrets_and_names_what_could_not_be_read(
    calls: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "report.tar.gz"
    assert main(["report", "orders", "--file", str(path)]) == 1, "scheduledbackups cannot be read"
    assert "scheduledbackups" in capsys.readouterr().err
    with tarfile.open(path) as archive:
        texts = {name: archive.extractfile(name).read().decode() for name in archive.getnames()}
    assert "NotFound" in texts["tally-report/scheduledbackups.json"]
    assert json.loads(texts["tally-report/log-orders-0-1-0.json"]) == ["a line", "another one"]
    assert "a-secret" not in "".join(texts.values()) and '"b"' in texts["tally-report/pods.json"]
    assert "secrets" not in calls.read_text()


def test_without_kubectl_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["status"]) == 1
    assert capsys.readouterr().err == "kubectl-tally: kubectl is not installed, or not on the path\n"
