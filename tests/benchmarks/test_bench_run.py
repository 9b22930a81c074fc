"""The benchmark as a command, with a small broker in the place of ours: what it prints and what it leaves behind."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parent.parent.parent
STAND_IN = Path(__file__).resolve().parent / "stand_in.py"
PORT_BASE = 23_400 + os.getpid() % 40 * 200  # below 32768, and not the same in two test runs at once


@pytest.fixture
def command(generator: Path, tmp_path: Path) -> list[str]:
    """The bench, with the stand-in as `tally`, without RocketMQ."""
    tally = tmp_path / "tally"
    tally.write_text(f'#!/bin/sh\nexec {sys.executable} {STAND_IN} "$@"\n')
    tally.chmod(0o755)
    options = ["--tally", str(tally), "--work", str(tmp_path / "work"), "--port-base", str(PORT_BASE), "--no-peer"]
    return [sys.executable, str(ROOT / "benchmarks" / "bench.py"), *options, "--quick", "--turns", "1"]


def left_behind(tmp_path: Path) -> list[str]:
    """Processes whose command line names this test's folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue  # ended while we looked
            if str(tmp_path) in line or f"127.0.0.1:{PORT_BASE + 11}" in line:
                found.append(line)
    return found


def test_rows_are_measured_and_written(command: list[str], tmp_path: Path) -> None:
    files = ["--json", "--markdown", str(tmp_path / "doc.md"), "--chart", str(tmp_path / "chart.svg")]
    rows = ["--rows", "async-1x1-1k,pull-1", "--seconds", "0.5"]
    result = subprocess.run([*command, *rows, *files], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout.splitlines()[-1])
    assert {turn["row"] for turn in found["turns"]} == {"async-1x1-1k", "pull-1"}
    assert all(turn["void"] is None and turn["rate"] > 0 for turn in found["turns"])
    assert found["turns"][0]["cpu_s_per_million"] > 0 and found["turns"][0]["anonymous_bytes"] > 1e6
    assert "Async flush, 1 x 1, 1 KiB" in result.stdout
    assert "| Async flush, 1 x 1, 1 KiB |" in (tmp_path / "doc.md").read_text()
    assert (tmp_path / "chart.svg").read_text().startswith("<svg")
    assert left_behind(tmp_path) == []
    assert not (tmp_path / "work" / "ours").exists()


def test_a_third_broker_has_a_column_and_leaves_nothing_behind(command: list[str], tmp_path: Path) -> None:
    programs = tmp_path / "rust" / "bin"
    programs.mkdir(parents=True)
    serve = f"exec {sys.executable} {STAND_IN} run --dir {tmp_path}/third --port"
    for name, port in (
        ("rocketmq-namesrv-rust", '"$2"'),
        ("rocketmq-broker-rust", """$(sed -n 's/^listenPort = //p' "$4")"""),
    ):
        (programs / name).write_text(f"#!/bin/sh\n{serve} {port}\n")
        (programs / name).chmod(0o755)
    options = ["--rows", "async-1x1-1k", "--seconds", "0.3", "--json", "--rust", str(programs.parent)]
    result = subprocess.run([*command, *options], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout.splitlines()[-1])
    assert [turn["side"] for turn in found["turns"]] == ["ours", "rust"]
    (line,) = found["lines"]
    assert line["third"]["median"] > 0 and line["third_advantage"] > 0
    assert "rocketmq-rust 1.0.0" in result.stdout
    assert left_behind(tmp_path) == []
    assert not (tmp_path / "work" / "rust" / "store").exists()


def test_a_missing_program_of_the_third_broker_is_named(command: list[str], tmp_path: Path) -> None:
    options = ["--rows", "async-1x1-1k", "--rust", str(tmp_path / "nothing")]
    result = subprocess.run([*command, *options], capture_output=True, text=True, timeout=120)
    assert result.returncode == 2
    assert f"{tmp_path}/nothing/bin/rocketmq-namesrv-rust is missing" in result.stderr


def test_an_open_loop_has_latencies_and_says_what_it_did_not_reach(command: list[str], tmp_path: Path) -> None:
    options = ["--rows", "open-2000", "--set", "stallS=2", "--json"]
    result = subprocess.run([*command, *options], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    (turn,) = json.loads(result.stdout.splitlines()[-1])["turns"]
    assert turn["void"] is None and "rate" not in turn
    assert turn["max_us"] >= 1_900_000, "the stall is part of the slowest message"
    assert turn["max_us"] >= turn["p999_us"] >= turn["p99_us"] >= 1_000_000, "messages that were due in it are charged"


def test_a_broker_that_loses_messages_has_no_rate(command: list[str], tmp_path: Path) -> None:
    options = ["--rows", "async-64x1-1k", "--seconds", "0.3", "--set", "loseEach=50", "--json"]
    result = subprocess.run([*command, *options], capture_output=True, text=True, timeout=120)
    assert result.returncode == 1, result.stderr
    lines = json.loads(result.stdout.splitlines()[-1])["lines"]
    assert {line["verdict"] for line in lines} == {"VOID"}
    assert "acknowledged" in lines[0]["ours"]["void"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_bench_leaves_no_process(command: list[str], tmp_path: Path, number: signal.Signals) -> None:
    options = ["--rows", "async-1x1-1k", "--seconds", "60"]
    with subprocess.Popen([*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        end = time.monotonic() + 60
        while not any("loadgen" in line for line in left_behind(tmp_path)):
            assert process.poll() is None and time.monotonic() < end, "the load did not begin"
            time.sleep(0.05)
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130 and "interrupted" in errors, errors
    assert left_behind(tmp_path) == []


def test_what_a_killed_bench_left_is_ended_by_the_next(command: list[str], tmp_path: Path) -> None:
    options = ["--rows", "async-1x1-1k", "--seconds", "2"]
    with subprocess.Popen([*command, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        end = time.monotonic() + 60
        while not any("loadgen" in line for line in left_behind(tmp_path)):
            assert process.poll() is None and time.monotonic() < end, "the load did not begin"
            time.sleep(0.05)
        process.kill()
        process.wait()
    assert any("stand_in" in line for line in left_behind(tmp_path))
    result = subprocess.run(
        [*command, "--rows", "async-1x1-1k", "--seconds", "0.3"], capture_output=True, text=True, timeout=120
    )
    assert result.returncode == 0, result.stderr
    assert not any("stand_in" in line for line in left_behind(tmp_path))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--rows", "snyc-1"], "no row 'snyc-1'"),
        (["--port-base", "40000"], "--port-base"),
        (["--null"], "exclude each other"),
        (["--tally", "/nowhere/tally", "--rows", "sync-1"], "/nowhere/tally"),
    ],
)
def test_what_cannot_be_measured_is_named(command: list[str], options: list[str], named: str) -> None:
    result = subprocess.run([*command, *options], capture_output=True, text=True, timeout=60)
    assert result.returncode == 2 and named in result.stderr and "Traceback" not in result.stderr
