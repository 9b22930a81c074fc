"""The examples for Spark in Kubernetes. The tests on kind run two of them; the third one must mean the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tallystick.operator.jobs.spec import JobSpec

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples" / "spark"
RESTRICTED = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}


def bodies(name: str) -> dict[str, Any]:
    """The objects of an example by kind."""
    return {body["kind"]: body for body in yaml.safe_load_all((EXAMPLES / name).read_text())}


def submitted() -> tuple[dict[str, str], list[str]]:
    """The settings of the example with spark-submit, and its program with arguments."""
    (container,) = bodies("spark-submit.yaml")["Job"]["spec"]["template"]["spec"]["containers"]
    options = [each.removeprefix("--conf=") for each in container["args"] if each.startswith("--conf=")]
    settings = dict(option.split("=", 1) for option in options)
    return settings, [each for each in container["args"][1:] if not each.startswith("--")]


def test_the_spark_application_is_the_example_that_runs() -> None:
    spec = bodies("sparkapplication.yaml")["SparkApplication"]["spec"]
    settings, program = submitted()
    data = bodies("spark-submit.yaml")["ConfigMap"]["data"]
    for role in ("driver", "executor"):
        assert settings.pop(f"spark.kubernetes.{role}.podTemplateFile") == f"/etc/messages/{role}.yaml"
        assert spec[f"{role}Spec"]["podTemplateSpec"] == yaml.safe_load(data[f"{role}.yaml"])
    assert spec["sparkConf"] == settings
    assert [spec["pyFiles"], *spec["driverArgs"]] == program


def test_all_pods_satisfy_the_restricted_level() -> None:
    found = bodies("spark-submit.yaml")
    data = found["ConfigMap"]["data"]
    pods = [yaml.safe_load(data[f"{role}.yaml"])["spec"] for role in ("driver", "executor")]
    for pod in (*pods, found["Job"]["spec"]["template"]["spec"]):
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert [container["securityContext"] for container in pod["containers"]] == [RESTRICTED]


@pytest.mark.parametrize("key", ["topics.py", "sizes.py"])
def test_the_program_of_the_storejob_can_be_compiled(key: str) -> None:
    found = bodies("program.yaml")
    compile(found["ConfigMap"]["data"][key], key, "exec")
    spec = JobSpec.parse(found["StoreJob"]["spec"])
    assert spec.program is not None and spec.program.config_map == found["ConfigMap"]["metadata"]["name"]
    assert spec.program.key in found["ConfigMap"]["data"]
