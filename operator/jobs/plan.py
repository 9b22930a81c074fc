"""plan.json: what the operator tells driver and workers of one attempt. Pure.

It is written once an attempt, before its first pod is made, and never changed while one of them is there; what pods to
make is read from it, so that an operator that comes after another makes the same ones. Names are the job runtime's
(`spark/README.md`); what it does not know, it refuses.

    sources[].host   the worker beside the volume; null: it has none, and whoever is free reads it over `http`
"""

from __future__ import annotations

from typing import Any

import orjson

from tallystick.operator.core.kube import Json
from tallystick.operator.core.node_api import NodeName
from tallystick.operator.jobs.names import JobNames, numbers_of
from tallystick.operator.jobs.sources import Choice
from tallystick.operator.jobs.spec import ClaimOutput, Job, S3Output

VERSION = 1
EXECUTORS_WAIT_SECONDS = 60
"""The driver begins without workers that are not there by then; what they would have read is read over HTTP."""
STORES = "/stores"
OUT = "/out"


def plan(job: Job, choice: Choice, attempt: int, url_template: str) -> Json:
    """`url_template`: where a member's HTTP is, as in the operator's settings."""
    spec, names = job.spec, JobNames(job.namespace, job.name, job.spec.cluster)
    return {
        "version": VERSION,
        "job": spec.job,
        "name": job.name,
        "attempt": attempt,
        "arguments": _arguments(spec.arguments),
        "driver": {"host": names.driver_host, "memoryMiB": spec.driver.memory_mib},
        "executor": {"cores": spec.executor.cores, "memoryMiB": spec.executor.memory_mib},
        "executorsWaitSeconds": EXECUTORS_WAIT_SECONDS,
        "sources": [
            {
                "node": source.node,
                "group": source.group,
                "member": source.member,
                "root": root(source.node),
                "host": source.host,
                "http": _http(job, source.node, url_template),
            }
            for source in choice.sources
        ],
        "output": _output(job, choice),
    }


def text_of(plan: Json) -> str:
    """As it stands in the ConfigMap."""
    return orjson.dumps(plan, option=orjson.OPT_INDENT_2).decode()


def plan_of(text: str) -> Json | None:
    """The reverse of `text_of`; None: it is none."""
    try:
        found = orjson.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) and isinstance(found.get("attempt"), int) else None


def root(node: str) -> str:
    """Of a broker's store, where a worker has its volume."""
    return f"{STORES}/{node}/store"


def _http(job: Job, node: str, url_template: str) -> str:
    name = NodeName(job.namespace, job.spec.cluster, *numbers_of(node))
    return url_template.format(node=name, namespace=job.namespace)


def _arguments(given: Any) -> Json:
    """All of them: what nobody gave is null, and a list of nothing is no limit."""
    return {name: given.get(name) or None for name in ("topics", "queues", "from", "to", "key", "settings")} | {
        "lagMillis": given.get("lagMillis")
    }


def _output(job: Job, choice: Choice) -> Json | None:
    match job.spec.output:
        case ClaimOutput(path=path):
            return {"folder": f"{OUT}/{path}" if path else OUT, "shared": choice.shared}
        case S3Output(uri, endpoint, region):
            return {"s3": {"uri": uri, "endpoint": endpoint or None, "region": region or None}}
    return None
