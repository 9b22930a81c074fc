"""Stores that are not in folders: brokers over HTTP, name servers, backups; and who may read them."""

from __future__ import annotations

import json
import os
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from aged_log import dispatch_log, write_log
from s3_lab import S3Lab
from store_server import StoreServer, serving
from tally_process import TallyProcess, tally

from tallystick.spark import places, store_client
from tallystick.spark.access import KEY_FILE_VARIABLE, Access
from tallystick.spark.jobs import audit, cli, stats
from tallystick.spark.options import OptionError, ReadOptions
from tallystick.spark.places import opened, reaching_runner, stores_at
from tallystick.spark.runner import inline
from tallystick.spark.splits import plan
from tallystick.spark.store_client import RemoteQueues, StoreClient, StoreClientError
from tallystick.spark.volume import VolumeError, open_volume
from tallystick.store import _kernel

Golden = Callable[[str], Path]
MESSAGES = 300
SECRET = "open-sesame"


def reading(spark: Any, path: str, **options: str) -> Any:
    return spark.read.format("tallystick").options(**options).load(path)


def rows_of(frame: Any) -> list[dict[str, Any]]:
    rows = [{name: value for name, value in row.asDict().items() if name != "source"} for row in frame.collect()]
    return sorted(rows, key=lambda row: row["physical_offset"])


def produced(broker: TallyProcess) -> None:
    said = tally("topic", "create", "orders", "--queues", "2", "-n", broker.nameserver)
    assert said.returncode == 0, said.stderr
    lines = "".join(f"order {number}\n" for number in range(MESSAGES))
    said = tally("produce", "orders", "--tag", "paid", "-n", broker.nameserver, input=lines)
    assert said.returncode == 0, said.stderr


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TallyProcess]:
    with TallyProcess(tmp_path_factory.mktemp("broker")) as process:
        produced(process)
        yield process


def http_of(broker: TallyProcess) -> str:
    return f"http://{broker.places['http']}"


# -- with Spark --------------------------------------------------------------------------------------------------------


@pytest.mark.process
@pytest.mark.spark_versions
def test_a_broker_and_a_name_server_give_what_the_folder_has(spark: Any, broker: TallyProcess) -> None:
    here = rows_of(reading(spark, str(broker.store), columns="*"))
    assert len(here) == MESSAGES
    for path in (http_of(broker), f"tally://{broker.nameserver}", f"tally://{broker.nameserver}/DefaultCluster"):
        there = reading(spark, path, columns="*", splitBytes="20000")
        assert rows_of(there) == here
        assert {row["source"] for row in there.select("source").distinct().collect()} == {"broker-a"}
    both = reading(spark, f"x={http_of(broker)},y={broker.store}", columns="source")
    assert sorted(row[0] for row in both.collect()) == ["x"] * MESSAGES + ["y"] * MESSAGES
    found = reading(spark, http_of(broker)).where("topic = 'orders' and queue_id = 1 and queue_offset = 7")
    assert [row["queue_offset"] for row in found.collect()] == [7]


@pytest.mark.process
@pytest.mark.spark_versions
def test_a_stream_follows_a_broker(spark: Any, broker: TallyProcess, tmp_path: Path) -> None:
    def run() -> list[int]:
        query = (
            spark.readStream.format("tallystick")
            .load(http_of(broker))
            .where("topic = 'orders'")
            .select("physical_offset")
            .writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(tmp_path / "out"))
        )
        query.awaitTermination(180)
        assert query.exception() is None
        return sorted(row[0] for row in spark.read.parquet(str(tmp_path / "out")).collect())

    first = run()
    assert len(first) == MESSAGES
    assert run() == first, "nothing twice"


@pytest.mark.process
@pytest.mark.spark_versions
def test_a_table_of_the_catalog_keeps_its_options(spark: Any, broker: TallyProcess) -> None:
    before = set((broker.store / "commitlog").iterdir()) | set((broker.store / "consumequeue").rglob("*"))
    for place in (http_of(broker), str(broker.store)):
        spark.sql(f"create table paid using tallystick options (path '{place}', columns 'queue_id,body')")
        try:
            rows = spark.sql("select decode(body, 'UTF-8') as text from paid where queue_id = 1").collect()
            assert {row["text"] for row in rows} == {f"order {number}" for number in range(1, MESSAGES, 2)}
        finally:
            spark.sql("drop table paid")
    assert before and all(path.exists() for path in before), "to drop a table removes no store"
    with pytest.raises(Exception, match="use tokenFile"):
        spark.sql(f"create table paid using tallystick options (path '{http_of(broker)}', token '{SECRET}')")
    spark.sql(f"create temporary view orders using tallystick options (path '{http_of(broker)}')")
    assert spark.sql("select count(*) from orders where topic = 'orders'").collect()[0][0] == MESSAGES


