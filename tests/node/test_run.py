"""`tally run` and its parts as real processes: the ready line, the HTTP port, signals, the store they leave."""

import json
import re
import signal
import socket
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tally_process import TallyProcess, tally

pytestmark = pytest.mark.process


def samples(text: str) -> dict[str, dict[str, float]]:
    """Every sample of a metrics page: by name, then by topic ('' for those that have none)."""
    found: dict[str, dict[str, float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[sample.labels.get("topic", "")] = sample.value
    return found


def produce(process: TallyProcess, topic: str, *bodies: str) -> None:
    result = tally("produce", topic, *bodies, "-n", process.nameserver)
    assert result.returncode == 0, result.stderr


def consume(process: TallyProcess, topic: str) -> list[str]:
    result = tally("consume", topic, "--once", "-n", process.nameserver)
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


def test_it_tells_where_it_is_and_serves_there(tmp_path: Path) -> None:
    with TallyProcess(tmp_path, fresh=True) as process:
        assert set(process.places) == {"name server", "broker", "http"}
        assert all(re.fullmatch(r"127\.0\.0\.1:[1-9][0-9]*", place) for place in process.places.values())
        produce(process, "Greetings", "hello", "world")
        # The route leads to the broker's real port, and so do the ids of messages.
        shown = tally("consume", "Greetings", "--once", "--json", "-n", process.nameserver).stdout
        ids = [json.loads(line)["messageId"] for line in shown.splitlines()]
        port = int(process.places["broker"].rpartition(":")[2])
        assert [(name[:8], int(name[8:16], 16)) for name in ids] == [("7F000001", port)] * 2


def test_probes_and_metrics(tmp_path: Path) -> None:
    with TallyProcess(tmp_path, fresh=True) as process:
        assert process.get("/healthz") == (200, "ok\n")
        assert process.get("/readyz") == (200, "ok\n")
        assert process.get("/nothing")[0] == 404
        assert process.get("/metrics")[0] == 200
        produce(process, "Counted", "one", "two", "three")
        consume(process, "Counted")
        after = samples(process.get("/metrics")[1])
        assert after["rocketmq_messages_in_total"]["Counted"] == 3
        assert after["rocketmq_messages_out_total"]["Counted"] == 3
        assert after["rocketmq_throughput_in_total"]["Counted"] > 3 * len("three")
        assert after["rocketmq_storage_max_position_bytes"][""] == after["rocketmq_storage_size"][""] > 0
        assert after["rocketmq_storage_writable"][""] == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_in_order(tmp_path: Path, number: int) -> None:
    with TallyProcess(tmp_path, fresh=True) as process:
        produce(process, "Kept", "a", "b")
        assert (process.store / "abort").exists()
        assert process.end(number) == 0
    assert not (process.store / "abort").exists()
    assert "Traceback" not in process.log.read_text()
    assert tally("store", "verify", str(process.store)).returncode == 0
    with TallyProcess(tmp_path, fresh=True) as process:
        assert sorted(consume(process, "Kept")) == ["a", "b"]


def test_a_service_manager_learns_when_it_serves_and_when_it_stops(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(60)
        with TallyProcess(tmp_path, fresh=True, NOTIFY_SOCKET=str(tmp_path / "notify")) as process:
            assert manager.recv(100) == b"READY=1"
            assert process.end() == 0
        assert manager.recv(100) == b"STOPPING=1"


def test_a_service_manager_that_is_gone_has_no_effect(tmp_path: Path) -> None:
    with TallyProcess(tmp_path, fresh=True, NOTIFY_SOCKET="@tallystick-no-manager") as process:
        produce(process, "Kept", "stored")
        assert process.end() == 0
    assert "cannot notify the service manager at @tallystick-no-manager: Connection refused" in process.log.read_text()


def test_a_kill_leaves_the_mark_and_the_next_start_serves_what_was_answered(tmp_path: Path) -> None:
    with TallyProcess(tmp_path, fresh=True) as process:
        produce(process, "Kept", "a", "b")
        process.end(signal.SIGKILL)
    assert (process.store / "abort").exists()
    with TallyProcess(tmp_path, fresh=True) as process:
        assert sorted(consume(process, "Kept")) == ["a", "b"]


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    with TallyProcess(tmp_path, fresh=True) as process:
        # Its loop sees both signals at once, or the second while it stops: never in order, unless it was quicker.
        process.process.send_signal(signal.SIGSTOP)
        process.process.send_signal(signal.SIGINT)
        process.process.send_signal(signal.SIGTERM)
        assert process.end(signal.SIGCONT) == 130
    assert (process.store / "abort").exists()


def test_a_second_process_is_kept_out_of_the_folder(tmp_path: Path) -> None:
    with TallyProcess(tmp_path, fresh=True) as process:
        ports = ("--port", "0", "--nameserver-port", "0", "--http-port", "0")
        result = tally("run", "--dir", str(tmp_path / "data"), *ports)
        assert result.returncode == 2
        assert "Traceback" not in result.stderr
        assert f"is already open: process {process.process.pid} holds" in result.stderr.splitlines()[-1]
        produce(process, "Kept", "still there")


@pytest.mark.parametrize(
    ("flag", "setting"),
    [
        ("--port", "broker.listenPort"),
        ("--nameserver-port", "nameserver.listenPort"),
        ("--http-port", "http.port"),
    ],
)
def test_a_port_that_is_taken_is_named_and_no_store_is_made(tmp_path: Path, flag: str, setting: str) -> None:
    free = {"--port": "0", "--nameserver-port": "0", "--http-port": "0"}
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        flags = [part for pair in (free | {flag: str(port)}).items() for part in pair]
        result = tally("run", "--dir", str(tmp_path / "data"), *flags)
    assert result.returncode == 2
    expected = f"tally: cannot listen on 127.0.0.1:{port} ({setting}): Address already in use"
    assert expected in result.stderr.splitlines()
    assert not (tmp_path / "data" / "store").exists()


def test_the_port_for_vip_clients_that_is_taken_is_explained(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ports = ("--port", str(port + 2), "--nameserver-port", "0", "--http-port", "0")
        result = tally("run", "--dir", str(tmp_path / "data"), *ports)
    assert result.returncode == 2
    assert f"cannot listen on 127.0.0.1:{port} (broker.listenPort - 2, the port for VIP clients;" in result.stderr


def test_a_store_that_cannot_be_opened_is_one_line(tmp_path: Path) -> None:
    ports = ("--port", "0", "--nameserver-port", "0", "--http-port", "0")
    log = tmp_path / "data" / "store" / "commitlog"
    log.mkdir(parents=True)
    (log / "00000000000000000000").write_bytes(b"torn")
    result = tally("run", "--dir", str(tmp_path / "data"), *ports)
    assert result.returncode == 2
    assert "Traceback" not in result.stderr
    assert re.search(r"^tally: .*commitlog/00000000000000000000: has 4 bytes instead of", result.stderr, re.MULTILINE)


def test_broker_and_name_server_apart(tmp_path: Path) -> None:
    for name in ("ns", "broker"):
        (tmp_path / name).mkdir()
    kv = f"nameserver.kvConfigPath={tmp_path / 'kv.json'}"
    names = ("--host", "127.0.0.1", "--port", "0", "--set", kv)
    broker = ("--host", "localhost", "--port", "0", "--dir", "store", "--set", "brokerName=b")
    with TallyProcess(tmp_path / "ns", *names, what="nameserver", fresh=True) as nameserver:
        assert set(nameserver.places) == {"name server", "http"}
        assert nameserver.get("/readyz") == (200, "ok\n")
        status, metrics = nameserver.get("/metrics")
        assert status == 200 and "tally_nameserver_brokers 0.0" in metrics and "rocketmq_" not in metrics
        known = ("--nameserver", nameserver.nameserver)
        with TallyProcess(tmp_path / "broker", *broker, *known, what="broker", fresh=True) as process:
            assert set(process.places) == {"broker", "http"}
            produce(nameserver, "T", "through the name server")
            assert process.end() == 0
        gone = tally("produce", "T", "nobody there", *known)
        assert gone.returncode != 0 and "Traceback" not in gone.stderr
        assert nameserver.end() == 0


def test_no_file_is_for_other_users_of_the_machine(tmp_path: Path) -> None:
    with TallyProcess(tmp_path) as process:
        produce(process, "Private", "hello")
        made = [path for path in process.store.rglob("*") if path.name != "lock"]
        names = {path.relative_to(process.store).parts[0] for path in made}
        assert {"commitlog", "config", "consumequeue"} <= names
        for path in made:
            assert not path.stat().st_mode & 0o007, f"{path}: {path.stat().st_mode:o}"
