"""Tables whose newest version is lost: rebuilt from what the other files tell, by the real process too."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from group_lab import GroupLab
from tally_process import TallyProcess, tally

from tallystick.node.broker.services.rebuilding import missing_groups, missing_topics
from tallystick.node.broker.tables.consumer_groups import SubscriptionGroup
from tallystick.node.broker.tables.topics import TopicConfig
from tallystick.node.core.client import ClusterClient, QueueAddress
from tallystick.node.remoting.codes import RequestCode

pytestmark = pytest.mark.process

TABLES = ["topics.json", "subscriptionGroup.json", "consumerOffset.json", "delayOffset.json", "consumerFilter.json"]
RUBBISH = {
    "truncated": b'{"topicConfigTable":{"Orders":{"topicName":"Or',
    "empty": b"",
    "binary": bytes(range(256)) * 16,
    "wrong-type": b'{"topicConfigTable":[],"subscriptionGroupTable":7,"offsetTable":{"a@b":3},"filterDataByTopic":1}',
    "folder": None,
}


def test_topics_come_from_queues_and_offsets() -> None:
    queues = [("Orders", 0), ("Orders", 11), ("%RETRY%g", 0), ("known", 3), ("SCHEDULE_TOPIC_XXXX", 2), ("../x", 0)]
    found = missing_topics(["known"], queues, {"Orders": [2], "Quiet": [0, 5], "known": [9]}, 8)
    assert found == [TopicConfig("%RETRY%g", 1, 1), TopicConfig("Orders", 12, 12), TopicConfig("Quiet", 8, 8)]
    assert missing_topics([], [("T", 2**31 - 1)], {}, 8) == [TopicConfig("T", 65535, 65535)]


def test_groups_come_from_retry_topics_and_offsets() -> None:
    found = missing_groups(["known"], ["%RETRY%a", "T", "%RETRY%known"], ["b", "CID_RMQ_SYS_TRANS", "../x"])
    assert found == [SubscriptionGroup("a"), SubscriptionGroup("b")]


async def fill(address: str) -> None:
    """A topic with twelve queues and a message in the last one, and a group that committed there. Three topics whose
    only messages wait: a delayed message, a timer, and one of a transaction."""
    async with ClusterClient("", timeout_s=30.0) as client:
        for topic, queues, sys_flag, properties in (
            ("Orders", 12, 0, ""),
            ("Delayed", 3, 0, "DELAY\x0118\x02"),
            ("Timed", 2, 0, "TIMER_DELAY_SEC\x01250000\x02"),
            ("Half", 2, 4, "TRAN_MSG\x01true\x02PGROUP\x01p\x02UNIQ_KEY\x01u\x02"),
        ):
            await client.create_topic(address, topic, queues)
            ext = {"a": "p", "b": topic, "c": "TBW102", "d": "4", "e": str(queues - 1), "f": str(sys_flag), "g": "1"}
            ext |= {"h": "0", "i": properties, "j": "0", "k": "false", "m": "false"}
            answer = await client.call(address, RequestCode.SEND_MESSAGE_V2, ext, b"kept")
            assert answer.code == 0, answer.remark
        commit = {"consumerGroup": "readers", "topic": "Orders", "queueId": "11", "commitOffset": "1"}
        await client.call(address, RequestCode.UPDATE_CONSUMER_OFFSET, commit)
        await client.pull(QueueAddress("Orders", "", address, 11), 0, group="readers")


async def check(address: str) -> None:
    async with ClusterClient("", timeout_s=30.0) as client:
        pulled = await client.pull(QueueAddress("Orders", "", address, 11), 0, group="readers")
        assert {record.body for record in pulled.records} == {b"kept"}


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A store after an orderly stop, with every table and a backup of each."""
    folder = tmp_path_factory.mktemp("filled")
    for _ in range(2):
        with TallyProcess(folder) as process:
            asyncio.run(fill(process.places["broker"]))
            assert process.end() == 0
    config = folder / "data" / "store" / "config"
    for name in TABLES:
        if not (config / name).exists():
            (config / name).write_text('{"offsetTable":{}}' if "Offset" in name else '{"filterDataByTopic":{}}')
        if not (config / f"{name}.bak").exists():
            shutil.copy(config / name, config / f"{name}.bak")
    yield folder
    shutil.rmtree(folder)


def put(path: Path, content: bytes | None) -> None:
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    if content is None:
        path.mkdir()
        (path / "inside").write_text("")
    else:
        path.write_bytes(content)


