"""Runs the job of a plan: its options, stores and output."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tallystick.spark.cluster.plan import BucketPlace, FolderPlace, JobPlan, Place
from tallystick.spark.jobs.job import Call
from tallystick.spark.jobs.program import PROGRAM
from tallystick.spark.jobs.registry import page_of
from tallystick.spark.options import ReadOptions, StorePath
from tallystick.spark.outputs import FolderOutput, Output
from tallystick.spark.runner import Runner

SUMMARIES = "_summaries"


def options_of(plan: JobPlan) -> ReadOptions:
    """Returns the options of the plan. OptionError."""
    given = plan.arguments
    options = {"path": plan.sources[0].root}
    for name, value in (("from", given.from_), ("to", given.to)):
        if value is not None:
            options[name] = value
    parsed = ReadOptions.parse(options)
    return replace(
        parsed,
        paths=tuple(StorePath(place.root, place.node, place.group, place.http) for place in plan.sources),
        wanted=replace(parsed.wanted, topics=given.topics, queues=given.queues),
    )


def places_of(plan: JobPlan) -> dict[str, Place]:
    """Returns the stores by their names in the items of the job."""
    return {place.node if plan.job.all_members or plan.job.followers else place.group: place for place in plan.sources}


def output_of(plan: JobPlan) -> Output | None:
    """Returns the output of the plan. OutputError."""
    match plan.output:
        case FolderPlace(folder, shared):
            return FolderOutput(Path(folder), shared=shared)
        case BucketPlace(uri, endpoint, region):
            from tallystick.spark.outputs_s3 import S3Output

            return S3Output(uri, endpoint, region)
    return None


def resolved(plan: JobPlan) -> JobPlan:
    """Returns the plan with the newest backup's id in each address that names the newest one, so that all tasks read
    the same. VolumeError, OptionError."""
    if all(place.http is not None for place in plan.sources):
        return plan
    roots = {source.source: source.root for source in options_of(plan).sources()}
    sources = [place if place.http else replace(place, root=roots[place.group]) for place in plan.sources]
    return replace(plan, sources=tuple(sources))


def run_job(plan: JobPlan, runner: Runner, output: Output | None) -> dict[str, Any]:
    """Runs the job and returns its summary. It raises the job's exceptions."""
    if plan.program is not None:
        # It reads through the data source, so the runner would count nothing.
        return plan.job.run(Call(options_of(plan), runner, output, {PROGRAM: plan.program}))
    return plan.job.summary_of(Call(options_of(plan), runner, output, plan.arguments.own))


def save_summary(plan: JobPlan, output: Output, summary: Mapping[str, Any]) -> None:
    """Writes the summary, and its HTML page if the job has one, to the output. OSError."""
    name = f"{SUMMARIES}/{plan.name}-{plan.attempt}"
    output.write(f"{name}.json", json.dumps(summary).encode())
    page = page_of(summary)
    if page is not None:
        output.write(f"{name}.html", page.encode())
