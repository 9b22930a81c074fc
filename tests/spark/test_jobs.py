"""The jobs on stores that RocketMQ wrote, in this process; `test_jobs_on_spark` runs them on Spark."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.dataset as dataset
import pytest
from golden_rows import expected
from s3_lab import S3Lab

from tallystick.spark.jobs import audit, cli, export, rebuild, stats, trace
from tallystick.spark.jobs.export_book import joined
from tallystick.spark.jobs.export_files import day_name
from tallystick.spark.jobs.registry import page_of, text_of
from tallystick.spark.jobs.stats import percentile
from tallystick.spark.options import OptionError, ReadOptions
from tallystick.spark.outputs import FolderOutput
from tallystick.spark.runner import inline, on_spark
from tallystick.spark.volume import open_volume

Golden = Callable[[str], Path]


def options_of(path: Path | str, **given: str) -> ReadOptions:
    return ReadOptions.parse({"path": f"n0={path}" if isinstance(path, Path) else path} | given)


# -- stats -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["clean", "edge", "dledger-n2"])
def test_stats_are_the_listings_counts(golden: Golden, golden_folder: Path, name: str) -> None:
    messages = expected(golden_folder, name)["opened"]["messages"]
    summary = stats.run(options_of(golden(name), splitBytes="50000"), inline)
    by_topic = Counter(message["topic"] for message in messages)
    assert {topic["topic"]: topic["messages"] for topic in summary["topics"]} == by_topic
    assert summary["bytes"] == sum(message["size"] for message in messages)
    by_queue = Counter((message["topic"], message["queueId"]) for message in messages)
    ours: Counter[tuple[str, int]] = Counter()
    for row in summary["groups"]:
        ours[row["topic"], row["queue_id"]] += row["messages"]
        assert row["hour_ms"] % 3_600_000 == 0
    assert ours == by_queue
    producers = {message["bornHost"].rpartition(":")[0] for message in messages}
    assert len({host for topic in summary["topics"] for host in topic["producers"]}) == len(producers)
    for topic in summary["topics"]:
        sizes = sorted(message["size"] for message in messages if message["topic"] == topic["topic"])
        for percent in (50, 90, 99):
            exact = sizes[-(-len(sizes) * percent // 100) - 1]
            assert abs(topic[f"size_p{percent}"] / exact - 1) < 0.05


def test_percentiles_of_nothing_and_of_one() -> None:
    assert percentile({}, 50) == 0
    assert percentile({160: 1}, 99) == round(2**10.03125)


# -- audit -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["clean", "killed", "cqext", "edge", "trimmed"])
def test_sound_stores_are_clean(golden: Golden, name: str) -> None:
    summary = audit.run(options_of(golden(name), splitBytes="100000"), inline)
    assert summary["differences"] == [] and summary["clean"]


def test_replicas_are_compared_up_to_the_smallest_bound(golden: Golden) -> None:
    roots = {name: golden(name) for name in ("dledger-n0", "dledger-n1", "dledger-n2")}
    path = ",".join(f"{name}={root}" for name, root in roots.items())
    summary = audit.run(options_of(path), inline)
    assert summary["clean"] and summary["replicas_compared"] == [
        {"group": None, "members": 3, "begin": 0, "end": 570323, "empty": []}
    ]
    log = roots["dledger-n1"] / "dledger-n1" / "data" / f"{0:020d}"
    flip(log, 48 + 19)  # in the first record's flag, which no CRC covers
    (difference,) = audit.run(options_of(path), inline)["differences"]
    assert (difference["source"], difference["what"]) == ("dledger-n1", "replicas")
    assert (difference["file"], difference["offset"]) == (str(log), 48 + 19)
    assert difference["reason"].startswith("the field flag of the record at 48 (")


@pytest.mark.parametrize("others", [1, 2])
def test_an_empty_member_is_reported_and_the_others_are_compared(golden: Golden, tmp_path: Path, others: int) -> None:
    new = tmp_path / "new"
    (new / "dledger-n9" / "data").mkdir(parents=True)
    path = ",".join(f"n{number}={golden(f'dledger-n{number}')}" for number in range(others))
    summary = audit.run(options_of(f"{path},new={new}"), inline)
    (compared,) = summary["replicas_compared"]
    assert (compared["members"], compared["empty"]) == (others, ["new"])
    assert compared["end"] == (570323 if others > 1 else 0)
    lines = text_of(summary).splitlines()
    assert "new contains no messages yet and was not compared" in lines
    assert any("replicas compared" in line for line in lines) == (others > 1)
    page = page_of(summary)
    assert page is not None and "<p>new contains no messages yet" in page


def flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))


@pytest.mark.parametrize(("at", "word"), [(7, "names position"), (11, "says"), (19, "tags code")])
def test_a_flipped_byte_in_a_queue_is_named_to_the_unit(golden: Golden, at: int, word: str) -> None:
    root = golden("clean")
    path = sorted(root.glob("consumequeue/GoldA/0/*"))[0]
    flip(path, 60 + at)
    (difference,) = audit.run(options_of(root), inline)["differences"]
    assert (difference["what"], difference["file"], difference["offset"]) == ("queue", str(path), 60)
    assert word in difference["reason"] and "unit 3" in difference["reason"]


def test_missing_units_of_a_closed_store_are_differences(golden: Golden) -> None:
    root = golden("short-queues")
    differences = audit.run(options_of(root), inline)["differences"]
    assert all(each["repairable"] for each in differences), "it was killed: the next start dispatches them"
    lost = [int(each["reason"].split()[-2]) for each in differences]
    (root / "abort").unlink()
    summary = audit.run(options_of(root), inline)
    assert not summary["clean"] and not all(each["repairable"] for each in summary["differences"])
    assert sum(int(each["reason"].split()[-2]) for each in summary["differences"]) == sum(lost) == 69


def test_the_index_is_compared_both_ways(golden: Golden) -> None:
    root = golden("clean")
    path = sorted(root.glob("index/*"))[0]
    data = path.read_bytes()
    slots = 40 + 4 * int(next(iter(_index_slots(root))))
    flip(path, slots + 20 * 1 + 3)  # the hash of entry 1
    differences = audit.run(options_of(root), inline)["differences"]
    assert {each["what"] for each in differences} == {"index"}
    assert [each["reason"][:24] for each in differences if not each["file"]] == ["no entry of a key of the"]
    assert any(each["file"] == str(path) and each["offset"] == slots + 20 for each in differences)
    path.write_bytes(data)


def _index_slots(root: Path) -> list[int]:
    from tallystick.store.verify.dump import settings_of

    return [settings_of(root).maxHashSlotNum]


def test_damage_in_the_log_and_units_of_nothing(golden: Golden, golden_folder: Path) -> None:
    position = expected(golden_folder, "flipped-body")["opened"]["maxPhyOffset"]
    (difference,) = audit.run(options_of(golden("flipped-body")), inline)["differences"]
    assert difference["what"] == "log" and difference["reason"].startswith("the body's CRC is ")
    assert difference["file"].endswith(f"{position - difference['offset']:020d}")


# -- export ------------------------------------------------------------------------------------------------------------


def exported_rows(out: Path) -> Any:
    return dataset.dataset(str(out), format="parquet", partitioning="hive", exclude_invalid_files=True).to_table()


def test_export_writes_every_message_once(golden: Golden, golden_folder: Path, tmp_path: Path) -> None:
    root, out = golden("clean"), tmp_path / "out"
    messages = expected(golden_folder, "clean")["opened"]["messages"]
    first = export.run(options_of(root, splitBytes="100000"), inline, FolderOutput(out))
    assert first["added_rows"] == len(messages)
    again = export.run(options_of(root), inline, FolderOutput(out))
    assert (again["added_rows"], again["added_files"]) == (0, 0)
    table = exported_rows(out)
    assert sorted(table["physical_offset"].to_pylist()) == [message["offset"] for message in messages]
    topics = Counter(path.name for path in out.glob("topic=*"))
    assert f"topic=%25RETRY%25{messages_group(messages)}" in topics


def messages_group(messages: list[dict[str, Any]]) -> str:
    return next(m["topic"] for m in messages if m["topic"].startswith("%RETRY%")).removeprefix("%RETRY%")


def test_a_later_run_adds_what_came_since(golden: Golden, golden_folder: Path, tmp_path: Path) -> None:
    root, out = golden("clean"), tmp_path / "out"
    offsets = [message["offset"] for message in expected(golden_folder, "clean")["opened"]["messages"]]
    rows = 0
    for bound in (offsets[100], offsets[101], offsets[1000], 1 << 60):
        rows += export.run(options_of(root, committed=str(bound)), inline, FolderOutput(out))["added_rows"]
        held = sorted(exported_rows(out)["physical_offset"].to_pylist())
        assert held == [offset for offset in offsets if offset < bound]
    assert rows == len(offsets)
    book = json.loads((out / "_tally" / "n0.json").read_text())
    assert len(book["ranges"]) == 1, "ranges that touch are one"


def test_a_run_that_was_killed_leaves_nothing_behind(golden: Golden, golden_folder: Path, tmp_path: Path) -> None:
    root, out = golden("clean"), tmp_path / "out"
    offsets = [message["offset"] for message in expected(golden_folder, "clean")["opened"]["messages"]]
    export.run(options_of(root, committed=str(offsets[500])), inline, FolderOutput(out))
    book = (out / "_tally" / "n0.json").read_text()
    export.run(options_of(root), inline, FolderOutput(out))
    (out / "_tally" / "n0.json").write_text(book)  # files were moved, the ranges not saved
    added = export.run(options_of(root, splitBytes="70000"), inline, FolderOutput(out))
    assert added["added_rows"] == len(offsets) - 500
    assert sorted(exported_rows(out)["physical_offset"].to_pylist()) == offsets


def test_another_filter_needs_another_folder(golden: Golden, tmp_path: Path) -> None:
    root, out = golden("clean"), tmp_path / "out"
    export.run(options_of(root, topic="GoldA"), inline, FolderOutput(out))
    assert [path.name for path in out.glob("topic=*")] == ["topic=GoldA"]
    with pytest.raises(export.ExportError, match="another filter"):
        export.run(options_of(root), inline, FolderOutput(out))


def test_ranges_are_joined() -> None:
    assert joined([(5, 9), (0, 3), (3, 5), (20, 20), (30, 31)]) == [(0, 9), (30, 31)]
    assert day_name(0) == "1970-01-01" and day_name(2**40) == "beyond"


# -- rebuild -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["clean", "killed", "edge", "dledger-n2", "flipped-body"])
def test_rebuilt_files_are_the_brokers(golden: Golden, tmp_path: Path, name: str) -> None:
    root = golden(name)
    (found,) = rebuild.run(options_of(root), inline, FolderOutput(tmp_path / "out"))["volumes"]
    assert found["differing"] == found["missing"] == [] and found["stopped"] is None
    assert found["same"] == len([*root.glob("consumequeue/*/*/*"), *root.glob("index/*")])


def test_a_store_that_lost_its_queues_gets_them_back(golden: Golden, tmp_path: Path) -> None:
    """The killed store is the same one before it lost them."""
    lost, whole = golden("lost-queues"), golden("killed")
    settings = {"mappedFileSizeConsumeQueue": "6000", "maxHashSlotNum": "1", "maxIndexNum": "2"}
    from tallystick.store.verify.dump import settings_of

    real = settings_of(whole)
    settings = {name: str(getattr(real, name)) for name in settings}
    (found,) = rebuild.run(options_of(lost), inline, FolderOutput(tmp_path / "out"), settings)["volumes"]
    rebuilt = Path(found["folder"])
    for path in sorted(whole.glob("consumequeue/*/*/*")):
        assert (rebuilt / path.relative_to(whole)).read_bytes() == path.read_bytes()


def test_nothing_is_rebuilt_into_a_store(golden: Golden, tmp_path: Path) -> None:
    root = golden("clean")
    with pytest.raises(OptionError, match="within the store"):
        rebuild.run(options_of(root), inline, FolderOutput(root / "new"))
    (tmp_path / "out" / "n0").mkdir(parents=True)
    (tmp_path / "out" / "n0" / "x").touch()
    with pytest.raises(OptionError, match="is not empty"):
        rebuild.run(options_of(root), inline, FolderOutput(tmp_path / "out"))


# -- trace -------------------------------------------------------------------------------------------------------------


def test_the_way_of_a_message_to_the_dead_letters(golden: Golden, golden_folder: Path) -> None:
    root = golden("clean")
    messages = expected(golden_folder, "clean")["opened"]["messages"]
    dead = next(message for message in messages if message["topic"].startswith("%DLQ%"))
    alike = [message["offset"] for message in messages if message["uniqKey"] == dead["uniqKey"]]
    by_unique = trace.run(options_of(root), inline, dead["uniqKey"])
    assert sorted(event["physical_offset"] for event in by_unique["events"]) == alike and len(alike) > 2
    words = [event["what"] for event in by_unique["events"]]
    assert words[0] == "sent" and words[-1].startswith("given up by")
    assert any(word.startswith("waits for try") for word in words) or any("delivered again" in word for word in words)
    by_id = trace.run(options_of(root), inline, dead["msgId"])
    assert by_id["events"] == by_unique["events"]
    assert trace.run(options_of(root), inline, "no-such-key")["events"] == []
    key = next(message for message in messages if message["keys"] and message["uniqKey"])
    by_key = trace.run(options_of(root), inline, key["keys"].split()[0])["events"]
    assert key["offset"] in [event["physical_offset"] for event in by_key]


def test_a_message_without_any_key_is_found_by_its_place(golden: Golden, golden_folder: Path) -> None:
    messages = expected(golden_folder, "edge")["opened"]["messages"]
    bare = next(message for message in messages if not message["uniqKey"] and not message["keys"])
    (event,) = trace.run(options_of(golden("edge")), inline, bare["msgId"])["events"]
    assert event["physical_offset"] == bare["offset"]


def test_a_transaction_is_seen_from_half_to_outcome(golden: Golden, golden_folder: Path) -> None:
    root = golden("clean")
    messages = expected(golden_folder, "clean")["opened"]["messages"]
    committed = next(m for m in messages if m["sysFlag"] & 0xC == 8)
    words = [event["what"] for event in trace.run(options_of(root), inline, committed["uniqKey"])["events"]]
    assert any(word.startswith("half of a transaction") for word in words) and "committed" in words


def test_replicas_tell_a_message_once(golden: Golden, golden_folder: Path) -> None:
    roots = [golden("dledger-n0"), golden("dledger-n2")]
    message = expected(golden_folder, "dledger-n0")["opened"]["messages"][50]
    path = f"n0={roots[0]},n2={roots[1]}"
    events = trace.run(options_of(path), inline, message["uniqKey"])["events"]
    assert all(event["sources"] == ["n0", "n2"] for event in events) and events


# -- the command -------------------------------------------------------------------------------------------------------


def test_the_command_prints_and_writes(golden: Golden, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = golden("clean")
    page = tmp_path / "page.html"
    here = ["--master", "none", "--path", f"n0={root}"]
    assert cli.main(["stats", *here, "--html", str(page), "--topic", "GoldA"]) == 0
    assert "GoldA" in capsys.readouterr().out
    assert "<svg" in page.read_text() and "http" not in page.read_text(), "it needs nothing else"
    assert cli.main(["audit", *here, "--json", "--html", str(page)]) == 0
    assert json.loads(capsys.readouterr().out)["clean"] is True
    flip(sorted(root.glob("consumequeue/GoldA/0/*"))[0], 7)
    assert cli.main(["audit", *here, "--html", str(page)]) == 1
    assert "unit 0" in capsys.readouterr().out and "unit 0" in page.read_text()
    assert cli.main(["audit", "--master", "none", "--path", str(tmp_path / "none")]) == 2
    assert cli.main(["trace", *here, "nothing"]) == 0
    assert "no record of nothing was found" in capsys.readouterr().out


def test_small_stores_need_no_spark(golden: Golden, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    masters: list[str | None] = []

    @contextmanager
    def chosen(master: str | None) -> Iterator[Any]:
        masters.append(master)
        yield inline

    monkeypatch.setattr(cli, "_runner", chosen)
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    monkeypatch.setattr("tallystick.spark.jobs.export.create_table", lambda *_: None)
    members = ",".join(f"g/n{number}={golden(f'dledger-n{number}')}" for number in (0, 2))
    size = sum(open_volume(tmp_path / f"dledger-n{number}" / "store").bytes for number in (0, 2))
    monkeypatch.setattr(cli, "_SMALL_BYTES", size)
    assert cli.main(["audit", "--path", members]) == 0
    monkeypatch.setattr(cli, "_SMALL_BYTES", size - 1)
    assert cli.main(["audit", "--path", members]) == 0
    assert cli.main(["audit", "--path", members, "--master", "local[7]"]) == 0
    one = ["--path", f"n0={tmp_path}/dledger-n0/store"]
    assert cli.main(["export", *one, "--out", str(tmp_path / "out")]) == 0
    assert cli.main(["export", *one, "--out", str(tmp_path / "out"), "--table", "t"]) == 0
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert cli.main(["stats", *one]) == 0
    assert masters == ["none", "local[2]", "local[7]", "none", "local[2]", None]
    assert cli.main(["stats", "--path", str(tmp_path / "nothing")]) == 2


def test_pages_escape_what_producers_named() -> None:
    topic = {"topic": "<script>", "queues": 1, "messages": 1, "bytes": 1, "size_p50": 1, "size_p90": 1, "size_p99": 1}
    summary = {
        "job": "stats",
        "messages": 1,
        "bytes": 1,
        "topics": [topic | {"producers": {}}],
        "groups": [{"topic": "<script>", "queue_id": 0, "tags": "<b>", "hour_ms": 2**62, "messages": 1}],
        "damaged": 0,
        "damage": [],
    }
    page = page_of(summary)
    assert page is not None and "<script>" not in page and "<b>" not in page
    assert "<script>" in text_of(summary)


def test_jobs_on_spark(spark: Any, golden: Golden, tmp_path: Path, own_temporary_folder: Path) -> None:
    """Each gives what it gives here."""
    root = golden("clean")
    options, local = options_of(root, splitBytes="200000"), on_spark(spark.sparkContext)
    runner = on_spark(spark.sparkContext, lambda item: None)  # not known to be local: single items go to Spark, too
    for run in (stats.run, audit.run):
        assert run(options, local) == run(options, runner) == run(options, inline)
    there, here = tmp_path / "spark", tmp_path / "inline"
    ours, theirs = export.run(options, runner, FolderOutput(there)), export.run(options, inline, FolderOutput(here))
    assert ours["added_rows"] == theirs["added_rows"] and ours["added_files"] == theirs["added_files"]
    assert exported_rows(there).sort_by("physical_offset").equals(exported_rows(here).sort_by("physical_offset"))
    assert spark.read.parquet(str(there)).count() == ours["added_rows"]
    (rebuilt,) = rebuild.run(options, runner, FolderOutput(tmp_path / "rebuilt"))["volumes"]
    assert rebuilt["differing"] == []
    carried = FolderOutput(tmp_path / "carried", shared=False)
    assert export.run(options, runner, carried)["added_rows"] == ours["added_rows"]
    assert exported_rows(carried.folder).num_rows == ours["added_rows"]
    shutil.rmtree(carried.folder)
    rebuild.run(options, runner, carried)
    made = [path.relative_to(carried.folder) for path in carried.folder.rglob("*") if path.is_file()]
    assert len(made) == rebuilt["files"]
    assert all((carried.folder / name).read_bytes() == (tmp_path / "rebuilt" / name).read_bytes() for name in made)
    for place in (own_temporary_folder, Path(spark.sparkContext.getConf().get("spark.local.dir"))):
        assert not list(place.glob("tally-rebuild-*"))


@pytest.mark.spark
def test_executors_write_to_a_bucket(s3: S3Lab, golden: Golden) -> None:
    """With the credentials in their environment: a separate process, whose Java starts with them."""
    pytest.importorskip("pyspark.sql", reason="needs the group `spark`")
    output = s3.output()
    command = [
        sys.executable,
        "-m",
        "tallystick.spark.jobs.cli",
        "export",
        "--path",
        f"n0={golden('edge')}",
        "--master",
    ]
    command += ["local[1]", "--json", "--out", output.place]
    environment = os.environ | {"AWS_ENDPOINT_URL": s3.endpoint, "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    names = [name for name in output.names() if name.endswith(".parquet")]
    assert json.loads(done.stdout)["added_files"] == len(names) > 0
    assert os.environ["AWS_SECRET_ACCESS_KEY"] not in done.stdout + done.stderr


def test_an_item_can_prefer_a_host(spark: Any) -> None:
    from tallystick.spark.runner import located

    rdd = located(spark.sparkContext, ["a", "b"], lambda item: f"host-{item}")
    java = rdd._jrdd.rdd()
    preferred = [java.preferredLocations(part).mkString(",") for part in java.partitions()]
    assert preferred == ["host-a", "host-b"]
    assert on_spark(spark.sparkContext, lambda item: "elsewhere")(len, [[1], [2, 3]]) == [1, 2]


def test_a_single_item_of_a_local_spark_is_done_here(spark: Any) -> None:
    context = spark.sparkContext
    assert on_spark(context)(lambda _: os.getpid(), [1]) == [os.getpid()]
    assert os.getpid() not in on_spark(context)(lambda _: os.getpid(), [1, 2])
    assert os.getpid() not in on_spark(context, lambda item: "elsewhere")(lambda _: os.getpid(), [1])
