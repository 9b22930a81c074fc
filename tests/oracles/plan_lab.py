"""A plan as an operator writes it, and changes to it."""

from __future__ import annotations

import copy
import json
from typing import Any

from tallystick.spark.cluster.plan import JobPlan

PLAN: dict[str, Any] = {
    "version": 1,
    "job": "audit",
    "name": "nightly",
    "attempt": 2,
    "arguments": {"topics": None, "lagMillis": 5000},
    "driver": {"host": "driver.nightly-job", "memoryMiB": 512},
    "executor": {"cores": 1, "memoryMiB": 600},
    "executorsWaitSeconds": 60,
    "sources": [
        {
            "node": f"c-0-{member}",
            "group": "c-0",
            "member": member,
            "root": f"/stores/c-0-{member}/store",
            "host": None if member == 2 else f"w-c-0-{member}.nightly-job",
            "http": f"http://c-0-{member}.n.svc:8080",
        }
        for member in range(3)
    ],
    "output": None,
}


def parsed(*changes: tuple[str, Any]) -> JobPlan:
    """`PLAN` with some places in it changed; `...` takes the key away."""
    value = copy.deepcopy(PLAN)
    for place, new in changes:
        *way, last = [int(part) if part.isdigit() else part for part in place.split(".")]
        inner: Any = value
        for part in way:
            inner = inner[part]
        if new is ...:
            del inner[last]
        else:
            inner[last] = new
    return JobPlan.parse(json.dumps(value))