@pytest.mark.process
@pytest.mark.spark_versions
def test_a_time_can_be_requested_as_a_timestamp(spark: Any, broker: TallyProcess) -> None:
    times = "store_timestamp_ms timestamp, physical_offset long, queue_id long"
    frame = spark.read.format("tallystick").schema(times).load(str(broker.store))
    plain = reading(spark, str(broker.store)).selectExpr("timestamp_millis(store_timestamp_ms)", "physical_offset")
    assert sorted(frame.select("physical_offset", "store_timestamp_ms").collect()) == sorted(
        plain.select("physical_offset", "timestamp_millis(store_timestamp_ms)").collect()
    )
    wrong = spark.read.format("tallystick").schema("store_timestamp_ms string").load(str(broker.store))
    with pytest.raises(Exception, match="store_timestamp_ms is bigint, and cannot be read as another type"):
        wrong.collect()


@pytest.mark.process
def test_no_plan_log_or_error_shows_a_token(spark: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    token = tmp_path / "token"
    token.write_text(f"{SECRET}\n")
    with TallyProcess(tmp_path, "--set", f"readTokenFile={token}") as broker:
        produced(broker)
        given = reading(spark, http_of(broker), token=SECRET, columns="topic")
        assert given.where("topic = 'orders'").count() == MESSAGES
        given.explain(True)
        assert reading(spark, http_of(broker), tokenFile=str(token), columns="topic").count() >= MESSAGES
        for options in ({}, {"token": f"{SECRET}x"}):
            with pytest.raises(Exception, match=r"401.*a valid token is required") as refused:
                reading(spark, http_of(broker), **options).count()
            assert SECRET not in str(refused.value)
        with pytest.raises(Exception, match="cannot be read") as refused:
            reading(spark, http_of(broker), tokenFile=str(tmp_path / "none")).count()
    assert SECRET not in "".join(capfd.readouterr())
    assert SECRET not in repr(ReadOptions.parse({"path": "http://b:1", "token": SECRET}))


# -- without Spark -----------------------------------------------------------------------------------------------------


def stats_of(path: str, **options: str) -> Any:
    parsed = ReadOptions.parse({"path": path} | options)
    return stats.run(parsed, reaching_runner(inline, parsed.sources()))


def records_of(path: str, **options: str) -> list[int]:
    return [source["records"] for source in stats_of(path, **options)["sources"]]


@pytest.mark.process
@pytest.mark.parametrize("encrypted", [False, True])
def test_a_backup_is_read_in_place(broker: TallyProcess, tmp_path: Path, s3: S3Lab, encrypted: bool) -> None:
    environment = {"AWS_ENDPOINT_URL": s3.endpoint}
    key = tmp_path / "key"
    if encrypted:
        assert tally("backup", "new-key", str(key)).returncode == 0
        environment[KEY_FILE_VARIABLE] = str(key)
    bucket = f"s3://{s3.make_bucket()}/backups"
    (expected,) = records_of(str(broker.store))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        for place, address in ((bucket, bucket), (str(tmp_path / "backups"), f"backup:{tmp_path / 'backups'}")):
            made = tally("backup", "create", str(broker.store), place, "--http", broker.places["http"], env=os.environ)
            assert made.returncode == 0, made.stderr
            for text in (address, f"{address}/DefaultCluster/broker-a/latest"):
                assert records_of(text) == [expected]
        if encrypted:
            patch.delenv(KEY_FILE_VARIABLE)
            assert records_of(address, keyFile=str(key)) == [expected]
            with pytest.raises(VolumeError, match="is encrypted"):
                records_of(address)
        (piece, *_) = (tmp_path / "backups").rglob("log/*")
        piece.write_bytes(piece.read_bytes()[:-1] + b"?")
        with pytest.raises(VolumeError, match="is damaged: its SHA-256 differs"):
            records_of(address, **({"keyFile": str(key)} if encrypted else {}))
    with pytest.raises(VolumeError, match="there are no backups"):
        records_of(f"backup:{tmp_path / 'nothing'}")


@pytest.mark.process
def test_a_job_reads_a_broker(broker: TallyProcess, capsys: pytest.CaptureFixture[str]) -> None:
    for path in (http_of(broker), f"tally://{broker.nameserver}"):
        assert cli.main(["stats", "--path", path, "--master", "none", "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert [source["source"] for source in found["sources"]] == ["broker-a"]
        assert cli.main(["audit", "--path", path, "--master", "none"]) == 0, capsys.readouterr()
        capsys.readouterr()
    assert cli.main(["stats", "--path", "tally://127.0.0.1:1", "--master", "none"]) == 2
    assert "name server 127.0.0.1:1: no name server answers" in capsys.readouterr().err


@pytest.mark.process
def test_a_name_server_without_a_broker_that_can_be_read(broker: TallyProcess, tmp_path: Path) -> None:
    with pytest.raises(VolumeError, match="knows no broker in the cluster Other; it knows DefaultCluster"):
        stores_at(f"tally://{broker.nameserver}/Other", Access())
    with TallyProcess(tmp_path, what="nameserver") as alone:
        with pytest.raises(VolumeError, match=r"it knows no broker$"):
            stores_at(f"tally://{alone.nameserver}", Access())
        folder = tmp_path / "mute"
        folder.mkdir()
        mute = ("--http-port", "-1", "--port", "0", "--dir", str(folder / "data"))
        with (
            TallyProcess(folder, *mute, "--set", f"namesrvAddr={alone.nameserver}", what="broker"),
            pytest.raises(VolumeError, match="states no httpAddress"),
        ):
            stores_at(f"tally://{alone.nameserver}", Access())


def test_a_pattern_names_all_folders_that_fit(tmp_path: Path) -> None:
    roots = [str(tmp_path / name / "store") for name in ("a", "b")]
    for root in roots:
        Path(root).mkdir(parents=True)
    (tmp_path / "file" / "x").mkdir(parents=True)
    (tmp_path / "file" / "store").touch()
    for text in (f"{tmp_path}/*/store", f"file://{tmp_path}/?/store", f"file:{tmp_path}/[ab]/store"):
        assert [each.root for each in stores_at(text, Access())] == roots
    (tmp_path / "[ab]").mkdir()
    assert [each.root for each in stores_at(f"{tmp_path}/[ab]", Access())] == [f"{tmp_path}/[ab]"], "it has this name"
    with pytest.raises(OptionError, match="no folder fits"):
        ReadOptions.parse({"path": f"{tmp_path}/x*"}).sources()
    with pytest.raises(OptionError, match="names 2 stores: leave out the name"):
        ReadOptions.parse({"path": f"one={tmp_path}/?/store"}).sources()


@pytest.mark.parametrize(
    "text",
    ["ftp://host/x", "http://user:word@host:1", "http://host:1/?token=x", "k8s://shop", "k8s:///orders", "http://"],
)
def test_addresses_that_cannot_be(text: str) -> None:
    with pytest.raises(OptionError, match="option path") as refused:
        ReadOptions.parse({"path": text}).sources()
    assert "word" not in str(refused.value)


def test_a_cluster_in_kubernetes_is_found_by_its_name_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(servers: str, cluster: str | None) -> dict[str, str]:
        raise VolumeError(f"asked {servers} for {cluster}")

    monkeypatch.setattr("tallystick.spark.name_server.brokers_of", answer)
    with pytest.raises(VolumeError, match=r"^asked orders-nameserver\.shop\.svc:9876 for None$"):
        stores_at("k8s://shop/orders", Access())


def test_another_process_at_the_address_of_a_broker_is_not_read(
    golden: Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = golden("clean")
    with serving(root, open_volume(root).bound) as server:
        monkeypatch.setattr("tallystick.spark.name_server.brokers_of", lambda *_: {"broker-b": server.address})
        with pytest.raises(OptionError, match="the broker broker-b states"):
            ReadOptions.parse({"path": "tally://anywhere"}).sources()


def test_only_the_bytes_of_a_filter_cross(golden: Golden) -> None:
    pytest.importorskip("pyspark.sql.datasource", reason="needs the group `spark`")
    from pyspark.sql.pandas.types import from_arrow_schema

    from tallystick.spark.columns import schema_of
    from tallystick.spark.source import MessageReader

    root = golden("clean")
    with serving(root, open_volume(root).bound) as server:
        given = {"path": f"a={server.address}", "topic": "GoldA", "queue": "1", "from": "3", "to": "4"}
        reader = MessageReader(ReadOptions.parse(given), from_arrow_schema(schema_of(["topic", "queue_offset"])))
        partitions = reader.partitions()
        rows = [row for each in partitions for batch in reader.read(each) for row in batch.to_pylist()]
        crossed = sum(end - begin for path, begin, end in server.read if path.startswith("commitlog/"))
    assert rows == [{"topic": "GoldA", "queue_offset": 3}]
    assert crossed < open_volume(root).bound / 4


def test_queues_that_cost_more_than_they_save_are_not_fetched(golden: Golden, monkeypatch: pytest.MonkeyPatch) -> None:
    root = golden("clean")
    with serving(root, open_volume(root).bound) as server:
        (source,) = ReadOptions.parse({"path": server.address}).sources()

        def fetched() -> set[str]:
            server.read.clear()
            with opened(source) as volume:
                assert plan(volume, split_bytes=100_000)
            return {path.partition("/")[0] for path, _, _ in server.read}

        assert fetched() == {"commitlog", "consumequeue"}
        monkeypatch.setattr(places, "_MOST_DERIVED_BYTES", 1000)
        assert fetched() == set()


# -- many queues -------------------------------------------------------------------------------------------------------

WIDE_QUEUES, WIDE_MESSAGES = 64, 2000
WIDE_INDEX = (5000, 20_000)


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed store with 64 queues, whose files have 6 MB each and almost no units."""
    root = tmp_path_factory.mktemp("wide") / "store"
    messages = (
        (f"T{number % WIDE_QUEUES // 8}", number % 8, 1_700_000_000_000 + number) for number in range(WIDE_MESSAGES)
    )
    write_log(root, messages, segment_bytes=1 << 20)
    index = {"maxHashSlotNum": WIDE_INDEX[0], "maxIndexNum": WIDE_INDEX[1]}
    dispatch_log(root, mappedFileSizeCommitLog=1 << 20, mappedFileSizeConsumeQueue=6_000_000, **index)
    return root


@pytest.mark.parametrize(
    ("filters", "most"),
    [
        ({}, 20 << 16),
        ({"topic": "T3", "queue": "1"}, 30 << 16),
        ({"key": "k7"}, 40 << 16),
        ({"from": "2023-11-14T22:13:20Z", "to": "2023-11-14T22:13:21Z"}, 40 << 16),
    ],
)
def test_planning_fetches_little_of_many_queues(wide: Path, filters: dict[str, str], most: int) -> None:
    """Also far less than one file of a queue, and the same is found as in the folder."""
    pytest.importorskip("pyspark.sql.datasource", reason="needs the group `spark`")
    from pyspark.sql.pandas.types import from_arrow_schema

    from tallystick.spark.columns import schema_of
    from tallystick.spark.source import MessageReader, SplitPartition

    def planned(path: str) -> list[tuple[int, int]]:
        options = ReadOptions.parse({"path": f"a={path}", "splitBytes": "20000"} | filters)
        partitions = MessageReader(options, from_arrow_schema(schema_of(["topic", "queue_offset"]))).partitions()
        splits = [split for each in partitions if isinstance(each, SplitPartition) for split in each.task.splits]
        return [(split.begin, split.end) for split in splits]

    here = planned(str(wide))
    with serving(wide, open_volume(wide).bound) as server:
        server.index = WIDE_INDEX
        there = planned(server.address)
        fetched = sum(end - begin for _, begin, end in server.read)
    assert fetched <= most
    if filters:
        assert sum(end - begin for begin, end in there) == sum(end - begin for begin, end in here)
    else:
        assert len(there) > 10 and there[0][0] == 0 and there[-1][1] == here[-1][1]
        assert all(one[1] == other[0] for one, other in pairwise(there))
        assert max(end - begin for begin, end in there) < 60_000


def test_jobs_over_a_broker_with_many_queues(wide: Path) -> None:
    """The files of queues are fetched up to their ends, and no file twice."""
    with serving(wide, open_volume(wide).bound) as server:
        server.index = WIDE_INDEX
        found = stats_of(f"a={server.address}", splitBytes="50000")
        assert found == stats_of(f"a={wide}", splitBytes="50000") | {"sources": found["sources"]}
        assert sum(end - begin for _, begin, end in server.read) < 4 * open_volume(wide).bound
        server.read.clear()
        options = ReadOptions.parse({"path": f"a={server.address}"})
        sources = options.sources(members=True)
        assert audit.run(options, reaching_runner(inline, sources))["clean"]
        # The files have 380 MB together. Where a test has looked into a hole, a tmpfs reports data from then on.
        assert sum(end - begin for path, begin, end in server.read if path.startswith("consumequeue/")) < 16 << 20


@pytest.mark.parametrize(
    "answer",
    [
        b"[]",
        b'{"namedEnd": 1, "index": {"slots": 1, "entries": 1}, "queues": [["../../etc", 0, 0, 1, 20, 0, 1, true]]}',
        b'{"namedEnd": 1, "index": {"slots": 1, "entries": 1}, "queues": [["..", 0, 0, 1, 20, 0, 1, true]]}',
        b'{"namedEnd": 1, "index": {"slots": 1, "entries": 1}, "queues": [["T", "../x", 0, 1, 20, 0, 1, true]]}',
        b'{"namedEnd": 1, "index": {"slots": 1, "entries": 1}, "queues": [["T", 0, 0]]}',
        b'{"namedEnd": 1, "queues": []}',
    ],
)
def test_an_answer_about_queues_that_cannot_be(answer: bytes) -> None:
    with pytest.raises(ValueError, match="not an answer of GET /store/queues"):
        RemoteQueues.parse(json.loads(answer))


@pytest.mark.process
def test_a_broker_tells_where_its_queues_end(broker: TallyProcess) -> None:
    with StoreClient(http_of(broker)) as client:
        store = client.store()
        assert store.tells_queues
        told = client.queues(store.committed)
        ends = _kernel.queue_ends(broker.store / "consumequeue")
        assert (list(told.ends), told.named_end) == (list(ends), ends.named_end) and len(ends) == 2
        assert told.index == (1000, 4000)
        half = store.committed // 2
        assert all(0 < each.pos < half for each in client.queues(half).ends)
        for below in ("", "-1", "x", "1" * 19):
            with pytest.raises(StoreClientError, match=r"400 .*below must be a position"):
                list(client._asked(f"/store/queues?below={below}", {}, (200,)))


# -- servers that do harm ----------------------------------------------------------------------------------------------


@contextmanager
def answering(*pieces: bytes, between: threading.Event | None = None) -> Iterator[str]:
    """A server that sends the same pieces to each connection; with `between`, one more zero each time it is polled."""
    stop = threading.Event()
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while not stop.is_set():
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                connection.recv(65536)
                try:
                    for piece in pieces:
                        connection.sendall(piece)
                    while between is not None and not stop.is_set():
                        connection.sendall(b"0")
                        between.wait(0.02)
                except OSError:
                    continue

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        stop.set()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


HEAD = b"HTTP/1.1 206 OK\r\nContent-Length: %d\r\n\r\n"


@pytest.mark.parametrize("head", [b"", HEAD % 4096], ids=["in the head", "in the body"])
def test_an_answer_that_drips_is_given_up(monkeypatch: pytest.MonkeyPatch, head: bytes) -> None:
    monkeypatch.setattr(store_client, "TIMEOUT_S", 1.5)  # a busy machine pauses less
    told = pytest.raises(StoreClientError, match=r"arrived in|timed out")
    with answering(head, between=threading.Event()) as address, StoreClient(address, patience_s=0) as client, told:
        list(client.read("commitlog/00000000000000000000", 0, 4096))


def test_an_answer_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    told = "longer than what was requested"
    with answering(HEAD % (1 << 40), bytes(1 << 20)) as address, StoreClient(address, patience_s=0) as client:  # noqa: SIM117
        with pytest.raises(StoreClientError, match=told):
            list(client.read("commitlog/00000000000000000000", 0, 4096))
    monkeypatch.setattr(store_client, "_MOST_LISTING_BYTES", 1000)
    endless = (b"HTTP/1.1 200 OK\r\n\r\n", b" " * 100_000)
    with answering(*endless) as address, StoreClient(address, patience_s=0) as client:  # noqa: SIM117
        with pytest.raises(StoreClientError, match=told):
            client.store()


def test_a_server_cannot_choose_where_a_reader_writes() -> None:
    listing = {"logFolder": "commitlog", "begin": 0, "committed": 9, "closed": True}
    for path in ("../x", "/etc/x", "commitlog//x", "a/../../x"):
        body = json.dumps(listing | {"files": [{"path": path, "bytes": 1}]}).encode()
        with answering(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body), body) as address:  # noqa: SIM117
            with StoreClient(address, patience_s=0) as client, pytest.raises(StoreClientError, match="not a path"):
                client.store()


def test_a_server_that_repeats_the_token_does_not_bring_it_into_an_error() -> None:
    text = f"bad token {SECRET}".encode()
    with answering(b"HTTP/1.1 403 No\r\nContent-Length: %d\r\n\r\n" % len(text), text) as address:
        told = pytest.raises(StoreClientError, match=r"403 bad token \(token\)")
        with StoreClient(address, Access(SECRET), patience_s=0) as client, told as refused:
            client.store()
    assert SECRET not in repr(refused.value)


def test_a_body_that_breaks_again_and_again_is_read_while_it_advances(golden: Golden) -> None:
    """The patience is for a server that sends nothing, and does not end in the middle of a large file."""
    root = golden("clean")
    bound = open_volume(root).bound
    with serving(root, bound) as server, StoreClient(server.address, patience_s=0.5) as client:
        server.breaking = 4  # each time the half is left: more than a turn's least bytes
        found = b"".join(client.read("commitlog/00000000000000000000", 0, min(bound, 1 << 20)))
    assert found == (root / "commitlog" / "00000000000000000000").read_bytes()[: len(found)] and server.breaking == 0


@contextmanager
def tls_before(server: StoreServer, certificate: Any) -> Iterator[str]:
    """A proxy with TLS, as an ingress is one."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    certificate.configure_cert(context)
    listener = socket.create_server(("127.0.0.1", 0))
    port = int(server.address.rpartition(":")[2])

    def carry(source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                target.sendall(data)
        except OSError:
            pass
        finally:
            for each in (source, target):
                each.close()

    def serve() -> None:
        while True:
            try:
                plain, _ = listener.accept()
            except OSError:
                return
            try:
                near = context.wrap_socket(plain, server_side=True)
            except (OSError, ssl.SSLError):
                plain.close()
                continue
            far = socket.create_connection(("127.0.0.1", port))
            for pair in ((near, far), (far, near)):
                threading.Thread(target=carry, args=pair, daemon=True).start()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"https://localhost:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def test_certificates_are_checked(golden: Golden, tmp_path: Path) -> None:
    trustme = pytest.importorskip("trustme")
    authority = trustme.CA()
    root, ca = golden("clean"), tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(ca))
    bound = open_volume(root).bound
    with serving(root, bound) as server, tls_before(server, authority.issue_cert("localhost")) as address:
        assert records_of(f"a={address}", ca=str(ca)) == records_of(f"a={root}")
        with pytest.raises(StoreClientError, match=r"CERTIFICATE_VERIFY_FAILED.*option ca"):
            records_of(f"a={address}")
    (tmp_path / "no.pem").write_text("nothing")
    with pytest.raises(OptionError, match="has no certificates in PEM format"):
        ReadOptions.parse({"path": "x", "ca": str(tmp_path / "no.pem")})


def test_a_task_needs_no_file_of_the_driver(golden: Golden, tmp_path: Path) -> None:
    """The token goes with the task: executors have only the package."""
    token = tmp_path / "token"
    token.write_text("first\n")
    options = ReadOptions.parse({"path": "http://b:1", "tokenFile": str(token)})
    for_tasks = options.access.for_tasks()
    token.write_text("second\n")
    assert options.access.bearer() == "second", "the driver reads it again for the next query"
    token.unlink()
    assert for_tasks.bearer() == "first"
    root = golden("clean")
    with serving(root, open_volume(root).bound) as server:
        server.token = "first"
        token.write_text("first\n")
        (source,) = ReadOptions.parse({"path": server.address, "tokenFile": str(token)}).sources()
        assert source.access == for_tasks


@pytest.mark.spark
def test_spark_submit_chooses_the_master(tmp_path: Path) -> None:
    pyspark = pytest.importorskip("pyspark", reason="needs the group `spark`")
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    program = Path(sys.executable).with_name("tally-job.py")
    command = [str(submit), "--master", "local[nonsense]", str(program), "stats", "--path", str(tmp_path)]
    environment = os.environ | {"PYSPARK_PYTHON": sys.executable}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert ended.returncode != 0
    assert "local[nonsense]" in ended.stderr, ended.stderr[-2000:]
