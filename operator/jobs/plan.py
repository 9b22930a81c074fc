"""plan.json: the input of driver and workers of one attempt. Pure.

It is written once for each attempt, before its first pod is created, and does not change while a pod exists. Pods are
created from it, so another operator creates the same pods. `spark/README.md` describes its fields; the job runtime
rejects unknown fields.

    sources[].host        the worker that mounts the volume; null: no worker, so any worker reads it over `http`
    sources[].moreHosts   further workers that mount it, if there are any
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from tallystick.operator.core.kube import Json
from tallystick.operator.core.names import numbers_of
from tallystick.operator.core.node_api import NodeName
from tallystick.operator.jobs.backup_source import SCHEME
from tallystick.operator.jobs.names import JobNames
from tallystick.operator.jobs.sources import Choice
from tallystick.operator.jobs.spec import TAKE_SETTINGS, ClaimOutput, Job, S3Output

VERSION = 1
EXECUTORS_WAIT_SECONDS = 60
"""The driver starts without workers that are not available by then; their volumes are read over HTTP."""
STORES = "/stores"
OUT = "/out"


def plan(job: Job, choice: Choice, attempt: int, url_template: str) -> Json:
    """Returns the plan of an attempt. `url_template`: see NODE_URL_TEMPLATE in the settings of the operator."""
    spec, names = job.spec, JobNames(job.namespace, job.name, job.spec.cluster)
    found: Json = {
        "version": VERSION,
        "job": spec.job,
        "name": job.name,
        "attempt": attempt,
        "arguments": _arguments(_with_settings(job, choice)),
        "driver": {"host": names.driver_host, "memoryMiB": spec.driver.memory_mib},
        "executor": {"cores": spec.executor.cores, "memoryMiB": spec.executor.memory_mib},
        "executorsWaitSeconds": EXECUTORS_WAIT_SECONDS,
        "sources": [
            {
                "node": source.node,
                "group": source.group,
                "member": source.member,
                "root": f"{SCHEME}{source.address}" if source.address else root(source.node),
                "host": source.hosts[0] if source.hosts else None,
                **({"moreHosts": list(source.hosts[1:])} if source.hosts[1:] else {}),
                "http": None if source.address else _http(job, source.node, url_template),
            }
            for source in choice.sources
        ],
        "output": _output(job, choice),
    }
    if (program := spec.program) is not None:
        arguments, settings = list(program.arguments), dict(program.spark_conf)
        found["program"] = {"file": program.path, "arguments": arguments, "sparkConf": settings}
    return found


def text_of(plan: Json) -> str:
    """Returns a plan as text for the ConfigMap."""
    return orjson.dumps(plan, option=orjson.OPT_INDENT_2).decode()


def plan_of(text: str) -> Json | None:
    """Parses a plan; None: the text is not a plan."""
    try:
        found = orjson.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) and isinstance(found.get("attempt"), int) else None


def root(node: str) -> str:
    """Returns the folder of the store in a worker that mounts the volume."""
    return f"{STORES}/{node}/store"


def _http(job: Job, node: str, url_template: str) -> str:
    name = NodeName(job.namespace, job.spec.cluster, *numbers_of(node))
    return url_template.format(node=name, namespace=job.namespace)


def _with_settings(job: Job, choice: Choice) -> Mapping[str, Any]:
    """Returns the arguments; those of a job that needs settings of the store also with the cluster's."""
    arguments = job.spec.arguments
    if job.spec.job not in TAKE_SETTINGS:
        return arguments
    return {**arguments, "settings": {**choice.settings, **(arguments.get("settings") or {})}}


def _arguments(given: Mapping[str, Any]) -> Json:
    """Returns the given arguments. Empty texts, lists and objects are left out: they mean no limit, as if missing."""
    return {name: value for name, value in given.items() if value not in (None, "", [], {})}


def _output(job: Job, choice: Choice) -> Json | None:
    match job.spec.output:
        case ClaimOutput(path=path):
            return {"folder": f"{OUT}/{path}" if path else OUT, "shared": choice.shared}
        case S3Output(uri, endpoint, region):
            return {"s3": {"uri": uri, "endpoint": endpoint or None, "region": region or None}}
    return None
