"""A user's own program in a StoreJob: how it ends, what it says, and how it reads the stores of the job."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from cluster_lab import PATIENCE_S, Cluster, place
from store_server import serving

from tallystick.spark import program as user_side
from tallystick.spark.jobs.job import Call
from tallystick.spark.jobs.program import PROGRAM, Program, ProgramFailedError, run
from tallystick.spark.options import ReadOptions
from tallystick.spark.program import ProgramResult, set_result
from tallystick.spark.runner import inline
from tallystick.spark.volume import open_volume

pytestmark = pytest.mark.spark

Golden = Callable[[str], Path]


@pytest.fixture(autouse=True)
def no_result() -> Iterator[None]:
    yield
    user_side._result = ProgramResult()


def ran(folder: Path, text: str, *arguments: str) -> Mapping[str, Any]:
    file = folder / "job.py"
    file.write_text(text)
    options = ReadOptions.parse({"path": "x"})
    return run(Call(options, inline, None, {PROGRAM: Program(str(file), arguments)}))


def failed(folder: Path, text: str) -> ProgramFailedError:
    with pytest.raises(ProgramFailedError) as caught:
        ran(folder, text)
    return caught.value


def test_a_program_has_its_arguments_its_modules_and_a_result(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "helper_of_a_test.py").write_text("def twice(x): return 2 * x")
    before = list(sys.argv), list(sys.path)
    summary = ran(
        tmp_path,
        "import os, sys\n"
        "from helper_of_a_test import twice\n"
        "from tallystick.spark.program import set_result\n"
        "assert __name__ == '__main__'\n"
        "print('arguments', sys.argv[1:])\n"
        "os.system('echo from a child')\n"
        "set_result('two  lines\\nof text', orders=twice(6))\n",
        "--day",
        "2026-11-26",
    )
    assert summary["message"] == "two lines of text" and summary["figures"] == {"orders": 12}
    assert "arguments ['--day', '2026-11-26']" in summary["log"] and "from a child" in summary["log"]
    assert "from a child" in capfd.readouterr().out, "the log of the pod has it as well"
    assert (sys.argv, sys.path) == before


@pytest.mark.parametrize(
    ("text", "status", "reason", "last"),
    [
        ("x = {}\nx['a']", 1, "the program raised KeyError: 'a'", "KeyError: 'a'"),
        ("raise ValueError", 1, "the program raised ValueError", "ValueError"),
        ("x = (", 1, "the program raised SyntaxError: '(' was never closed (job.py, line 1)", "SyntaxError: "),
        ("import sys; sys.exit(3)", 3, "the program ended with exit status 3", None),
        ("import sys; sys.exit(-1)", 255, "the program ended with exit status 255", None),
        ("import sys; sys.exit('no day')", 1, "the program ended with exit status 1", "no day"),
        (
            "open('/proc/nowhere', 'w')",
            1,
            "the program raised FileNotFoundError: [Errno 2] No such",
            "FileNotFoundError",
        ),
    ],
)
def test_how_a_program_fails(tmp_path: Path, text: str, status: int, reason: str, last: str | None) -> None:
    error = failed(tmp_path, text)
    assert error.status == status and str(error).startswith(reason)
    assert last is None or error.log[-1].startswith(last)
    assert not any("runpy" in line for line in error.log), "the traceback begins in the program"


@pytest.mark.parametrize("text", ["pass", "import sys; sys.exit()", "import sys; sys.exit(0)"])
def test_how_a_program_succeeds(tmp_path: Path, text: str) -> None:
    assert ran(tmp_path, text)["message"] == ""


def test_the_last_lines_are_kept_and_long_ones_are_cut(tmp_path: Path) -> None:
    error = failed(tmp_path, "for n in range(100): print(n, 'ö' * n * 10, flush=True)\nraise SystemExit(1)")
    assert len(error.log) == 10 and error.log[-1].startswith("99 ö") and all(len(line) <= 200 for line in error.log)


def test_a_program_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"the image has no file /opt/nowhere\.py"):
        run(Call(ReadOptions.parse({"path": "x"}), inline, None, {PROGRAM: Program("/opt/nowhere.py")}))


@pytest.mark.parametrize(
    ("message", "figures", "wrong"),
    [
        ("", {"mean": 1.5}, "mean must be a whole number"),
        ("", {"is": True}, "is must be a whole number"),
        ("", {"big": 2**63}, "big must be a whole number"),
        ("", {"ö": 1}, "name of the figure"),
        ("x" * 401, {}, "401 characters"),
        ("", {f"f{n}": n for n in range(33)}, "33 figures"),
    ],
)
def test_a_result_that_the_status_cannot_have_is_refused(message: str, figures: dict[str, Any], wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        set_result(message, **figures)


# -- with Spark --------------------------------------------------------------------------------------------------------

READS = """
import sys
from pyspark.sql import SparkSession
from tallystick.spark.program import set_result
import names

