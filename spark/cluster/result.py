"""The result of a run, for the operator: JSON of at most 4096 bytes, Kubernetes' limit for a termination message.

    {"verdict": "Clean", "message": "clean: 3,313 records of 3 stores", "seconds": 31.2,
     "figures": {"records": 3313, "bytes": 3175433, "rows": 0, "files": 0, "differing": 0, "bytesRead": 6350866},
     "sources": [{"node": "c-0-1", "bound": 3175433, "records": 3313, "via": "local"}],
     "differences": ["..."], "output": null, "error": "only if it was not done"}

`verdict`: see `jobs/job.py`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from tallystick.spark.cluster.plan import BucketPlace, FolderPlace, JobPlan
from tallystick.spark.jobs.job import DAMAGE, Summary
from tallystick.spark.jobs.registry import job_of, verdict_of

MOST_BYTES = 4096  # fixed by Kubernetes, for the termination messages of a container
_SHORT = 160
_MOST_FINDINGS = 40


def result_of(plan: JobPlan, summary: Summary, via: Callable[[str], str | None], seconds: float) -> dict[str, Any]:
    """Returns the result of a job that ran. `via`: how the store of a node was read. Pure."""
    verdict, figures = verdict_of(summary), figures_of(summary)
    found = {
        "verdict": verdict,
        "message": message_of(verdict, figures, summary),
        "seconds": seconds,
        "figures": figures,
        "sources": _sources(plan, summary, via),
        "differences": list(job_of(summary).findings(summary)[:_MOST_FINDINGS]),
        "output": output_name(plan),
    }
    if plan.program is not None:
        found["program"] = {"exitCode": 0, "log": list(summary["log"])}
    return found


def failure_of(plan: JobPlan | None, reason: str, seconds: float) -> dict[str, Any]:
    """Returns the result of a job that could not run."""
    output = None if plan is None else output_name(plan)
    return {"message": f"not done: {reason}", "seconds": seconds, "output": output, "error": reason}


def fitting(result: Mapping[str, Any], most: int = MOST_BYTES) -> bytes:
    """Returns the result as JSON of limited size: texts are shortened, then the last differences and sources, and the
    first lines of a program's log, dropped."""
    kept: dict[str, Any] = {name: _cut(value) if isinstance(value, str) else value for name, value in result.items()}
    kept["differences"] = [_cut(text) for text in result.get("differences", ())]
    kept["sources"] = list(result.get("sources", ()))
    lists: list[list[Any]] = [kept["differences"], kept["sources"]]
    if "program" in result:
        log = list(reversed(result["program"]["log"]))
        kept["program"] = {**result["program"], "log": log}
        lists.append(log)
    while len(json.dumps(kept, ensure_ascii=False).encode()) > most:
        longest = max(lists, key=len)
        if not longest:
            return json.dumps({"message": _cut(str(result.get("message", ""))), "error": "no room"}).encode()
        longest.pop()
    if "program" in kept:
        kept["program"]["log"].reverse()
    return json.dumps(kept, ensure_ascii=False).encode()


def _cut(text: str, most: int = 3 * _SHORT) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def figures_of(summary: Summary) -> dict[str, int]:
    """Returns the figures. `records` and `bytes`: of messages in the log; `rows` and `files`: written or found;
    `differing`: places; `bytesRead`: what tasks read of logs, with what they read twice."""
    found = dict.fromkeys(("records", "bytes", "rows", "files", "differing"), 0) | dict(
        job_of(summary).figures(summary)
    )
    return found | {"bytesRead": summary.get("bytes_read", 0)}


def message_of(verdict: str, figures: Mapping[str, int], summary: Summary) -> str:
    """Returns one line for users."""
    text = job_of(summary).message(summary, figures)
    if verdict == DAMAGE:
        text += f", {summary.get('damaged') or 'some'} damaged places"
    return text


def _sources(plan: JobPlan, summary: Summary, via: Callable[[str], str | None]) -> list[dict[str, Any]]:
    told = {each["source"]: each for each in summary.get("sources", summary.get("volumes", ()))}
    found = []
    for place in plan.sources:
        each = told.get(source_name(plan, place.node), {})
        records = each.get("records", each.get("added_rows"))
        bound = each.get("bound", each.get("end"))
        found.append({"node": place.node, "bound": bound, "records": records, "via": via(place.node)})
    return found


def source_name(plan: JobPlan, node: str) -> str:
    """Returns the name of a node's store in the job: that of the member or, if the job reads one of a group, the
    group's."""
    every = plan.job.all_members or plan.job.followers
    return node if every else next(place.group for place in plan.sources if place.node == node)


def output_name(plan: JobPlan) -> str | None:
    match plan.output:
        case FolderPlace(folder):
            return folder
        case BucketPlace(uri):
            return uri
    return None
