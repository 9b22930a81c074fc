"""The load generator against a broker that decodes its frames with the standard library."""

import json
import re
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from stand_in import StandIn

pytestmark = pytest.mark.process


def run(generator: Path, mode: str, broker: StandIn, *options: str, status: int = 0) -> dict[str, Any]:
    """Runs it and returns the object that it prints."""
    command = [str(generator), mode, "--address", broker.address, "--topic", "orders", "--timeout", "5", *options]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == status, result.stderr + result.stdout
    return json.loads(result.stdout)


def test_a_send_is_what_the_java_client_sends(generator: Path, stand_in: StandIn) -> None:
    run(generator, "produce", stand_in, "--count", "50", "--size", "100", "--queues", "3", "--tag", "TagA")
    assert len(stand_in.received) == 50
    header, body = stand_in.received[0]
    fields = header.pop("extFields")
    assert header.pop("opaque") >= 0
    assert header == {"code": 310, "flag": 0, "language": "JAVA", "serializeTypeCurrentRPC": "JSON", "version": 373}
    properties = dict(pair.split("\x01") for pair in fields.pop("i").split("\x02")[:-1])
    key = properties.pop("UNIQ_KEY")
    assert properties == {"WAIT": "true", "TAGS": "TagA"}
    assert re.fullmatch(r"[0-9A-F]{32}", key)
    assert int(fields.pop("e")) in range(3)
    assert time.time() - 60 < int(fields.pop("g")) / 1000 < time.time() + 1
    constant = {"a": "loadgen", "b": "orders", "c": "TBW102", "d": "4", "f": "0", "h": "0", "j": "0"}
    assert fields == {**constant, "k": "false", "m": "false"}
    assert len(body) == 100


def test_unique_keys_are_unique_over_runs(generator: Path, stand_in: StandIn) -> None:
    for _ in range(2):
        run(generator, "produce", stand_in, "--count", "300", "--connections", "3", "--outstanding", "5", "--size", "1")
    keys = {header["extFields"]["i"] for header, _ in stand_in.received}
    assert len(keys) == len(stand_in.received) == 600


def test_all_queues_are_used(generator: Path, stand_in: StandIn) -> None:
    run(generator, "produce", stand_in, "--count", "70", "--queues", "7", "--order", "round")
    assert [len(stand_in.queues["orders", queue]) for queue in range(7)] == [10] * 7
    run(generator, "produce", stand_in, "--count", "700", "--queues", "7")
    assert all(len(stand_in.queues["orders", queue]) > 50 for queue in range(7))


def test_what_is_counted_was_acknowledged(generator: Path, stand_in: StandIn) -> None:
    stand_in.refuse_each = 4
    seen = run(generator, "produce", stand_in, "--count", "300", "--connections", "2", "--outstanding", "8")
    assert seen["total_messages"] == seen["messages"] == seen["codes"]["0"] == 300
    assert seen["sent"] == 300 + seen["codes"]["2"] and 95 <= seen["codes"]["2"] <= 101
    assert seen["remarks"] == {"2": r"stand-in says \"2\""}
    assert sum(map(len, stand_in.queues.values())) == 300


def test_the_warm_up_is_not_in_the_rate_but_in_the_total(generator: Path, stand_in: StandIn) -> None:
    seen = run(
        generator, "produce", stand_in, "--seconds", "0.5", "--warmup", "0.5", "--outstanding", "4", "--size", "10"
    )
    assert seen["seconds"] == 0.5 and seen["unanswered"] == 0
    assert seen["rate"] == pytest.approx(seen["messages"] / 0.5, abs=0.1)
    assert seen["messages"] < seen["total_messages"] == len(stand_in.received)
    latency = seen["latency_us"]
    ladder = [latency[name] for name in ("p50", "p90", "p99", "p999", "max")]
    assert ladder[0] > 0 and ladder == sorted(ladder) and latency["mean"] <= latency["max"]


def test_pulls_walk_all_queues_and_begin_again(generator: Path, stand_in: StandIn) -> None:
    for queue in range(3):
        stand_in.queues["orders", queue] = [b"x" * 10] * 100
    seen = run(generator, "pull", stand_in, "--count", "700", "--queues", "3")
    assert seen["total_messages"] >= 700 and seen["codes"]["19"] >= 6
    asked = [(int(h["extFields"]["queueId"]), int(h["extFields"]["queueOffset"])) for h, _ in stand_in.received]
    once = [(queue, offset) for queue in range(3) for offset in (0, 32, 64, 96, 100)]
    assert asked[:30] == once + once
    assert all(header["extFields"]["sysFlag"] == "4" for header, _ in stand_in.received)


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (lambda body: body[:-1], "bytes left|no record"),
        (lambda body: body[:4] + b"\0" + body[5:], "magic"),
        (lambda body: body[len(body) // 32 :], "offset 1"),
        (lambda body: body + body, "offset 0"),
        (lambda body: b"", "no records"),
    ],
)
def test_spoilt_records_end_the_run(generator: Path, stand_in: StandIn, spoil: Any, named: str) -> None:
    stand_in.queues["orders", 0] = [b"x" * 10] * 100
    stand_in.spoil = spoil
    seen = run(generator, "pull", stand_in, "--queues", "1", status=1)
    assert re.search(named, seen["errors"][0]), seen["errors"]


def test_empty_queues_are_no_rate(generator: Path, stand_in: StandIn) -> None:
    stand_in.queues["orders", 0] = []
    seen = run(generator, "pull", stand_in, "--queues", "1", status=1)
    assert "no messages in the queues [0]" in seen["errors"][0] and seen["messages"] == 0


def test_wrong_options_are_named(generator: Path) -> None:
    for options, named in ((["produce", "--size", "x"], "--size x"), (["pull", "--topic", "t"], "--address")):
        prefix = ["--address", "127.0.0.1:9", "--topic", "t"] if "--size" in options else []
        result = subprocess.run([str(generator), *options, *prefix], capture_output=True, text=True)
        assert result.returncode == 2 and named in result.stderr and result.stdout == ""


def test_no_process_answers(generator: Path) -> None:
    command = [str(generator), "produce", "--address", "127.0.0.1:9", "--topic", "t"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 1 and "127.0.0.1:9" in result.stderr


def test_requests_by_the_clock_are_no_more_than_it_says(generator: Path, stand_in: StandIn) -> None:
    options = ["--every", "0.05", "--connections", "4", "--seconds", "1"]
    seen = run(generator, "produce", stand_in, *options)
    assert 4 * 10 < seen["sent"] == seen["total_messages"] <= 4 * 21
    counted = run(generator, "produce", stand_in, "--every", "0.01", "--connections", "3", "--count", "10")
    assert counted["total_messages"] == counted["sent"] == 10
