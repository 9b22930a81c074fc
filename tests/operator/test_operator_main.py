"""The process as a whole, on an API server in memory: it leads, makes a cluster, gives the lease back at SIGTERM."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from dataclasses import replace
from typing import Any

import kopf
import pytest
from operator_process import SETTINGS, holder, until
from simulated_cluster import Cluster, InlineKube

from tallystick.operator import main


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    async def no_events(**_: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(kopf, "operator", no_events)
    return Cluster(random.Random(1))


async def test_it_leads_and_ends_in_order(world: Cluster) -> None:
    """No event comes from kopf here: the cluster is found by looking for it."""
    world.create()
    running = asyncio.create_task(main.run(SETTINGS, InlineKube(world.api)))
    await until(lambda: world.api.get("statefulsets", "orders-0-2") is not None and world.status)
    assert holder(world) == "operator-0"
    assert world.status["phase"] == "Creating"
    os.kill(os.getpid(), signal.SIGTERM)
    async with asyncio.timeout(30):
        assert await running == 0
    assert holder(world) == ""


async def test_jobs_are_found_without_events_too(world: Cluster) -> None:
    """Those that are over, and do not go by themselves, are not looked at again."""
    for name, status in (("new", {}), ("done", {"phase": "Completed"})):
        body = {"metadata": {"name": name}, "spec": {"clusterName": "later", "job": "audit"}, "status": status}
        world.by_hand("POST", "/apis/tallystick.dev/v1beta1/namespaces/shop/storejobs", body)
    running = asyncio.create_task(main.run(SETTINGS, InlineKube(world.api)))
    await until(lambda: (world.api.get("storejobs", "new") or {})["status"])
    assert (world.api.get("storejobs", "new") or {})["status"]["phase"] == "SubmissionFailed"
    assert (world.api.get("storejobs", "done") or {})["status"] == {"phase": "Completed"}
    os.kill(os.getpid(), signal.SIGTERM)
    async with asyncio.timeout(30):
        assert await running == 0


async def test_one_that_stands_by_ends_at_once(world: Cluster) -> None:
    other = main.Lease(InlineKube(world.api), "system", "tallystick-operator", "operator-1", 15.0, lambda: 0.0)
    await other.acquire()
    running = asyncio.create_task(main.run(SETTINGS, InlineKube(world.api)))
    await until(lambda: len([each for each in asyncio.all_tasks() if not each.done()]) > 2)
    await asyncio.sleep(0.05)
    os.kill(os.getpid(), signal.SIGTERM)
    async with asyncio.timeout(30):
        assert await running == 0
    assert holder(world) == "operator-1"


async def test_a_task_that_ends_ends_the_process(world: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(**_: Any) -> None:
        raise RuntimeError("no watch")

    monkeypatch.setattr(kopf, "operator", broken)
    async with asyncio.timeout(30):
        assert await main.run(SETTINGS, InlineKube(world.api)) == 1
    assert holder(world) == "", "and the next one may lead at once"


async def test_a_lost_lease_ends_the_process_at_once(world: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []
    monkeypatch.setattr(main.os, "_exit", ended.append)
    monkeypatch.setattr(main.logging, "shutdown", lambda: None)
    running = asyncio.create_task(main.run(replace(SETTINGS, lease_seconds=0.3), InlineKube(world.api)))
    await until(lambda: holder(world) == "operator-0")
    world.api.objects["leases", "system", "tallystick-operator"]["metadata"]["resourceVersion"] = "another process's"
    async with asyncio.timeout(30):
        await running
    assert ended == [main.LEASE_LOST]


def test_what_it_cannot_start_with(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("TALLYSTICK_NODE_IMAGE", raising=False)
    assert main.main([]) == 2
    assert "TALLYSTICK_NODE_IMAGE is not set" in capsys.readouterr().err
    assert main.main(["--help"]) == 0
