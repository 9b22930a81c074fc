"""StoreJobs under everything that can happen, from seeds; mistakes planted in the operator have to be found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from jobs_storm import run

from tallystick.operator.jobs import carry_out, decide, reconcile, template
from tallystick.operator.jobs.decide import Action
from tallystick.operator.jobs.observed import Seen
from tallystick.operator.jobs.reasons import Phase
from tallystick.operator.jobs.reconcile import JobsReconciler
from tallystick.operator.jobs.spec import Concurrency

pytestmark = pytest.mark.simulation

Patch = pytest.MonkeyPatch
MUTANTS: dict[str, Callable[[Patch], None]] = {}


@pytest.mark.parametrize("seed", range(500, 506))
def test_jobs_come_through(seed: int) -> None:
    run(seed)


def test_a_run_is_replayed_by_its_seed() -> None:
    one, other = run(3, turns=10), run(3, turns=10)
    assert (one.lab.api.writes, one.log) == (other.lab.api.writes, other.log)


def mutant(make: Callable[[Patch], None]) -> Callable[[Patch], None]:
    MUTANTS[make.__name__] = make
    return make


def decided(patch: Patch, change: Callable[[Any, Seen, Any], Any]) -> None:
    right = decide.decide
    patch.setattr(reconcile, "decide", lambda job, seen: change(job, seen, right(job, seen)))


def silent(patch: Patch, phases: set[str]) -> None:
    """These phases are not written, and what they go with is done all the same."""
    right = JobsReconciler._say

    async def say(self: Any, job: Any, body: Any, seen: Any, decision: Any) -> Any:
        if str(decision.phase) not in phases:
            return await right(self, job, body, seen, decision)
        return replace(job, status=job.status | {"attempt": decision.attempt, "startTime": "2026-03-20T09:46:40Z"})

    patch.setattr(JobsReconciler, "_say", say)


@mutant
def makes_the_driver_first(patch: Patch) -> None:
    right = carry_out.worker_nodes
    patch.setattr(carry_out, "worker_nodes", lambda plan: right(plan)[:-1])


@mutant
def does_not_say_which_attempt_it_begins(patch: Patch) -> None:
    silent(patch, {"Submitted"})


@mutant
def deletes_before_it_says_why(patch: Patch) -> None:
    silent(patch, {"PendingRerun", "Suspended"})


@mutant
def begins_the_next_attempt_beside_the_last(patch: Patch) -> None:
    right = decide._between
    patch.setattr(decide, "_between", lambda job, seen: right(job, replace(seen, pods=decide._going(seen))))


@mutant
def begins_beside_what_was_there_before(patch: Patch) -> None:
    right = decide._waiting
    patch.setattr(decide, "_waiting", lambda job, seen: right(job, replace(seen, pods=())))


@mutant
def never_gives_up(patch: Patch) -> None:
    right = decide._failed
    patch.setattr(
        decide, "_failed", lambda job, *more: right(replace(job, spec=replace(job.spec, max_retries=99)), *more)
    )


@mutant
def gives_up_too_soon(patch: Patch) -> None:
    right = decide._failed
    patch.setattr(
        decide, "_failed", lambda job, *more: right(replace(job, spec=replace(job.spec, max_retries=0)), *more)
    )


@mutant
def throws_the_log_away(patch: Patch) -> None:
    patch.setattr(Seen, "unfinished", lambda self: tuple(pod for pod in self.pods if not pod.deleting))


@mutant
def forgets_the_workers(patch: Patch) -> None:
    patch.setattr(Seen, "unfinished", lambda self: ())


@mutant
def begins_again_what_is_over(patch: Patch) -> None:
    patch.setattr(decide, "_over", decide._waiting)


@mutant
def takes_the_end_for_the_result(patch: Patch) -> None:
    right = decide.outcome
    patch.setattr(decide, "outcome", lambda ended: right(replace(ended, exit_code=0, message='{"verdict": "Clean"}')))


@mutant
def loses_the_result(patch: Patch) -> None:
    right = reconcile.run_status

    def status(*about: Any) -> Any:
        found = right(*about)
        return {name: value for name, value in found.items() if name != "result" or found["phase"] == "Succeeding"}

    patch.setattr(reconcile, "run_status", status)


@mutant
def writes_to_a_brokers_volume(patch: Patch) -> None:
    right = carry_out.worker_pod

    def pod(*about: Any, **more: Any) -> Any:
        made = right(*about, **more)
        for mount in made["spec"]["containers"][0]["volumeMounts"]:
            mount.pop("readOnly", None)
        return made

    patch.setattr(carry_out, "worker_pod", pod)


@mutant
def changes_who_owns_a_brokers_volume(patch: Patch) -> None:
    right = carry_out.worker_pod

    def pod(*about: Any, **more: Any) -> Any:
        made = right(*about, **more)
        made["spec"]["securityContext"]["fsGroup"] = 10001
        return made

    patch.setattr(carry_out, "worker_pod", pod)


@mutant
def does_not_stop_what_is_suspended(patch: Patch) -> None:
    def change(job: Any, seen: Seen, found: Any) -> Any:
        return replace(found, action=Action.NOTHING, delete=()) if found.phase is Phase.SUSPENDED else found

    decided(patch, change)


@mutant
def starts_although_it_is_suspended(patch: Patch) -> None:
    right = decide._suspended
    patch.setattr(decide, "_suspended", lambda seen: right(seen) if seen.pods else _begun(seen))


def _begun(seen: Seen) -> Any:
    return decide.Decision(Phase.SUBMITTED, Action.PREPARE, 1)


@mutant
def makes_runs_beside_each_other(patch: Patch) -> None:
    right = template.turn

    def turn(job: Any, runs: Any, now: float) -> Any:
        return right(replace(job, spec=replace(job.spec, concurrency=Concurrency.ALLOW)), runs, now)

    patch.setattr(reconcile, "turn", turn)


@mutant
def makes_runs_although_it_is_suspended(patch: Patch) -> None:
    right = template.turn

    def turn(job: Any, runs: Any, now: float) -> Any:
        return right(replace(job, spec=replace(job.spec, suspend=False)), runs, now)

    patch.setattr(reconcile, "turn", turn)


@mutant
def deletes_runs_that_go_on(patch: Patch) -> None:
    patch.setattr(template, "_spent", lambda job, runs: tuple(runs)[:-1])


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_mistake_is_found(name: str, monkeypatch: Patch) -> None:
    MUTANTS[name](monkeypatch)
    for seed in range(25):
        try:
            run(seed)
        except Exception as error:  # a broken promise, or what comes of it
            print(f"seed {seed}: {type(error).__name__}: {str(error).splitlines()[0][:200]}")
            return
    pytest.fail("the storm did not find the mutation")
