"""Mistakes that the operator could make, each made once: the model has to notice. So its passing says something."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from topics_model import play

from tallystick.operator.core import kube
from tallystick.operator.topics import decide, reconcile
from tallystick.operator.topics.carry_out import Pass
from tallystick.operator.topics.observe import Observer
from tallystick.operator.topics.settings import TopicSettings
from tallystick.operator.topics.spec import Policy

Patch = pytest.MonkeyPatch
MUTANTS: dict[str, Callable[[Patch], None]] = {}


def mutant(make: Callable[[Patch], None]) -> Callable[[Patch], None]:
    MUTANTS[make.__name__] = make
    return make


def decided(patch: Patch, change: Callable[[Any], Any]) -> None:
    right = decide.decide
    patch.setattr(reconcile, "decide", lambda *arguments: change(right(*arguments)))


@mutant
def adopts_without_being_asked(patch: Patch) -> None:
    patch.setattr(decide, "_may_adopt", lambda kind, declaration, found: True)


@mutant
def adopts_what_is_alike_although_it_may_delete_it(patch: Patch) -> None:
    def may(kind: Any, declaration: Any, found: Any) -> bool:
        return declaration.adopt or found == declaration.wanted

    patch.setattr(decide, "_may_adopt", may)


@mutant
def claims_after_the_first_write(patch: Patch) -> None:
    async def claim(self: Any, works: Any) -> None:
        pass

    patch.setattr(Pass, "_claim", claim)


@mutant
def marks_after_the_claim(patch: Patch) -> None:
    mark, claim = Pass._set_mark, Pass._claim

    async def nothing(self: Any, work: Any) -> None:
        pass

    async def both(self: Any, works: Any) -> None:
        await claim(self, works)
        await self._all(lambda work: mark(self, work), works)

    patch.setattr(Pass, "_set_mark", nothing)
    patch.setattr(Pass, "_claim", both)


@mutant
def goes_on_when_the_claim_was_lost(patch: Patch) -> None:
    async def claim(self: Any, works: Any) -> None:
        self._note_claims = never
        await right(self, works)
        for work in works:
            work.stuck = False

    async def never(claims: Any) -> None:
        raise kube.UnavailableError("not now", status=503)

    right = Pass._claim
    patch.setattr(Pass, "_claim", claim)


@mutant
def forgets_what_was_claimed_before_a_crash(patch: Patch) -> None:
    patch.setattr(reconcile, "needed", lambda claims, declarations: {})


@mutant
def forgets_open_claims_with_the_next_ones(patch: Patch) -> None:
    right = reconcile.claims_manifest
    last: dict[str, Any] = {}

    def manifest(kind: Any, cluster: Any, claims: Any) -> Any:
        new = {uid: groups for uid, groups in claims.items() if last.get(uid) != groups}
        last.update(claims)
        return right(kind, cluster, new)

    patch.setattr(reconcile, "claims_manifest", manifest)


@mutant
def forgets_to_claim_new_groups(patch: Patch) -> None:
    decided(patch, lambda each: replace(each, owned=each.declaration.owned or each.owned))


@mutant
def takes_queues_away(patch: Patch) -> None:
    patch.setattr(TopicSettings, "repaired", lambda self, found: self)


@mutant
def leaves_permissions_alone(patch: Patch) -> None:
    right = TopicSettings.repaired
    patch.setattr(TopicSettings, "repaired", lambda self, found: replace(right(self, found), perm=found.perm))


@mutant
def reads_fewer_queues_than_it_writes(patch: Patch) -> None:
    def repaired(self: TopicSettings, found: TopicSettings) -> TopicSettings:
        write = max(self.write_queues, found.write_queues)
        return replace(self, read_queues=max(self.read_queues, found.read_queues), write_queues=write)

    patch.setattr(TopicSettings, "repaired", repaired)


@mutant
def takes_a_silent_group_for_an_empty_one(patch: Patch) -> None:
    right = Observer._group_view

    async def view(self: Any, *arguments: Any, **more: Any) -> Any:
        found = await right(self, *arguments, **more)
        return replace(found, found=found.found or {})

    patch.setattr(Observer, "_group_view", view)
    patch.setattr(decide, "_settings_problem", lambda *arguments: None)


@mutant
def lets_go_although_a_group_is_silent(patch: Patch) -> None:
    decided(patch, lambda each: replace(each, release=each.release or (each.declaration.deleting and each.finalizer)))


@mutant
def lets_go_before_it_deletes(patch: Patch) -> None:
    decided(patch, lambda each: replace(each, deletes=(), empty=()) if each.release else each)


@mutant
def never_lets_go(patch: Patch) -> None:
    decided(patch, lambda each: replace(each, release=each.release and bool(each.deletes)))


@mutant
def does_not_ask_whether_it_is_empty(patch: Patch) -> None:
    right = Pass._delete_on

    async def delete(self: Any, group: str, subject: str, if_empty: bool) -> None:
        await right(self, group, subject, False)

    decided(patch, lambda each: replace(each, empty=()))
    patch.setattr(Pass, "_delete_on", delete)


@mutant
def deletes_although_it_should_retain(patch: Patch) -> None:
    def change(each: Any) -> Any:
        if each.release and each.declaration.policy is Policy.RETAIN and not each.deletes:
            return replace(each, deletes=tuple(sorted(each.declaration.owned)))
        return each

    decided(patch, change)


@mutant
def heeds_the_youngest(patch: Patch) -> None:
    def wrong(declarations: Any) -> dict[str, Any]:
        return {each.subject: each for each in sorted(declarations, key=lambda each: each.created)}

    patch.setattr(reconcile, "holders", wrong)


@mutant
def heeds_everybody(patch: Patch) -> None:
    patch.setattr(reconcile, "holders", lambda declarations: {})


@mutant
def lets_one_in_conflict_delete(patch: Patch) -> None:
    def change(each: Any) -> Any:
        everywhere = frozenset({"orders-0", "orders-1"})
        return replace(each, owned=everywhere) if each.problem_is("Conflict") else each

    decided(patch, change)


@mutant
def says_ready_too_soon(patch: Patch) -> None:
    decided(patch, lambda each: replace(each, problem=None) if each.problem_is("GroupNotFound") else each)


@mutant
def does_not_look_again(patch: Patch) -> None:
    decided(patch, lambda each: replace(each, writes={}, drifts={}) if each.declaration.settled else each)


@mutant
def keeps_a_finalizer_that_nobody_needs(patch: Patch) -> None:
    decided(patch, lambda each: replace(each, finalizer=each.finalizer or each.declaration.marked))


@mutant
def makes_system_topics(patch: Patch) -> None:
    patch.setattr(decide, "_refused", lambda kind, declaration, cluster, holder: None)


@pytest.mark.simulation
@pytest.mark.parametrize("name", MUTANTS)
def test_the_model_notices(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS[name](monkeypatch)
    for seed in range(2000):
        try:
            play(seed)
        except Exception as error:  # a broken promise, or what comes of it
            print(f"seed {seed}: {type(error).__name__}: {str(error)[:300]}")
            return
    pytest.fail("no history found the mutation")
