"""What the jobs image starts for the arguments and variables that Spark's Kubernetes mode gives to a pod."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from itertools import pairwise

import pytest

from tallystick.spark.cluster.entrypoint import EXECUTOR, EntryError, command_of

OF_AN_EXECUTOR = {
    "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@driver.svc:7078",
    "SPARK_EXECUTOR_ID": "3",
    "SPARK_EXECUTOR_CORES": "2",
    "SPARK_EXECUTOR_MEMORY": "600m",
    "SPARK_APPLICATION_ID": "spark-1",
    "SPARK_EXECUTOR_POD_IP": "10.0.0.3",
    "SPARK_EXECUTOR_POD_NAME": "messages-exec-3",
    "SPARK_RESOURCE_PROFILE_ID": "0",
    "SPARK_CONF_DIR": "/opt/spark/conf",
    "SPARK_HOME": "/opt/spark",
    "JAVA_HOME": "/opt/java",
}


def test_a_driver_is_submitted_where_it_is() -> None:
    command = command_of(
        ["driver", "--properties-file", "/opt/spark/conf/spark.properties", "--class", "X", "local:///job.py", "a b"],
        {"SPARK_DRIVER_BIND_ADDRESS": "10.0.0.2", "SPARK_HOME": "/opt/spark"},
    )
    assert command[0] == "/opt/spark/bin/spark-submit"
    assert command[-6:] == [
        "--properties-file",
        "/opt/spark/conf/spark.properties",
        "--class",
        "X",
        "local:///job.py",
        "a b",
    ]
    told = dict(pairwise(command))
    assert told["--deploy-mode"] == "client", "it is in the pod of the driver already"
    assert "spark.driver.bindAddress=10.0.0.2" in command


def test_an_executor_gets_its_options_from_the_variables() -> None:
    options = {"SPARK_JAVA_OPT_10": "-Dk=x y", "SPARK_JAVA_OPT_9": "-Dj=1", "SPARK_JAVA_OPT_X": "no"}
    command = command_of(["executor"], OF_AN_EXECUTOR | options)
    assert command[:5] == ["/opt/java/bin/java", "-Dj=1", "-Dk=x y", "-Xms600m", "-Xmx600m"], "in the order of numbers"
    at = command.index(EXECUTOR)
    assert command[at - 2 : at] == ["-cp", "/opt/spark/conf:/opt/spark/jars/*"]
    told = dict(zip(command[at + 1 :: 2], command[at + 2 :: 2], strict=True))
    assert told == {
        "--driver-url": "spark://CoarseGrainedScheduler@driver.svc:7078",
        "--executor-id": "3",
        "--cores": "2",
        "--app-id": "spark-1",
        "--hostname": "10.0.0.3",
        "--resourceProfileId": "0",
        "--podName": "messages-exec-3",
    }


def test_further_class_paths_keep_their_places() -> None:
    more = {"HADOOP_CONF_DIR": "/hadoop", "SPARK_EXTRA_CLASSPATH": "/extra.jar", "SPARK_DIST_CLASSPATH": "/dist/*"}
    command = command_of(["executor"], OF_AN_EXECUTOR | more)
    assert command[command.index("-cp") + 1] == "/hadoop:/opt/spark/conf:/opt/spark/jars/*:/extra.jar:/dist/*"


@pytest.mark.parametrize(
    ("arguments", "environment", "missing"),
    [
        (["driver"], {}, "SPARK_DRIVER_BIND_ADDRESS"),
        (["executor"], {}, "SPARK_EXECUTOR_MEMORY, SPARK_DRIVER_URL"),
        (["executor"], {**OF_AN_EXECUTOR, "SPARK_EXECUTOR_ID": ""}, "SPARK_EXECUTOR_ID"),
    ],
)
def test_what_is_missing_is_named(arguments: list[str], environment: Mapping[str, str], missing: str) -> None:
    with pytest.raises(EntryError, match=f"the environment has no {missing}"):
        command_of(arguments, environment)


def test_anything_else_is_a_command() -> None:
    assert command_of(["tally-job", "stats", "--path", "/data"], {}) == ["tally-job", "stats", "--path", "/data"]
    assert command_of([], {}) == ["tally-spark", "--help"]


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        (["sh", "-c", "echo started; exit 5"], 5, "started"),
        (["no-such-command"], 127, "entrypoint: no-such-command: No such file or directory"),
        (["driver"], 2, "entrypoint: the environment has no SPARK_DRIVER_BIND_ADDRESS"),
    ],
)
def test_it_becomes_the_command(arguments: list[str], status: int, told: str) -> None:
    command = [sys.executable, "-m", "tallystick.spark.cluster.entrypoint", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == status and told in done.stdout + done.stderr