@pytest.mark.parametrize("backups", [True, False], ids=["with-backups", "without"])
@pytest.mark.parametrize("kind", [*RUBBISH, "missing"])
def test_a_plain_broker_starts_on_damaged_tables(filled: Path, tmp_path: Path, kind: str, backups: bool) -> None:
    """All of its tables at once are damaged, in one way, with their backups or without."""
    shutil.copytree(filled / "data", tmp_path / "data")
    config = tmp_path / "data" / "store" / "config"
    for name in TABLES:
        for path in (config / name, *([] if backups else [config / f"{name}.bak"])):
            if kind == "missing":
                path.unlink()
            else:
                put(path, RUBBISH[kind])
    with TallyProcess(tmp_path) as process:
        asyncio.run(check(process.places["broker"]))
        assert process.end() == 0
    log = process.log.read_text()
    assert "Traceback" not in log
    kept = {path.name for path in config.iterdir() if ".damaged-" in path.name}
    if kind != "missing":
        assert kept >= {f"{name}.damaged-1" for name in TABLES}
        assert all(f"kept as {name}" in log for name in kept)
    if not backups:
        assert "Orders (12 queues)" in log
    text = (config / "topics.json").read_text()
    assert all(f'"{topic}"' in text for topic in ("Orders", "Delayed", "Timed", "Half")), "what was rebuilt is saved"
    with TallyProcess(tmp_path) as process:
        asyncio.run(check(process.places["broker"]))
    assert {path.name for path in config.iterdir() if ".damaged-" in path.name} == kept, "the next start finds nothing"


def test_a_broker_starts_on_damaged_settings_and_a_name_server_on_a_damaged_configuration(tmp_path: Path) -> None:
    kv = tmp_path / "data" / "nameserver" / "kvConfig.json"
    settings = tmp_path / "data" / "store" / "config" / "tally-settings.json"
    for path in (kv, settings):
        path.parent.mkdir(parents=True)
        path.write_bytes(b"\xff\xfe rubbish")
    with TallyProcess(tmp_path) as process:
        assert process.get("/readyz")[0] == 200
    log = process.log.read_text()
    assert "Traceback" not in log
    assert "kvConfig.json.damaged-1" in log
    assert "tally-settings.json.damaged-1" in log


async def test_a_member_of_a_group_starts_on_damaged_pictures(tmp_path: Path) -> None:
    with GroupLab(tmp_path) as lab:
        async with ClusterClient(lab.nameserver) as client:
            _, ledger = await lab.with_topic(client, "orders", 4)
            await ledger.produce(50, 4, b"before")
            for number, content in ((0, b"rubbish"), (1, None), (2, b"")):
                lab.kill(number)
                config = tmp_path / f"n{number}" / "store" / "config"
                config.mkdir(exist_ok=True)
                for name in TABLES:
                    put(config / name, content)
                    put(config / f"{name}.bak", b"[]")
                process = lab.start(number)
                await lab.ready()
                assert "Traceback" not in process.log.read_text()
                assert "the group's log has the table" in process.log.read_text()
            ledger.check(await ledger.read(lab.address(await lab.leader())))


async def test_a_member_whose_start_fails_says_why_in_one_line(tmp_path: Path) -> None:
    with GroupLab(tmp_path) as lab:
        await lab.leader()
        lab.kill(1)
        ends = tmp_path / "n1" / "store" / "config" / "tally-queue-ends"
        ends.parent.mkdir(exist_ok=True)
        ends.write_text("rubbish")
        with pytest.raises(AssertionError, match="is no ready line"):
            lab.start(1)
        assert lab.members[1].process.wait(30) == 2
        log = lab.members[1].log.read_text()
        assert "Traceback" not in log
        assert "tally-queue-ends: not a map of next offsets" in log
        assert "fetches everything from its group" in log
        ends.unlink()
        lab.start(1)


def test_a_file_that_may_be_sound_stops_the_start_in_one_line(tmp_path: Path) -> None:
    config = tmp_path / "data" / "store" / "config"
    config.mkdir(parents=True)
    (config / "topics.json").symlink_to("topics.json")  # the file system refuses to read it
    ended = tally("run", "--dir", str(tmp_path / "data"), "--port", "0", "--nameserver-port", "0", "--http-port", "0")
    assert ended.returncode == 2
    line = ended.stderr.strip().splitlines()[-1]
    assert line.startswith("tally: ")
    assert "topics.json: cannot be read: " in line
    assert "move it away" in line
    assert "Traceback" not in ended.stderr
