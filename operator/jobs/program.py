"""`spec.program`: a user's own PySpark program, its settings of Spark, and what the operator refuses there. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

FOLDER, SECRET_FOLDER = "/etc/tallystick-program", "/etc/tallystick-program-secret"
"""Where driver and workers mount the ConfigMap and the Secret."""

FIXED_SETTINGS: Mapping[str, str] = {
    "spark.driver.memory": "spec.driver.memory",
    "spark.driver.cores": "spec.driver.resources",
    "spark.executor.memory": "spec.executor.memory",
    "spark.executor.cores": "spec.executor.cores",
    "spark.executor.instances": "spec.executor.instances",
    "spark.jars.packages": "an image that has them",
    "spark.jars.repositories": "an image that has them",
    **dict.fromkeys(
        (
            *("spark.master", "spark.remote", "spark.app.id", "spark.app.name", "spark.cores.max", "spark.local.dir"),
            *("spark.driver.host", "spark.driver.port", "spark.driver.bindAddress", "spark.driver.blockManager.port"),
            *("spark.driver.memoryOverhead", "spark.driver.extraJavaOptions", "spark.driver.defaultJavaOptions"),
            *("spark.driver.extraClassPath", "spark.driver.extraLibraryPath"),
            *("spark.executor.memoryOverhead", "spark.executor.extraJavaOptions", "spark.executor.defaultJavaOptions"),
            *("spark.executor.extraClassPath", "spark.executor.extraLibraryPath", "spark.ui.showConsoleProgress"),
        ),
        "",
    ),
}
"""Settings that a run has already, and the field of the StoreJob that sets them, if there is one."""
FIXED_FAMILIES = (
    *("spark.authenticate", "spark.network.crypto", "spark.deploy", "spark.standalone", "spark.master", "spark.worker"),
    *("spark.submit", "spark.kubernetes", "spark.yarn", "spark.dynamicAllocation", "spark.executorEnv"),
    "spark.pyspark",
)
"""Beginnings of further ones: the name itself, and all names that continue it with a dot."""
_SECRET = re.compile(r"secret|password|passwd|token|credential|access\.?key", re.IGNORECASE)


class ProgramError(ValueError):
    """`spec.program` is invalid. The message names the field."""


@dataclass(frozen=True, slots=True)
class Program:
    """Either `config_map` and `key`, or `file` in the image. `secret`: a Secret that the pods mount; empty: none."""

    file: str = ""
    config_map: str = ""
    key: str = ""
    arguments: tuple[str, ...] = ()
    spark_conf: Mapping[str, str] = field(default_factory=dict)
    secret: str = ""

    @classmethod
    def parse(cls, spec: Mapping[str, Any]) -> Program:
        """Parses `spec.program`. ProgramError."""
        source, file = spec.get("configMap") or {}, str(spec.get("file") or "")
        if bool(source) == bool(file):
            raise ProgramError("spec.program must have exactly one of file and configMap")
        settings = {str(name): str(value) for name, value in (spec.get("sparkConf") or {}).items()}
        for name in settings:
            if why := _refused(name):
                raise ProgramError(f"spec.program.sparkConf: {name} {why}")
        return cls(
            file=file,
            config_map=str(source.get("name") or ""),
            key=str(source.get("key") or ""),
            arguments=tuple(map(str, spec.get("arguments") or ())),
            spark_conf=settings,
            secret=str(spec.get("secretName") or ""),
        )

    @property
    def path(self) -> str:
        """The file in the pods."""
        return self.file or f"{FOLDER}/{self.key}"


def _refused(name: str) -> str:
    """Returns why a setting is refused; empty: it is not."""
    if not name.startswith("spark."):
        return "does not begin with spark."
    if name in FIXED_SETTINGS:
        field_name = FIXED_SETTINGS[name]
        return "is set by the operator" + (f": use {field_name}" if field_name else "")
    if any(name == family or name.startswith(f"{family}.") for family in FIXED_FAMILIES):
        return "is set by the operator"
    if _SECRET.search(name):
        return "looks like a secret, which all users who can read the StoreJob would see: use spec.program.secretName"
    return ""
