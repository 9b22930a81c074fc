"""What the driver and a worker decide, without Spark."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from plan_lab import parsed

from tallystick.spark.cluster.archive import merged_classes
from tallystick.spark.cluster.configuration import spark_settings
from tallystick.spark.cluster.driver import worker_reason
from tallystick.spark.cluster.java import ARCHIVE_VARIABLE, GATEWAY, Java, Ports
from tallystick.spark.cluster.place import Book, PlacedRunner, Visit
from tallystick.spark.cluster.plan import PlanError
from tallystick.spark.cluster.progress import READING, Progress, served
from tallystick.spark.cluster.result import MOST_BYTES, failure_of, fitting, result_of
from tallystick.spark.cluster.worker import (
    executor_number,
    place_of,
    verdict,
    wait_for_driver,
    worker_environment,
)
from tallystick.spark.jobs.findings import Difference, Findings
from tallystick.spark.places import relocated
from tallystick.spark.runner import Inline
from tallystick.spark.volume import LogFile, Source, Volume

pytestmark = pytest.mark.spark

# -- Java and Spark ----------------------------------------------------------------------------------------------------


def test_commands_hold_no_secret_and_say_who_they_are() -> None:
    java = Java("java", ("/a.jar", "/b.jar"), "/x.jsa")
    command = java.executor(number=7, host="w.j", driver="d.j:7077", app="j", cores=2, memory_mib=600)
    told = dict(pairwise(command))
    assert (told["--executor-id"], told["--hostname"], told["--cores"], told["--app-id"]) == ("7", "w.j", "2", "j")
    assert told["--driver-url"] == "spark://CoarseGrainedScheduler@d.j:7077" and told["-cp"] == "/a.jar:/b.jar"
    assert "-Xmx600m" in command and "-XX:SharedArchiveFile=/x.jsa" in command
    assert not [each for each in command if "secret" in each]
    gateway = Java("java", ("/a.jar",)).gateway(512)
    assert gateway[-1] == GATEWAY and not [each for each in gateway if "Archive" in each]


def test_java_is_found_and_an_archive_only_if_it_is_there(tmp_path: Path) -> None:
    (tmp_path / "jars").mkdir()
    for name in ("b.jar", "a.jar", "no.txt"):
        (tmp_path / "jars" / name).touch()
    where = {"SPARK_HOME": str(tmp_path), "JAVA_HOME": "/opt/java", ARCHIVE_VARIABLE: str(tmp_path / "archive")}
    java = Java.found(where)
    assert java.program == "/opt/java/bin/java" and [Path(jar).name for jar in java.jars] == ["a.jar", "b.jar"]
    assert java.archive is None
    (tmp_path / "archive").touch()
    assert Java.found(where).archive == str(tmp_path / "archive")


def test_executors_are_known_by_a_secret_and_found_by_name() -> None:
    settings = spark_settings(parsed(), "the secret", Ports(), "/tmp/x")
    assert settings["spark.authenticate"] == settings["spark.network.crypto.enabled"] == "true"
    assert settings["spark.authenticate.secret"] == "the secret"
    assert settings["spark.driver.host"] == "driver.nightly-job" and settings["spark.locality.wait"] == "10s"
    assert settings["spark.deploy.appIdPattern"] == "nightly", "executors are told no other name"


def test_classes_are_archived_once() -> None:
    assert merged_classes(["# of", "a", "b", "@lambda-proxy x"], ["b", "c"]) == ["a", "b", "c"]


# -- the worker --------------------------------------------------------------------------------------------------------


def test_a_worker_waits_until_the_driver_takes_executors() -> None:
    answers: list[dict[str, Any] | None] = [None, {"step": "starting"}, {"step": "starting"}, {"step": "reading"}]
    slept: list[float] = []
    assert wait_for_driver(lambda: answers.pop(0), slept.append) is True
    assert len(slept) == 3 and answers == []


@pytest.mark.parametrize("last", [None, {"step": "finished"}])
def test_a_worker_that_comes_when_all_is_over_ends(last: dict[str, Any] | None) -> None:
    answers = [{"step": "starting"}, last]
    assert wait_for_driver(lambda: answers.pop(0), lambda _: None) is False


def test_a_worker_is_restarted_only_during_the_run() -> None:
    assert verdict(0, {"step": "reading"}) == 0
    assert verdict(1, {"step": "reading"}) == verdict(-9, {"step": "planning"}) == 1
    assert verdict(1, None) == verdict(1, {"step": "finished"}) == 0


def test_a_worker_knows_its_place() -> None:
    plan = parsed()
    place, host = place_of(plan, "c-0-1")
    environment = worker_environment(place, host, "the secret", "/token", "/tmp/x")
    assert environment["TALLYSTICK_NODE"] == "c-0-1" and environment["SPARK_LOCAL_HOSTNAME"] == place.host
    assert environment["_SPARK_AUTH_SECRET"] == "the secret"
    for node in ("c-0-2", "c-9-9"):
        with pytest.raises(PlanError, match=f"no node '{node}' with a host"):
            place_of(plan, node)
    with pytest.raises(PlanError, match="no node 'c-0-1' with a host 2"):
        place_of(plan, "c-0-1", 2)
    plan = parsed(("sources.1.moreHosts", ["second", "third"]))
    assert [place_of(plan, "c-0-1", number)[1] for number in (1, 2, 3)] == [host, "second", "third"]
    numbers = {executor_number(plan, each, time_s) for each in plan.hosts for time_s in (1795325116, 10**10)}
    assert len(numbers) == 2 * len(plan.hosts) and max(numbers) < 2**31, "another one each, and Spark reads 31 bits"


# -- progress ----------------------------------------------------------------------------------------------------------


def test_progress_is_reported_or_counted_by_spark() -> None:
    time = [100.0]
    progress = Progress(3, lambda: time[0])
    assert progress.to_json() == {
        "step": "starting",
        "done": 0,
        "of": 0,
        "executors": 0,
        "executorsWanted": 3,
        "seconds": 0.0,
    }
    time[0] += 12.34
    progress.step(READING, 8)
    progress.completed = lambda: 3
    assert (progress.to_json()["done"], progress.to_json()["seconds"]) == (3, 12.3)
    for _ in range(8):
        progress.advance()
    progress.completed = lambda: 99
    assert progress.to_json()["done"] == 8
    assert progress.steps == [("starting", 0.0), ("reading", 12.3)]


def test_progress_is_served() -> None:
    with served(Progress(2), 0) as port:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/progress", timeout=5) as answer:
            assert json.loads(answer.read())["executorsWanted"] == 2
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5)


# -- results -----------------------------------------------------------------------------------------------------------


def audit_summary(differences: int) -> dict[str, Any]:
    each = {"source": "c-0-0", "what": "queue", "file": "/stores/ö" + "x" * 90, "offset": 60, "reason": "names " * 20}
    return {
        "job": "audit",
        "clean": not differences,
        "differing": differences,
        "differences": [each] * differences,
        "sources": [{"source": f"c-0-{n}", "records": 5, "bytes": 100, "bound": 123} for n in range(3)],
    }


def rebuild_summary(**found: Any) -> dict[str, Any]:
    """With an output: that it is kept says nothing about whether it is what the broker has."""
    volume = {"source": "c-0", "records": 7, "files": 5, "stopped": None, "skipped": 0, "differing": [], "missing": []}
    return {"job": "rebuild", "out": "/out/rebuilt", "volumes": [volume | found]}


@pytest.mark.parametrize("differences", [0, 1, 1000])
def test_a_result_fits_and_keeps_what_matters(differences: int) -> None:
    via = {"c-0-0": "local", "c-0-1": "http"}
    data = fitting(result_of(parsed(), audit_summary(differences) | {"bytes_read": 600}, via.get, 31.2))
    assert len(data) <= MOST_BYTES
    result = json.loads(data)
    assert result["verdict"] == ("DifferencesFound" if differences else "Clean")
    counted = {"records": 15, "bytes": 300, "rows": 0, "files": 0, "differing": differences}
    assert result["figures"] == counted | {"bytesRead": 600}
    assert result["sources"] == [
        {"node": "c-0-0", "bound": 123, "records": 5, "via": "local"},
        {"node": "c-0-1", "bound": 123, "records": 5, "via": "http"},
        {"node": "c-0-2", "bound": 123, "records": 5, "via": None},
    ]
    assert bool(result["differences"]) == bool(differences) and "error" not in result


def test_a_long_reason_and_many_sources_fit_too() -> None:
    assert len(fitting(failure_of(None, "ü" * 100_000, 1.0))) <= MOST_BYTES
    many = {"message": "m", "sources": [{"node": f"cluster-{n}", "via": "local"} for n in range(1000)]}
    result = json.loads(fitting(many))
    assert len(result["sources"]) > 50 and result["message"] == "m"


@pytest.mark.parametrize(
    ("summary", "verdict", "words"),
    [
        (
            {"job": "stats", "messages": 7, "bytes": 99, "topics": [1], "sources": [], "damaged": 0},
            "Done",
            "7 messages",
        ),
        (
            {"job": "stats", "messages": 7, "bytes": 99, "topics": [], "sources": [], "damaged": 2},
            "DamageFound",
            "2 dama",
        ),
        ({"job": "trace", "sought": "k", "events": [1, 2], "sources": []}, "Done", "2 events of k"),
        (rebuild_summary(), "Clean", "5 files rebuilt of 7 records"),
        (rebuild_summary(differing=["consumequeue/a/0/0"]), "DifferencesFound", "5 files"),
        (rebuild_summary(missing=["consumequeue/a/0/0"]), "DifferencesFound", "5 files"),
        (rebuild_summary(skipped=1), "DamageFound", "5 files"),
    ],
)
def test_verdicts(summary: dict[str, Any], verdict: str, words: str) -> None:
    result = result_of(parsed(), summary, lambda node: None, 1.0)
    assert result["verdict"] == verdict and words in result["message"]


def test_a_workers_reason_is_found_in_sparks_report() -> None:
    report = """Job aborted due to stage failure
  File "x.py", line 3
