"""The jobs: each module of this folder that defines `JOB` is one. The command, the driver and the documents' tests use
this list, so a job is one file here and its name in the enum of `crds/storejob.yaml`."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from tallystick.spark import jobs as folder
from tallystick.spark.jobs.job import DAMAGE, DIFFERENCES, Argument, Job, Summary

_WITH_EXTRA = "iceberg_"
"""Modules that need the extra `iceberg`: none of them is a job, and they are imported when an export needs them."""


@cache
def jobs() -> dict[str, Job]:
    """Returns the jobs by name, in the order of their names. ValueError: two have the same name, or one argument is
    declared in two ways."""
    names = (found.name for found in iter_modules(folder.__path__) if not found.name.startswith(_WITH_EXTRA))
    modules = (import_module(f"{folder.__name__}.{name}") for name in names)
    found = [module.JOB for module in modules if isinstance(getattr(module, "JOB", None), Job)]
    by_name = {job.name: job for job in sorted(found, key=lambda job: job.name)}
    if len(by_name) < len(found):
        raise ValueError(f"two jobs have the same name: {', '.join(job.name for job in found)}")
    _by_argument(found)
    return by_name


def commands() -> dict[str, Job]:
    """Returns the jobs that `tally-job` has, by name."""
    return {name: job for name, job in jobs().items() if not job.only_in_cluster}


def arguments() -> dict[str, Argument]:
    """Returns the arguments of all jobs that a StoreJob can have, by name."""
    return {name: argument for name, argument in _by_argument(list(jobs().values())).items() if not argument.local}


def _by_argument(found: list[Job]) -> dict[str, Argument]:
    named: dict[str, Argument] = {}
    for job in found:
        for argument in job.arguments:
            if named.setdefault(argument.name, argument).kind is not argument.kind:
                raise ValueError(f"the argument {argument.name} has two types")
    return named


def job_of(summary: Summary) -> Job:
    """Returns the job that made a summary."""
    return jobs()[summary["job"]]


def text_of(summary: Summary) -> str:
    """Returns the summary as text."""
    return job_of(summary).text(summary)


def page_of(summary: Summary) -> str | None:
    """Returns the summary as an HTML page; None: this job has no page."""
    page = job_of(summary).page
    return None if page is None else page(summary)


def verdict_of(summary: Summary) -> str:
    return job_of(summary).verdict(summary)


def is_wrong(summary: Summary) -> bool:
    """Returns whether the summary reports a problem. A job whose output is kept may find differences: they are what the
    output is for."""
    verdict = verdict_of(summary)
    return verdict == DAMAGE or (verdict == DIFFERENCES and summary.get("out") is None)
