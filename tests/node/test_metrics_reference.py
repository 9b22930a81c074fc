"""docs/metrics.md against the declarations, and against what brokers, name servers and members of a group expose."""

from __future__ import annotations

import asyncio
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
from group_lab import GroupLab
from metrics_page import check_page, documented
from tally_process import TallyProcess

from tallystick.node.remoting.client import RemotingClient
from tallystick.node.remoting.codes import RequestCode, ResponseCode
from tallystick.node.remoting.command import Command

ROOT = Path(__file__).resolve().parents[2]


def reference() -> ModuleType:
    spec = importlib.util.spec_from_file_location("metrics_reference", ROOT / "docs" / "metrics_reference.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_what_the_declarations_say() -> None:
    found = reference()
    assert found.PAGE.read_text() == found.page(), "run `make metrics-reference`"
    names = [metric.name for metric in found.declared()]
    assert len(set(names)) == len(names)
    assert set(documented()) == set(names)


def test_every_metric_is_described() -> None:
    for metric in reference().declared():
        assert (metric.type == "counter") is metric.name.endswith("_total"), metric.name
        assert metric.help[-1] == "." and (metric.help[0].isupper() or metric.help[0].isdigit()), metric.name
        assert metric.unit and metric.source, metric.name
        for suffix, unit in (("_seconds", "seconds"), ("_ratio", "ratio, 0 to 1")):
            assert metric.unit == unit or not metric.name.endswith(suffix), metric.name


def test_each_metric_of_rocketmq_exists_or_has_a_reason() -> None:
    found = reference()
    theirs = found.rocketmq()
    here = {name: found.comparison(name, each) for name, each in theirs.items()}
    assert all(here.values()) and len(here) > 20
    own = {metric.name: metric.type for metric in found.declared("Broker")}
    assert {name: own[name] for name, text in here.items() if text.startswith("yes")} == {
        name: theirs[name]["type"] for name, text in here.items() if text.startswith("yes")
    }
    assert all(any(name.startswith(begin) for name in theirs) for begin in (*found.ABSENT, *found.NOTES))
    with pytest.raises(KeyError, match="rocketmq_new_metric"):
        found.comparison("rocketmq_new_metric", {"labels": []})


REGISTRATION = {
    "brokerName": "b", "brokerAddr": "127.0.0.1:10911", "clusterName": "c", "brokerId": "-1",
    "haServerAddr": "127.0.0.1:10912", "compressed": "false", "bodyCrc32": "0",
}  # fmt: skip


@pytest.mark.process
async def test_broker_and_name_server_expose_what_the_page_says(tmp_path: Path) -> None:
    with TallyProcess(tmp_path) as process:
        client = RemotingClient()
        asked = Command(RequestCode.REGISTER_BROKER, ext=REGISTRATION)
        answer = await client.call(process.nameserver, asked, 10)
        assert answer.code == ResponseCode.SYSTEM_ERROR and "refused" in str(answer.remark)
        await client.close()
        status, text = await asyncio.to_thread(process.get, "/metrics")
        assert status == 200
        with_samples = check_page(text, "Broker", "Port for slaves", "Name server", "Connections")
        assert "tally_nameserver_refused_total" in with_samples


@pytest.mark.process
async def test_members_and_a_name_server_expose_what_the_page_says(tmp_path: Path) -> None:
    with GroupLab(tmp_path) as lab:
        leader = await lab.leader()
        await lab.ready()
        of_members = documented("Member of a replicated group").keys()
        for number, process in lab.members.items():
            _, text = await asyncio.to_thread(process.get, "/metrics")
            with_samples = check_page(text, "Broker", "Member of a replicated group", "Connections")
            lacking = set() if number == leader else {"tally_group_lag_bytes"}
            assert of_members - with_samples == lacking, f"n{number}"
        assert lab.nameserver_process is not None
        _, text = await asyncio.to_thread(lab.nameserver_process.get, "/metrics")
        check_page(text, "Name server", "Connections")