tallystick.spark.store_client.StoreClientError: http://b:8080: /store: 401 no

\tat org.apache.spark.api.python.BasePythonRunner"""
    assert worker_reason(report) == "http://b:8080: /store: 401 no"
    assert worker_reason("KeyError: 'x'\n at y") is None


# -- where things are read ---------------------------------------------------------------------------------------------


def test_paths_are_moved_wherever_they_are() -> None:
    volume = Volume("c", "/stores/c", (LogFile("/stores/c/commitlog/0", 0, 9, 0),), 0, 9)
    moved = relocated(volume, "/stores/c", "/tmp/m")
    assert moved.root == "/tmp/m" and moved.files[0].path == "/tmp/m/commitlog/0"
    assert relocated(moved, "/tmp/m", "/stores/c") == volume
    findings = Findings(1, [Difference("c", "queue", "/tmp/m/x", 0, "why")], {"units": 1})
    back: dict[str, Any] = relocated({"a": [findings], "b": ("/tmp/mx", b"/tmp/m")}, "/tmp/m", "/s")
    assert back == {
        "a": [Findings(1, [Difference("c", "queue", "/s/x", 0, "why")], {"units": 1})],
        "b": ("/tmp/mx", b"/tmp/m"),
    }


def test_nothing_prefers_a_host_without_an_executor() -> None:
    places = {place.node: place for place in parsed().sources}
    there = {"w-c-0-0.nightly-job", "w-c-0-1.nightly-job"}
    preferred: list[list[str | None]] = []

    class Recording(Inline):
        def __init__(self, host_of: Callable[[Any], str | None]) -> None:
            self.host_of = host_of

        def __call__(self, function: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
            preferred.append([self.host_of(item) for item in items])
            return []

    runner = PlacedRunner(places, Recording, Progress(2), lambda: there)
    items = [Source(f"c-0-{member}", "/") for member in range(3)]
    runner(len, items)  # type: ignore[arg-type]
    there.remove("w-c-0-1.nightly-job")
    runner(len, items)  # type: ignore[arg-type]
    assert preferred == [["w-c-0-0.nightly-job", "w-c-0-1.nightly-job", None], ["w-c-0-0.nightly-job", None, None]]


def test_the_book_says_how_a_node_was_read() -> None:
    book = Book()
    for node, via, host in (("a", "local", "w-a"), ("a", "local", "w-a"), ("b", "local", "w-b"), ("b", "http", "w-a")):
        book.add(Visit(node, via, host, None))
    assert (book.via("a"), book.via("b"), book.via("c")) == ("local", "mixed", None)
    assert book.to_json()[0] == {"node": "a", "via": "local", "host": "w-a", "items": 2}
