"""Changes: a list of steps at servers, which are planned first, and then carried out or only shown."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import asdict, fields
from typing import Any, NamedTuple

from tallystick.admin.errors import ChangedError
from tallystick.admin.models import Change, Step, StepState
from tallystick.admin.servers import Place, Question, Topology
from tallystick.client import ClientError, ConfigurationError

_NAME = re.compile(r"[%|a-zA-Z0-9_-]+")
_LONGEST_TOPIC, _LONGEST_GROUP = 127, 255


class Planned(NamedTuple):
    """A step. `work`: carries it out, and may return what is there afterwards; None: there is nothing to do.
    `problem`: why it cannot be carried out."""

    target: str
    action: str
    before: Any
    after: Any
    work: Callable[[], Awaitable[Any]] | None
    problem: str | None = None
    is_last: bool = False
    """It is not done if an earlier step failed."""


def only(work: Callable[[], Awaitable[Any]]) -> Callable[[], Awaitable[None]]:
    """Returns the same work without its result, so that the step shows what was planned."""

    async def run() -> None:
        await work()

    return run


async def carry_out(plans: Iterable[Planned], *, dry_run: bool) -> Change:
    """Carries out steps, one after the other. A step that fails does not keep the others back, except the last ones."""
    steps: list[Step] = []
    for plan in plans:
        skipped = plan.is_last and any(step.state is StepState.FAILED for step in steps)
        steps.append(await _step(plan, dry_run or skipped))
    return Change(dry_run, steps)


async def _step(plan: Planned, dry_run: bool) -> Step:
    about = (plan.target, plan.action, plan.before, plan.after)
    if plan.problem is not None:
        return Step(*about, StepState.FAILED, plan.problem)
    if plan.work is None:
        return Step(*about, StepState.UNCHANGED)
    if dry_run:
        return Step(*about, StepState.PLANNED)
    try:
        result = await plan.work()
    except ClientError as error:
        return Step(*about, StepState.FAILED, str(error))
    return Step(*about[:3], plan.after if result is None else result, StepState.DONE)


def unread(question: Question, place: Place, action: str) -> Planned:
    """Returns a step that fails: the present state of this broker could not be read."""
    return Planned(place.address, action, None, None, None, question.reason(place) or "no answer")


def shown(config: Any) -> dict[str, Any] | None:
    """Returns a configuration as steps show it; None: there is none."""
    return None if config is None else asdict(config)


def without_master(topology: Topology, action: str, cluster: str | None = None) -> list[Planned]:
    """Returns a step that fails for each broker name that has no master: it cannot be changed."""
    return [
        Planned(place.name, action, None, None, None, "the broker has no master now")
        for place in topology.without_master()
        if cluster in (None, place.cluster)
    ]


def masters_of(topology: Topology, cluster: str | None, known: Iterable[str], what: str) -> list[Place]:
    """Returns the masters to change. `known`: clusters that have the object; without one, there must be only one
    cluster. ConfigurationError: the cluster does not exist, or must be named."""
    names = topology.clusters()
    if cluster is not None:
        if cluster not in names:
            raise ConfigurationError(f"there is no cluster {cluster}; the name servers know {', '.join(names)}")
        return topology.masters(cluster)
    chosen = set(known) or set(names)
    if not known and len(names) > 1:
        raise ConfigurationError(f"{what} is new: name one of the clusters {', '.join(names)}")
    return [place for place in topology.masters() if place.cluster in chosen]


def check_etag(subject: str, etag: str, if_match: str | None) -> None:
    """ChangedError: the object is not the one that the caller saw. None: the caller does not care."""
    if if_match is not None and if_match != etag:
        raise ChangedError(subject, etag)


def check_name(name: str, what: str) -> None:
    """ConfigurationError: brokers do not accept the name of a topic or group."""
    longest = _LONGEST_TOPIC if what == "topic" else _LONGEST_GROUP
    if not _NAME.fullmatch(name) or len(name) > longest:
        raise ConfigurationError(
            f"the name of a {what} has up to {longest} of the characters a-z A-Z 0-9 % | _ -, unlike {name!r:.150}"
        )


def checked_fields(kind: type, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns changes of the fields of a configuration. ConfigurationError: a field is unknown, or has a wrong type."""
    known = {field.name: str(field.type) for field in fields(kind)}
    for name, value in changes.items():
        wanted = known.get(name)
        if wanted is None:
            raise ConfigurationError(f"there is no field {name!r:.80}; there are {', '.join(known)}")
        if wanted == "bool" and not isinstance(value, bool):
            raise ConfigurationError(f"{name} is true or false, not {value!r:.80}")
        if wanted == "int" and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
            raise ConfigurationError(f"{name} is a number from 0, not {value!r:.80}")
        if wanted.startswith("dict") and not isinstance(value, Mapping):
            raise ConfigurationError(f"{name} is an object, not {value!r:.80}")
    return dict(changes)
