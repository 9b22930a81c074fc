"""The entry point of the jobs image: it starts what Spark on Kubernetes asks an image for.

`spark-submit --master k8s://` and Spark's operator create pods whose arguments begin with `driver` or `executor`, and
describe the process in variables `SPARK_*`. Any other arguments are a command. A StoreJob names its own command, so it
does not come here.

    driver ARG...      spark-submit in this pod: --properties-file, --class, the program and its arguments
    executor ...       an executor of the driver at SPARK_DRIVER_URL; further arguments have no meaning
    COMMAND ARG...     that command

Java finds the user's name in /etc/passwd. The image has a name for its own user (10001) and for root, no others.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence

EXECUTOR = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
_EXECUTOR_OPTIONS = {
    "--driver-url": "SPARK_DRIVER_URL",
    "--executor-id": "SPARK_EXECUTOR_ID",
    "--cores": "SPARK_EXECUTOR_CORES",
    "--app-id": "SPARK_APPLICATION_ID",
    "--hostname": "SPARK_EXECUTOR_POD_IP",
    "--resourceProfileId": "SPARK_RESOURCE_PROFILE_ID",
    "--podName": "SPARK_EXECUTOR_POD_NAME",
}
_DRIVER_ADDRESS = "SPARK_DRIVER_BIND_ADDRESS"
_JAVA_OPTION = re.compile(r"SPARK_JAVA_OPT_(\d+)")


class EntryError(ValueError):
    """The environment does not have what the role needs. The text names the variables."""


def command_of(arguments: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """Returns the command to run instead of this process. EntryError."""
    role, more = (arguments[0], list(arguments[1:])) if arguments else ("", [])
    match role:
        case "driver":
            return _driver(more, environment)
        case "executor":
            return _executor(environment)
        case "":
            return ["tally-spark", "--help"]
    return list(arguments)


def _driver(arguments: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    _need(environment, (_DRIVER_ADDRESS,))
    address = environment[_DRIVER_ADDRESS]
    settings = {"spark.driver.bindAddress": address, "spark.executorEnv.SPARK_DRIVER_POD_IP": address}
    flat = [each for name, value in settings.items() for each in ("--conf", f"{name}={value}")]
    return [f"{_home(environment)}/bin/spark-submit", *flat, "--deploy-mode", "client", *arguments]


def _executor(environment: Mapping[str, str]) -> list[str]:
    _need(environment, ("SPARK_EXECUTOR_MEMORY", *_EXECUTOR_OPTIONS.values()))
    memory = environment["SPARK_EXECUTOR_MEMORY"]
    options = [each for option, name in _EXECUTOR_OPTIONS.items() for each in (option, environment[name])]
    java = f"{environment['JAVA_HOME']}/bin/java" if environment.get("JAVA_HOME") else "java"
    heap = [f"-Xms{memory}", f"-Xmx{memory}"]
    return [java, *_java_options(environment), *heap, "-cp", _class_path(environment), EXECUTOR, *options]


def _java_options(environment: Mapping[str, str]) -> list[str]:
    """Returns the values of SPARK_JAVA_OPT_0, SPARK_JAVA_OPT_1 and so on, in the order of their numbers."""
    found = {int(match[1]): name for name in environment if (match := _JAVA_OPTION.fullmatch(name))}
    return [environment[found[number]] for number in sorted(found)]


def _class_path(environment: Mapping[str, str]) -> str:
    home = _home(environment)
    parts = [
        environment.get("HADOOP_CONF_DIR", ""),
        environment.get("SPARK_CONF_DIR", "") or f"{home}/conf",
        environment.get("SPARK_CLASSPATH", ""),
        f"{home}/jars/*",
        environment.get("SPARK_EXTRA_CLASSPATH", ""),
        environment.get("SPARK_DIST_CLASSPATH", ""),
    ]
    return ":".join(part for part in parts if part)


def _home(environment: Mapping[str, str]) -> str:
    return environment.get("SPARK_HOME") or "/opt/spark"


def _need(environment: Mapping[str, str], names: Sequence[str]) -> None:
    missing = [name for name in names if not environment.get(name)]
    if missing:
        raise EntryError(f"the environment has no {', '.join(missing)}: spark-submit --master k8s:// sets them")


def main() -> None:
    """Replaces this process by the command. Exit status 2: the environment lacks something; 127: no such command."""
    try:
        command = command_of(sys.argv[1:], os.environ)
    except EntryError as error:
        sys.exit(_told(error, 2))
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(_told(OSError(f"{command[0]}: {error.strerror}"), 127))


def _told(error: Exception, status: int) -> int:
    print(f"entrypoint: {error}", file=sys.stderr)
    return status


if __name__ == "__main__":
    main()
