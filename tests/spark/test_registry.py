"""A job is one file in `spark/jobs` and its name in the enum of the CRD: all else follows from it or is compared."""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from plan_lab import PLAN, parsed

from tallystick.operator.jobs import spec as operator_spec
from tallystick.spark import jobs as folder
from tallystick.spark.cluster.result import result_of
from tallystick.spark.cluster.work import run_job
from tallystick.spark.jobs import cli, registry
from tallystick.spark.jobs.job import SETTINGS, Job, Kind, OutputUse
from tallystick.spark.runner import inline

ROOT = Path(__file__).resolve().parents[2]
JOBS = registry.jobs()
PARTS = {"topics": "array", "queues": "array", "from": "string", "to": "string"}
"""Arguments of a StoreJob that limit what a job reads; `cluster/work.py` makes options of them."""
TYPES = {Kind.TEXT: "string", Kind.NUMBER: "integer", Kind.TABLE: "object"}


def spec_schema() -> dict[str, Any]:
    (version,) = yaml.safe_load((ROOT / "crds" / "storejob.yaml").read_text())["spec"]["versions"]
    found: dict[str, Any] = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    return found


def described(text: str) -> set[str]:
    """Returns the words before colons at the beginnings of the sentences of a description."""
    return set(re.findall(r"(?:^|\. )(\w+):", text))


def test_the_schema_has_the_jobs() -> None:
    job = spec_schema()["properties"]["job"]
    assert set(job["enum"]) == set(JOBS) == described(job["description"])


def test_the_schema_has_the_arguments() -> None:
    properties = spec_schema()["properties"]["arguments"]["properties"]
    own = {name: TYPES[argument.kind] for name, argument in registry.arguments().items()}
    assert {name: each["type"] for name, each in properties.items()} == PARTS | own
    for job in JOBS.values():
        for argument in (each for each in job.arguments if not each.local):
            text = properties[argument.name]["description"]
            assert job.name in text.split(":")[0].removeprefix("For ").split(" and ")
            if argument.default is not None:
                assert text.endswith(f"Default: {argument.default}.")


def test_the_schema_and_the_operator_require_what_a_job_requires() -> None:
    rules = {rule["message"]: rule["rule"] for rule in spec_schema()["x-kubernetes-validations"]}
    wanted = {
        f"arguments.{argument.name} is required for job {job.name}"
        for job in JOBS.values()
        for argument in job.arguments
        if argument.required
    } | {f"output is required for job {job.name}" for job in JOBS.values() if job.output is OutputUse.REQUIRED}
    assert {message for message in rules if "is required for job" in message} == wanted
    for message in wanted:
        assert f"self.job != '{message.split()[-1]}' ||" in rules[message]
    assert {job.name for job in JOBS.values() if job.all_members} == operator_spec.READ_ALL_MEMBERS
    assert {job.name for job in JOBS.values() if job.followers} == operator_spec.READ_FOLLOWERS
    assert {job.name for job in JOBS.values() if job.output is OutputUse.REQUIRED} == operator_spec.OUTPUT_REQUIRED
    assert {
        job.name: tuple(argument.name for argument in job.arguments if argument.required)
        for job in JOBS.values()
        if any(argument.required for argument in job.arguments)
    } == operator_spec.REQUIRED_ARGUMENTS
    assert {job.name for job in JOBS.values() if SETTINGS in job.arguments} == operator_spec.TAKE_SETTINGS


def test_the_document_describes_each_job() -> None:
    text = (ROOT / "docs" / "spark.md").read_text()
    section = text.split("## Jobs")[1].split("## In a cluster")[0]
    assert set(re.findall(r"^\*\*(\w+)\*\* ", section, re.MULTILINE)) == set(JOBS)
    (usage,) = re.findall(r"^    tally-job ([\w|]+) --path", text, re.MULTILINE)
    assert set(usage.split("|")) == set(registry.commands())
    for job in JOBS.values():
        for argument in job.arguments:
            assert not argument.flag or argument.flag in text, argument.flag


def commands(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from action.choices.items()


def test_the_command_has_the_jobs_and_their_arguments() -> None:
    found = dict(commands(cli._parser()))
    assert set(found) == set(registry.commands()) == set(JOBS) - {"program"}
    options = {name: {text for each in found[name]._actions for text in each.option_strings} for name in found}
    shared = set.intersection(*options.values())
    assert shared == {"-h", "--help", "--path", "--master", "--json", "--summary", "--html", "--option"}
    for name, command in found.items():
        job = JOBS[name]
        own = options[name] - shared
        assert own == {argument.flag for argument in job.arguments if argument.flag} | (
            {"--topic", "--queue", "--from", "--to"} if job.reads_a_part else set()
        ) | ({"--out"} if job.output is not OutputUse.NONE else set())
        help_text = " ".join(command.format_help().split())
        assert all(argument.help in help_text for argument in job.arguments)


ONE_FILE = '''"""`longest`: the longest name of a source."""
from tallystick.spark.jobs.job import Argument, Job, Kind

def run(call):
    names = [source.source for source in call.options.sources()]
    return {"job": "longest", "name": max(names, key=len)[: call.arguments["most"]], "prefix": call.arguments["prefix"]}

JOB = Job(
    name="longest",
    help="show the longest name",
    run=run,
    text=lambda summary: f"the longest name is {summary['prefix']}{summary['name']}",
    figures=lambda summary: {"rows": len(summary["name"])},
    message=lambda summary, figures: f"{figures['rows']} characters",
    arguments=(
        Argument("most", "characters to show", "--most", kind=Kind.NUMBER, default=100),
        Argument("prefix", "text before the name", metavar="TEXT"),
    ),
)
'''


@pytest.fixture
def new_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    (tmp_path / "longest_of_a_test.py").write_text(ONE_FILE)
    monkeypatch.setattr(folder, "__path__", [*folder.__path__, str(tmp_path)])
    registry.jobs.cache_clear()
    yield registry.jobs()["longest"]
    registry.jobs.cache_clear()


def test_a_new_job_is_one_file(new_job: Job, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    here = ["longest", "--master", "none", "--path", f"a={tmp_path},bcd={tmp_path}"]
    assert cli.main([*here, "is "]) == 0
    assert capsys.readouterr().out == "the longest name is is bcd\n"
    assert cli.main([*here, "--most", "1", "--json", ""]) == 0
    assert json.loads(capsys.readouterr().out) == {
        **{"job": "longest", "name": "b", "prefix": ""},
        "bytes_read": 0,
    }


def test_a_new_job_runs_in_a_cluster(new_job: Job) -> None:
    operator_spec.JobSpec.parse({"clusterName": "orders", "job": "longest"})
    given = {"prefix": "n", "most": 2}
    plan = parsed(("job", "longest"), ("sources", PLAN["sources"][:1]), ("arguments", given))
    result = result_of(plan, run_job(plan, inline, None), lambda node: "local", 1.0)
    assert (result["verdict"], result["message"], result["figures"]["rows"]) == ("Done", "2 characters", 2)


def test_two_files_with_one_job_are_refused(new_job: Job, tmp_path: Path) -> None:
    (tmp_path / "again_of_a_test.py").write_text(ONE_FILE)
    registry.jobs.cache_clear()
    with pytest.raises(ValueError, match="two jobs have the same name"):
        registry.jobs()


def test_the_jobs_are_there_without_the_extra_for_iceberg() -> None:
    program = (
        "import sys; sys.modules['pyiceberg'] = None\nfrom tallystick.spark.jobs.registry import jobs\nprint(*jobs())"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert found.stdout.split() == list(JOBS), found.stderr[-2000:]
