"""One Spark for all tests here: two cores, no web page, few partitions."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from s3_lab import S3Lab


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    sql = pytest.importorskip("pyspark.sql", reason="needs the group `spark`")
    from tallystick.spark.source import register

    os.environ["PYSPARK_PYTHON"] = sys.executable
    folder = tmp_path_factory.mktemp("spark")
    session = (
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
    register(session)
    yield session
    session.stop()


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
