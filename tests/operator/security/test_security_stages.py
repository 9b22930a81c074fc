"""Stages of TLS: whatever is restarted in which order, no two pods are more than one stage apart."""

from __future__ import annotations

import random

import pytest

from tallystick.operator.security.spec import SecuritySpec, SecuritySpecError, Stage, next_stage


@pytest.mark.parametrize("seed", range(200))
def test_pods_are_never_two_stages_apart(seed: int) -> None:
    dice = random.Random(seed)
    templates = [Stage(dice.randrange(5))] * dice.choice((1, 3, 5))
    pods = list(templates)
    target = Stage(dice.randrange(5))
    for turn in range(300):
        if turn < 200 and dice.random() < 0.03:
            target = Stage(dice.randrange(5))
        settled = pods == templates and dice.random() < 0.9
        wanted = next_stage(target, [*pods, *templates], settled=settled)
        for number in range(len(pods)):
            if dice.random() < 0.5:  # the operator may end between two writes
                templates[number] = wanted
            if dice.random() < 0.3:
                pods[number] = templates[number]
            everything = [*pods, *templates]
            assert max(everything) - min(everything) <= 1, (turn, pods, templates, wanted)
    assert set(pods) == {target}


def test_a_new_cluster_begins_at_the_end() -> None:
    assert next_stage(Stage.ENFORCING, (), settled=True) is Stage.ENFORCING


def test_the_spec_says_the_stage() -> None:
    assert SecuritySpec.parse({}).stage is Stage.OFF
    assert SecuritySpec.parse({"security": {"tls": {}}}).stage is Stage.MUTUAL
    assert SecuritySpec.parse({"security": {"tls": {"clients": "Enforcing"}}}).stage is Stage.ENFORCING
    with pytest.raises(SecuritySpecError, match=r"spec\.security\.tls\.clients: must be one of"):
        SecuritySpec.parse({"security": {"tls": {"clients": "Disabled"}}})
