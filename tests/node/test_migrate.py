"""`tally migrate` and `tally promote` against a master as RocketMQ has it, and slaves with their HTTP ports."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from copying_lab import BROKER, World, copied, hurry, small, tables, until, world
from following_lab import followed, followers

from tallystick.node.broker.broker import Broker
from tallystick.node.broker.copying import promotion as promotion_module
from tallystick.node.cli import main
from tallystick.node.commands import migrate as migrate_module
from tallystick.node.core import migration
from tallystick.node.core.client import ClusterClient
from tallystick.node.core.migration import Facts, Place
from tallystick.node.core.settings import HttpSettings
from tallystick.node.core.starting import StartProgress
from tallystick.node.http.admin_api import AdminView
from tallystick.node.http.node_api import ProcessClock, broker_json
from tallystick.node.http.server import HttpServer, Probes
from tallystick.node.remoting.codes import RequestCode
from tallystick.node.tls.process import ProcessTls
from tallystick.node.tls.settings import TlsSettings
from tallystick.store.formats.message import Message
from tallystick.store.settings import BrokerRole


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)
    monkeypatch.setattr(promotion_module, "STAYS_EQUAL_S", 0.05)
    monkeypatch.setattr(migrate_module, "_LOOK_S", 0.02)


@dataclass
class Said:
    """What a command printed, and its exit status."""

    code: int
    out: str
    err: str


@dataclass
class Terminal:
    """Runs `tally` in a thread, beside the servers of this test."""

    capture: pytest.CaptureFixture[str]

    async def run(self, *arguments: str) -> Said:
        self.capture.readouterr()
        code = await asyncio.to_thread(main, arguments)
        said = self.capture.readouterr()
        return Said(code, said.out, said.err)


@asynccontextmanager
async def served(w: World, broker: Broker) -> AsyncIterator[str]:
    """The HTTP port of a slave."""
    settings: Any = SimpleNamespace(store=broker.store.settings, broker=broker.settings)
    clock = ProcessClock()

    def node() -> dict[str, Any]:
        return broker_json(
            settings, broker, StartProgress(), clock, broker.store.findings, ProcessTls(TlsSettings()), stopping=False
        )

    http = HttpServer(
        HttpSettings(port=0, host="127.0.0.1"),
        Probes(lambda: None, broker.unready, lambda form: iter(())),
        lambda: None,
        AdminView(lambda: broker, lambda: "starting", node),
    )
    try:
        yield f"127.0.0.1:{await http.start()}"
    finally:
        await http.stop()


async def test_a_cluster_moves_step_by_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tally = Terminal(capsys)
    async with world(tmp_path) as w:
        w.master.tables = tables(1)
        w.master.settings |= {"fileReservedTime": "48", "messageDelayLevel": BROKER_LEVELS}
        w.master.settings["brokerRole"] = "SYNC_MASTER"
        said = await tally.run("migrate", "plan", "--from", w.address)
        assert said.code == 0 and "SYNC_MASTER: after the switch" in said.out.replace("\n    ", " ")
        assert f"mappedFileSizeCommitLog={1 << 16}" in said.out and "--set fileReservedTime=48" in said.out
        assert "--set brokerId=1" in said.out and str(w.master.end) in said.out
        async with w.slave() as broker, served(w, broker) as http:
            where = ("--from", w.address, "--slave", http)
            said = await tally.run("migrate", "attach", *where)
            assert said.code == 0 and ("following" in said.out or "copying" in said.out)
            await copied(broker, w.master)
            await until(lambda: "T" in broker.topics)
            said = await tally.run("migrate", "watch", *where, "--json")
            assert said.code == 0 and json.loads(said.out)["b"]["state"] == "following"
            said = await tally.run("migrate", "back", *where)
            assert said.code == 0 and "no master was fenced" in said.out
            said = await tally.run("migrate", "verify", *where)
            assert said.code == 1 and "is not promoted" in said.err
            said = await tally.run("migrate", "switch", *where)
            assert said.code == 0 and "promoted" in said.out and str(w.master.end) in said.out
            assert w.master.settings["brokerId"] == "1"
            for action in ("attach", "watch", "switch", "rehearse"):
                assert (await tally.run("migrate", action, *where)).code == 0, action
            said = await tally.run("migrate", "back", *where)
            assert said.code == 1 and "is the master" in said.err
            said = await tally.run("promote", "--http", http)
            assert said.code == 0 and str(w.master.end) in said.out


async def test_a_group_takes_the_place_of_a_master_step_by_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tally = Terminal(capsys)
    async with world(tmp_path) as w, followers(w, tmp_path, 3) as group:
        w.master.tables = tables(1)
        planned = ""
        async with asyncio.timeout(60):
            while "No member of a group may have the id of another slave" not in planned:  # until one has registered
                planned = (await tally.run("migrate", "plan", "--from", w.address)).out.replace("\n    ", " ")
        assert "or a group:" in planned
        async with AsyncExitStack() as stack:
            ports = [await stack.enter_async_context(served(w, each)) for each in group.members.values()]
            leader = await group.leader()
            others = [port for port, each in zip(ports, group.members.values(), strict=True) if each is not leader]
            where = ("--from", w.address, *(text for port in ports for text in ("--slave", port)))
            assert (await tally.run("migrate", "attach", *where)).code == 0
            await followed(leader, w)
            said = await tally.run("migrate", "watch", *where, "--json")
            assert said.code == 0 and json.loads(said.out)["b"]["state"] == "following"
            said = await tally.run("migrate", "switch", "--from", w.address, "--slave", others[0])
            assert said.code == 1 and "leads: ask the leader" in said.err
            said = await tally.run("migrate", "switch", *where, "--slave", "127.0.0.1:1")
            assert said.code == 0 and f"at {w.master.end}," in said.out
            assert w.master.settings["brokerId"] == "1000"
            for action in ("attach", "watch", "switch", "rehearse"):
                assert (await tally.run("migrate", action, *where)).code == 0, action
            said = await tally.run("migrate", "back", *where)
            assert said.code == 1 and "is the master" in said.err


BROKER_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"


async def test_what_is_wrong_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tally = Terminal(capsys)
    async with world(tmp_path) as w:
        w.master.settings["enableDLegerCommitLog"] = "true"
        said = await tally.run("migrate", "plan", "--from", w.address)
        assert said.code == 1 and "a member of a DLedger group" in said.out
        async with w.slave() as broker, served(w, broker) as http:
            where = ("--from", w.address, "--slave", http)
            said = await tally.run("migrate", "attach", *where)
            assert said.code == 1 and "unsupported" in said.out
            said = await tally.run("migrate", "rehearse", *where)
            assert said.code == 1 and "is not ready" in said.err
            said = await tally.run("migrate", "switch", *where)
            assert said.code == 1 and "the copy is not complete: unsupported" in said.err
            said = await tally.run("promote", "--http", http)
            assert said.code == 1 and "the copy is not complete" in said.err
            said = await tally.run("migrate", "switch", *where, "--slave", http)
            assert said.code == 2 and "is a slave of b, too" in said.err
            w.master.name = "other"
            await w.master.register()
            said = await tally.run("migrate", "switch", *where)
            assert said.code == 2 and "no --slave for other" in said.err
        said = await tally.run("migrate", "attach", *where)
        assert said.code == 2 and said.err.count("\n") == 1 and http in said.err
    said = await tally.run("migrate", "plan", "--from", w.address)
    assert said.code == 2 and said.err.count("\n") == 1


async def test_messages_of_a_group_are_compared_without_their_positions(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        w.master.tables = tables(1)
        w.master.grow(w.maker.add_transactions(3))
        async with w.slave(brokerId=9) as slave, followers(w, tmp_path) as group, ClusterClient("") as client:
            leader = await group.leader()
            await followed(leader, w)
            await copied(slave, w.master)
            places = str(leader.advertised), str(slave.advertised)
            rng = random.Random(1)
            found = await migration.compare(client, *places, sample=200, rng=rng, same_positions=False)
            assert found.problems == [] and found.sampled == 200
            found = await migration.compare(client, *places, sample=5, rng=rng)
            assert any("the message differs" in text for text in found.problems)


async def test_two_brokers_with_one_log_are_compared(tmp_path: Path) -> None:
    plain = replace(small(tmp_path / "one"), brokerRole=BrokerRole.ASYNC_MASTER)
    one = await Broker.start(replace(BROKER, brokerId=0), plain)
    two = await Broker.start(replace(BROKER, brokerId=0), replace(plain, storePathRootDir=str(tmp_path / "two")))
    try:
        async with ClusterClient("") as client:
            for broker, more in ((one, 3), (two, 0)):
                await client.create_topic(str(broker.advertised), "T", 2)
                await client.create_topic(str(broker.advertised), f"only-{more}", 1)
                for n in range(20 + more):
                    await broker.store.writes.put(Message("T", n % 2, b"%d" % n, born_timestamp_ms=5))
                broker.offsets.commit("g", "T", 0, 5 + more)
            await one.store.writes.put(Message("only-3", 0, b"x"))
            places = str(two.advertised), str(one.advertised)
            found = await migration.compare(client, *places, sample=50, rng=random.Random(1))
            assert found.behind == 3 and found.late_offsets == 1 and found.sampled == 50
            assert any("only-3 queue 0 with 1 messages is missing" in text for text in found.problems)
            assert any("the message differs" in text for text in found.problems), "their store times differ"
            same = await migration.compare(client, places[1], places[1], sample=50, rng=random.Random(1))
            assert (same.behind, same.late_offsets, same.problems) == (0, 0, []) and same.sampled == 50
    finally:
        await one.stop()
        await two.stop()


def test_a_slave_starts_with_what_differs_from_the_defaults() -> None:
    settings = {"mappedFileSizeCommitLog": "1073741824", "messageDelayLevel": "1s 2s", "flushDiskType": "SYNC_FLUSH"}
    place = Place("b", "C", {0: "a:1", 1: "b:1"})
    found = migration.start_settings(place, Facts(settings, 0, 10, 1, 1, "V4_8_0"))
    assert found == {
        "brokerName": "b", "brokerClusterName": "C", "brokerRole": "SLAVE", "brokerId": "2",
        "messageDelayLevel": "1s 2s", "flushDiskType": "SYNC_FLUSH",
    }  # fmt: skip


def test_every_action_is_a_command() -> None:
    assert RequestCode.UPDATE_BROKER_CONFIG == 25
    with pytest.raises(SystemExit):
        main(["migrate", "plan"])