spark = SparkSession.builder.appName("mine").config("spark.sql.shuffle.partitions", "3").getOrCreate()
messages = spark.read.format("tallystick").option("splitBytes", "100000").load()
sources = sorted(row.source for row in messages.select("source").distinct().collect())
lengths = messages.rdd.map(lambda row: names.length(row.topic)).sum()
print("sources", sources, spark.conf.get("spark.sql.ansi.enabled"))
set_result("read " + sys.argv[1], messages=messages.count(), lengths=lengths)
spark.stop()
"""


def test_a_program_reads_any_follower_that_is_mounted(
    golden: Golden, cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    """The first member has no worker: it gives the bound. The two others have its log, and two workers, in place."""
    roots = [golden(f"dledger-n{number}") for number in range(3)]
    records = sum(1 for _ in _rows(roots[0]))
    (tmp_path / "program").mkdir()
    (tmp_path / "program" / "job.py").write_text(READS)
    (tmp_path / "program" / "names.py").write_text("def length(topic): return len(topic)")
    program = {
        "file": str(tmp_path / "program" / "job.py"),
        "arguments": ["all"],
        "sparkConf": {"spark.sql.ansi.enabled": "false"},
    }
    with (
        serving(roots[0], open_volume(roots[0]).bound) as planned,
        serving(roots[1], open_volume(roots[1]).bound) as own,
    ):
        places = [
            place(0, roots[0], planned.address, host=False),
            place(1, roots[1], own.address) | {"moreHosts": ["127.0.0.9"]},
            place(2, roots[2], "http://127.0.0.1:9", host=False),
        ]
        run = cluster(places, job=PROGRAM, program=program)
        workers = [run.worker("c-0-1"), run.worker("c-0-1", 2)]
        driver = run.driver()
        assert driver.wait(PATIENCE_S) == 0, run.told()
        assert [worker.wait(30) for worker in workers] == [0, 0]
    result = run.result
    assert (result["verdict"], result["message"]) == ("Done", "read all")
    assert result["figures"]["messages"] == records and result["figures"]["lengths"] > records
    assert result["program"]["exitCode"] == 0 and "sources ['c-0'] false" in result["program"]["log"]
    assert {each["node"]: each["via"] for each in result["sources"]} == {
        "c-0-0": None,
        "c-0-1": "local",
        "c-0-2": None,
    }, run.told()
    assert result["figures"]["records"] >= 3 * records


def test_a_program_and_a_job_read_a_backup(
    golden: Golden, cluster: Callable[..., Cluster], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest one, encrypted. The id is the same for all tasks."""
    root, key, folder = golden("clean"), tmp_path / "key", tmp_path / "backups"
    tally = [sys.executable, "-m", "tallystick.node.cli", "backup"]
    monkeypatch.setenv("TALLY_BACKUP_KEY_FILE", str(key))
    subprocess.run([*tally, "new-key", str(key)], check=True)
    for _ in range(2):
        subprocess.run([*tally, "create", str(root), str(folder), "--name", "c/c-0"], check=True)
    records = sum(1 for _ in _rows(root))
    address = f"backup:{folder}/c/c-0/latest"
    source = {"node": "c-0", "group": "c-0", "member": 0, "root": address, "host": "127.0.0.2", "http": None}

    (tmp_path / "program").mkdir()
    (tmp_path / "program" / "job.py").write_text(READS)
    (tmp_path / "program" / "names.py").write_text("def length(topic): return len(topic)")
    program = {"file": str(tmp_path / "program" / "job.py"), "arguments": ["it"], "sparkConf": {}}
    for job, more in (("stats", {}), (PROGRAM, {"program": program})):
        run = cluster([source], job=job, **more)
        worker, driver = run.worker("c-0"), run.driver()
        assert driver.wait(PATIENCE_S) == 0, run.told()
        assert worker.wait(30) == 0
        (told,) = run.result["sources"]
        assert (told["node"], told["via"]) == ("c-0", "backup"), run.result
        assert run.result["figures"]["records"] >= records, run.result
    assert run.result["figures"]["messages"] == records and "sources ['c-0']" in run.result["program"]["log"][0]


def _rows(root: Path) -> Iterator[object]:
    from tallystick.spark.scan import SplitScan
    from tallystick.spark.splits import plan

    for split in plan(open_volume(root)):
        for batch in SplitScan(split, ["topic"]):
            yield from range(batch.num_rows)


def test_a_program_that_never_ends_is_stopped_and_one_that_fails_says_how(
    cluster: Callable[..., Cluster], golden: Golden, tmp_path: Path
) -> None:
    file = tmp_path / "job.py"
    file.write_text("import time\nprint('I wait', flush=True)\nwhile True: time.sleep(0.1)")
    program = {"file": str(file), "arguments": [], "sparkConf": {}}
    run = cluster([place(0, golden("dledger-n0"))], job=PROGRAM, program=program)
    run.worker("c-0-0")
    driver = run.driver()
    while driver.poll() is None and "I wait" not in run.told():
        os.sched_yield()
    driver.terminate()
    assert driver.wait(30) == 2, run.told()
    assert run.result["error"] == "it received SIGTERM"
