"""One Spark for all tests here: two cores, no web page, few partitions."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from s3_lab import S3Lab

# All Java processes of these tests live for seconds: they compile little, and collect garbage with one thread.
_SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
os.environ |= {"SPARK_SUBMIT_OPTS": _SHORT_LIVED, "SPARK_LAUNCHER_OPTS": _SHORT_LIVED}


@pytest.hookimpl(tryfirst=True)  # the order of all tests goes by the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the tests that use the session below; files whose tests start Spark themselves say so at their top."""
    for item in items:
        if isinstance(item, pytest.Function) and "spark" in item.fixturenames:
            item.add_marker(pytest.mark.spark)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    sql = pytest.importorskip("pyspark.sql", reason="needs the group `spark`")
    from tallystick.spark.source import register

    os.environ["PYSPARK_PYTHON"] = sys.executable
    folder = tmp_path_factory.mktemp("spark")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(folder))  # for its Python workers: a test looks for what they leave there
        session = _session(sql, folder)
    register(session)
    yield session
    session.stop()


def _session(sql: ModuleType, folder: Path) -> Any:
    return (
        sql.SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "700m")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(folder))
        .config("spark.local.dir", str(folder))
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Lab]:
    with S3Lab() as lab:
        yield lab


@pytest.fixture(params=["folder", "carried", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> object:
    """An output of each kind: a folder that tasks reach, one that only the driver does, a bucket."""
    from tallystick.spark.outputs import FolderOutput

    if request.param == "s3":
        lab: S3Lab = request.getfixturevalue("s3")
        return lab.output()
    return FolderOutput(tmp_path / "out", shared=request.param == "folder")


@pytest.fixture
def own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """For tests of what a job leaves in the temporary folder: other tests use the common one at the same time."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)  # it is found again, by the variable
    return folder
