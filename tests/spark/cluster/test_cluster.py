"""A real cluster on loopback: a driver and workers as processes, each worker a separate host with one volume."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from cluster_lab import PATIENCE_S, Cluster, place
from store_server import serving

from tallystick.spark.volume import open_volume

pytest.importorskip("pyspark", reason="needs the group `spark`")

pytestmark = pytest.mark.spark

Golden = Callable[[str], Path]


def test_each_volume_is_read_by_its_own_worker_and_over_http_without_one(
    golden: Golden, cluster: Callable[..., Cluster]
) -> None:
    """Two workers for three volumes; the third's broker serves its files. All roots are on this machine: that a worker
    reads the volume of another by its path would be seen as `local` on the wrong host."""
    roots = [golden(f"dledger-n{number}") for number in range(3)]
    path = min(roots[1].glob("consumequeue/GoldA/0/*"))
    data = bytearray(path.read_bytes())
    data[20 * 2 + 7] ^= 1
    path.write_bytes(data)
    with serving(roots[2], open_volume(roots[2]).bound) as server:
        run = cluster([place(0, roots[0]), place(1, roots[1]), place(2, roots[2], server.address, host=False)])
        workers = [run.worker("c-0-0"), run.worker("c-0-1")]
        driver = run.driver()
        steps = []
        while driver.poll() is None:
            if (progress := run.progress()) is not None and progress["step"] not in steps:
                steps.append(progress["step"])
                assert progress["executorsWanted"] == 2
            time.sleep(0.05)
        assert driver.returncode == 0, run.told()
        assert [worker.wait(30) for worker in workers] == [0, 0], "they end with the driver"
    result = run.result
    assert {each["node"]: each["via"] for each in result["sources"]} == {
        "c-0-0": "local",
        "c-0-1": "local",
        "c-0-2": "http",
    }
    assert result["verdict"] == "DifferencesFound" and result["figures"]["differing"] == 1
    assert f"c-0-1: queue: {path} at byte 40" in result["differences"][0]
    whole = json.loads(run.told().rsplit("\n{", 1)[1].join(["{", ""]).splitlines()[0])
    hosts = {each["node"]: each["host"] for each in whole["read"] if each["via"] == "local"}
    assert hosts == {"c-0-0": "127.0.0.2", "c-0-1": "127.0.0.3"}
    assert "waiting for executors" in steps and steps.index("waiting for executors") >= steps.index("starting")


def test_a_worker_that_dies_costs_speed_alone(golden: Golden, cluster: Callable[..., Cluster]) -> None:
    """Its executor is killed as soon as Spark has it."""
    roots = [golden(f"dledger-n{number}") for number in range(2)]
    with serving(roots[1], open_volume(roots[1]).bound) as server:
        run = cluster([place(0, roots[0]), place(1, roots[1], server.address)])
        run.worker("c-0-0")
        lost = run.worker("c-0-1")
        driver = run.driver()
        while driver.poll() is None and ((run.progress() or {}).get("executors", 0)) < 2:
            time.sleep(0.02)
        lost.terminate()
        assert driver.wait(PATIENCE_S) == 0, run.told()
    assert run.result["verdict"] == "Clean"
    assert run.result["sources"][0]["via"] == "local" and run.result["sources"][1]["via"] in ("http", "mixed")


def test_it_ends_in_order_on_sigterm_and_without_executors(golden: Golden, cluster: Callable[..., Cluster]) -> None:
    root = golden("dledger-n0")
    run = cluster([place(0, root)], executorsWaitSeconds=1)
    driver = run.driver()
    assert driver.wait(PATIENCE_S) == 2
    assert run.result["error"] == "none of 1 executors connected within 1 seconds"
    run = cluster([place(0, root)])
    driver = run.driver()
    while driver.poll() is None and (run.progress() or {}).get("step") != "waiting for executors":
        time.sleep(0.02)
    driver.send_signal(signal.SIGTERM)
    assert driver.wait(30) == 2
    assert run.result["error"] == "it received SIGTERM"


def test_an_invalid_store_is_the_reason(tmp_path: Path, cluster: Callable[..., Cluster]) -> None:
    (tmp_path / "empty").mkdir()
    run = cluster([place(0, tmp_path / "empty")], job="stats")
    worker, driver = run.worker("c-0-0"), run.driver()
    assert driver.wait(PATIENCE_S) == 2, run.told()
    assert worker.wait(30) == 0
    assert run.result["error"].startswith("c-0-0: ") and "is not a store" in run.result["error"]
