"""The command lines of the two kinds of Java processes: the driver's gateway, and an executor.

Each pod runs one Java process. Spark's scripts start one Java process to find out how to start another, and a
standalone cluster has daemons for the master and for each worker. A small job would mostly wait for these starts. Here
the driver's Java contains the master (`configuration.py`). An executor is started by its class, as in Spark's
Kubernetes mode: it gets its settings from the driver, and ends when the driver ends.

The processes live for seconds, so they compile little and collect garbage with one thread. With an archive of classes
(`archive.py`) they start in about half the time.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

GATEWAY = "org.apache.spark.api.python.PythonGatewayServer"
EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
ARCHIVE_VARIABLE = "TALLYSTICK_JAVA_ARCHIVE"
_OPENED = (  # packages that Spark reaches into; a test compares them with what Spark's launcher says
    *("java.lang", "java.lang.invoke", "java.lang.reflect", "java.io", "java.net", "java.nio", "java.util"),
    *("java.util.concurrent", "java.util.concurrent.atomic", "jdk.internal.ref", "sun.nio.ch", "sun.nio.cs"),
    *("sun.security.action", "sun.util.calendar"),
)
_LOGGING = """\
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{yyyy-MM-dd HH:mm:ss,SSS} %p %c: %m%n%ex{short}
logger.native.name = org.apache.hadoop.util.NativeCodeLoader
logger.native.level = error
logger.master.name = org.apache.spark.deploy.master.Master
logger.master.level = error
logger.conf.name = org.apache.spark.SparkConf
logger.conf.level = error
"""
"""Logs warnings, except those of every run: no native code, a master without workers, a folder given twice."""
_SHORT_LIVED = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-Xshare:auto")


def logging_options(folder: Path) -> tuple[str, ...]:
    """Writes the file with Java's log settings. Returns the option that names it."""
    file = folder / "log4j2.properties"
    file.write_text(_LOGGING)
    return (f"-Dlog4j2.configurationFile={file}",)


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports of a run. The defaults are fixed, so that a network policy can name them. With other ports, several
    clusters can run on one machine."""

    driver: int = 7077
    blocks: int = 7078
    progress: int = 8080


@dataclass(frozen=True, slots=True)
class Java:
    """A Java, its jars, and its archive of classes (`archive.py`; None: there is no archive)."""

    program: str
    jars: tuple[str, ...]
    archive: str | None = None

    @classmethod
    def found(cls, environment: Mapping[str, str] = os.environ) -> Java:
        """Returns the Java of this machine (`JAVA_HOME`, or from PATH), with the jars of the installed pyspark."""
        import pyspark

        home = environment.get("JAVA_HOME")
        folder = Path(environment.get("SPARK_HOME") or Path(pyspark.__file__).parent) / "jars"
        archive = environment.get(ARCHIVE_VARIABLE)
        return cls(
            str(Path(home, "bin", "java")) if home else "java",
            tuple(sorted(str(path) for path in folder.glob("*.jar"))),  # an archive is valid for one order of the jars
            archive if archive and Path(archive).exists() else None,
        )

    def command(self, main: str, memory_mib: int, options: Sequence[str], arguments: Sequence[str]) -> list[str]:
        archive = [] if self.archive is None else [f"-XX:SharedArchiveFile={self.archive}"]
        opened = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED]
        reach = ["-Dio.netty.tryReflectionSetAccessible=true", "-Dio.netty.allocator.type=pooled"]
        return [
            *(self.program, f"-Xmx{memory_mib}m", *_SHORT_LIVED, *archive, *opened, *reach, *options),
            *("-cp", ":".join(self.jars), main, *arguments),
        ]

    def gateway(self, memory_mib: int, options: Sequence[str] = ()) -> list[str]:
        """Returns the command of the driver's Java. It writes its port and a secret to the file that
        `_PYSPARK_DRIVER_CONN_INFO_PATH` names."""
        return self.command(GATEWAY, memory_mib, options, ())

    def executor(
        self, *, number: int, host: str, driver: str, app: str, cores: int, memory_mib: int, options: Sequence[str] = ()
    ) -> list[str]:
        """Returns the command of an executor. `driver`: host:port; `app`: the job's name; `number`: unique in the run.

        The executor reads the secret from the variable `_SPARK_AUTH_SECRET`, so that no list of processes shows it.
        """
        secured = ["-Dspark.authenticate=true", "-Dspark.network.crypto.enabled=true"]
        arguments = {
            "--driver-url": f"spark://CoarseGrainedScheduler@{driver}",
            "--executor-id": str(number),
            "--bind-address": host,
            "--hostname": host,
            "--cores": str(cores),
            "--app-id": app,
            "--resourceProfileId": "0",
        }
        flat = [each for pair in arguments.items() for each in pair]
        return self.command(EXECUTOR, memory_mib, [*secured, *options], flat)
