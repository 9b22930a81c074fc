"""Which volumes a run reads, and which of them get a worker. Pure: it follows from the state when the run starts.

An audit compares replicas, so it reads all members of its groups and waits for a volume that cannot be read: the
verdict `Clean` requires all replicas. All other jobs read one member of each group, because all members have the same
log: preferably a ready follower, to spare the leader; otherwise the leader rather than a lagging follower. A user's
program reads all ready followers of a group, each a part of the log.

With `spec.source` the run reads backups. Each group has a worker, which mounts no volume of a broker.

A volume that permits one pod only (ReadWriteOncePod) gets no worker and is read over the HTTP API of its broker. A run
without any such worker gets one that mounts no volume, to run the tasks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tallystick.operator.core.kube import Json
from tallystick.operator.core.members import ONE_POD, Refusal, access_modes, cluster_refusal, group_count
from tallystick.operator.core.names import FORMED, Names, is_set, is_store
from tallystick.operator.jobs import reasons
from tallystick.operator.jobs.backup_source import BackupSource, find_backups
from tallystick.operator.jobs.names import JobNames
from tallystick.operator.jobs.spec import ClaimOutput, Job

MANY_NODES = "ReadWriteMany"
_FOLLOWER = 0
"""The rank of a ready follower."""


@dataclass(frozen=True, slots=True)
class Source:
    """A volume that the run reads. `hosts`: host names of its workers. `claim`: the claim that they mount; None: they
    mount no volume. `address`: of the backup that is read instead of a volume."""

    node: str
    group: str
    member: int
    hosts: tuple[str, ...] = ()
    claim: str | None = None
    address: str = ""


@dataclass(frozen=True, slots=True)
class Scene:
    """The objects from which sources are chosen: the cluster, its BrokerNodes and claims by name, the claim of the
    output, the ConfigMap of the program, and the Backup. None: it does not exist."""

    cluster: Json | None
    nodes: Mapping[str, Json]
    claims: Mapping[str, Json]
    output: Json | None = None
    program: Json | None = None
    backup: Json | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen sources. `shared`: workers can mount the volume of the output. `leaders`: the nodes that lead one of
    the chosen groups, by their status. `settings`: those of the brokers that the files of their stores do not
    contain."""

    sources: tuple[Source, ...]
    shared: bool = False
    leaders: tuple[str, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)


_STORE_SETTINGS = ("messageDelayLevel", "maxHashSlotNum", "maxIndexNum", "messageIndexEnable")


def choose(job: Job, scene: Scene) -> Choice | Refusal:
    """Returns the sources, or why the run cannot start now."""
    refused = _output_refusal(job, scene) or _program_refusal(job, scene)
    if refused is not None:
        return refused
    if job.spec.source is not None:
        return _backups(job, job.spec.source, scene)
    refused = cluster_refusal(job.spec.cluster, scene.cluster, job.spec.groups)
    if refused is not None:
        return refused
    assert scene.cluster is not None
    wanted = job.spec.groups if job.spec.groups is not None else tuple(range(group_count(scene.cluster)))
    found: list[_Member] = []
    for group in wanted:
        members = _members(job, scene, group)
        chosen = _chosen(job, members)
        if problem := _unreadable(job, group, members, chosen):
            return problem
        found += chosen
    config = (scene.cluster.get("spec") or {}).get("config") or {}
    settings = {name: str(config[name]) for name in _STORE_SETTINGS if name in config}
    return Choice(_with_workers(job, found), _is_shared(scene), _leaders(scene, wanted), settings)


def _backups(job: Job, source: BackupSource, scene: Scene) -> Choice | Refusal:
    found = find_backups(source, job.spec.cluster, job.spec.groups, scene.backup)
    if isinstance(found, Refusal):
        return found
    own, names = JobNames(job.namespace, job.name, job.spec.cluster), Names(job.namespace, job.spec.cluster)
    most = len(found) if job.spec.instances is None else job.spec.instances
    sources = tuple(
        Source(
            *(names.group(group), names.group(group), 0),
            hosts=_hosts(job, own, names.group(group)) if place < most else (),
            address=address,
        )
        for place, (group, address) in enumerate(found.items())
    )
    return Choice(sources, _is_shared(scene))


def _hosts(job: Job, own: JobNames, node: str) -> tuple[str, ...]:
    return tuple(own.worker_host(node, number) for number in range(1, job.spec.per_volume + 1))


def unknown_topics(job: Job, known: frozenset[str] | None) -> Refusal | None:
    """Returns why a run cannot start that reads only topics that no group has. `known`: None if nothing is known.

    Without it, a misspelled name would end as `Completed` with no message.
    """
    missing = sorted(set(job.spec.arguments.get("topics") or ()) - known) if known is not None else []
    if not missing:
        return None
    groups = f"groups {_listed(job.spec.groups)} of " if job.spec.groups is not None else ""
    told = (
        f"spec.arguments.topics: {', '.join(map(repr, missing))} does not exist on {groups}{job.spec.cluster}. To read"
        " messages of a deleted topic, leave the field out"
    )
    return Refusal(reasons.TOPIC_NOT_FOUND, told)


@dataclass(frozen=True, slots=True)
class _Member:
    """A member as a possible source."""

    group: int
    number: int
    rank: int
    """The lowest rank is read."""
    formed: bool
    """The claim belongs to a formed group, so its volume may contain messages."""
    modes: tuple[str, ...]
    trouble: str
    """Why its volume cannot be read; empty: it can."""


def _members(job: Job, scene: Scene, group: int) -> list[_Member]:
    """Returns the members of a group: by number for an audit, otherwise by preference."""
    found = []
    for name, node in sorted(scene.nodes.items()):
        spec = node.get("spec") or {}
        if spec.get("group") != group or node["metadata"].get("deletionTimestamp"):
            continue
        claim = scene.claims.get(Names(job.namespace, job.spec.cluster).claim(group, int(spec["member"])))
        status = node.get("status") or {}
        found.append(
            _Member(
                group=group,
                number=int(spec["member"]),
                rank=_rank(status),
                formed=claim is not None and is_set(claim["metadata"], FORMED),
                modes=access_modes(claim),
                trouble=_trouble(name, claim),
            )
        )
    if job.spec.reads_all_members:
        return sorted(found, key=lambda member: member.number)
    return sorted(found, key=lambda member: (bool(member.trouble), not member.formed, member.rank, member.number))


def _chosen(job: Job, members: Sequence[_Member]) -> Sequence[_Member]:
    if job.spec.reads_all_members:
        return members
    followers = [member for member in members if member.formed and not member.trouble and member.rank == _FOLLOWER]
    return (job.spec.reads_followers and followers) or members[:1]


def _leaders(scene: Scene, groups: Collection[int]) -> tuple[str, ...]:
    return tuple(
        name
        for name, node in sorted(scene.nodes.items())
        if (node.get("spec") or {}).get("group") in groups and (node.get("status") or {}).get("role") == "Leader"
    )


def _rank(status: Mapping[str, str]) -> int:
    role, ready = status.get("role"), status.get("phase") == "Ready"
    if role == "Follower":
        return _FOLLOWER if ready else 2
    return 1 if role == "Leader" else 3


def _trouble(name: str, claim: Json | None) -> str:
    if claim is None:
        return f"{name} has no claim"
    if claim["metadata"].get("deletionTimestamp"):
        return f"the claim of {name} is being deleted"
    phase = (claim.get("status") or {}).get("phase")
    return "" if phase == "Bound" else f"the claim of {name} is {phase or 'not bound'}"


def _unreadable(job: Job, group: int, members: Sequence[_Member], chosen: Sequence[_Member]) -> Refusal | None:
    name = Names(job.namespace, job.spec.cluster).group(group)
    if not any(member.formed for member in members):
        troubles = [member.trouble for member in members if member.trouble]
        told = f": {'; '.join(troubles)}" if troubles else ""
        return Refusal(reasons.GROUP_NOT_FORMED, f"group {name} has not formed yet{told}")
    if troubles := [member.trouble for member in chosen if member.trouble]:
        return Refusal(reasons.CLAIM_MISSING, f"{name}: {'; '.join(troubles)}")
    return None


def _with_workers(job: Job, members: Iterable[_Member]) -> tuple[Source, ...]:
    own, names = JobNames(job.namespace, job.name, job.spec.cluster), Names(job.namespace, job.spec.cluster)
    sources: list[Source] = []
    left = job.spec.instances
    for member in members:
        node = names.node(member.group, member.number)
        source = Source(node, names.group(member.group), member.number)
        if ONE_POD not in member.modes and left != 0:
            source = Source(
                *(source.node, source.group, source.member),
                hosts=_hosts(job, own, node),
                claim=names.claim(member.group, member.number),
            )
            left = None if left is None else left - 1
        sources.append(source)
    if not any(source.hosts for source in sources):
        first = sources[0]
        sources[0] = Source(first.node, first.group, first.member, hosts=(own.worker_host(first.node),))
    return tuple(sources)


def _output_refusal(job: Job, scene: Scene) -> Refusal | None:
    output = job.spec.output
    if not isinstance(output, ClaimOutput):
        return None
    if scene.output is None:
        return Refusal(
            reasons.OUTPUT_CLAIM_MISSING, f"PersistentVolumeClaim {output.name!r} for the output does not exist"
        )
    if is_store(scene.output):
        return Refusal(reasons.OUTPUT_IS_STORE, f"{output.name!r} is the volume of a broker; jobs never write to it")
    return None


def _program_refusal(job: Job, scene: Scene) -> Refusal | None:
    program = job.spec.program
    if program is None or not program.config_map:
        return None
    if scene.program is None:
        return Refusal(reasons.PROGRAM_MISSING, f"ConfigMap {program.config_map!r} of the program does not exist")
    if program.key not in ({**(scene.program.get("data") or {}), **(scene.program.get("binaryData") or {})}):
        return Refusal(reasons.PROGRAM_MISSING, f"ConfigMap {program.config_map!r} has no key {program.key!r}")
    return None


def _is_shared(scene: Scene) -> bool:
    return scene.output is not None and MANY_NODES in access_modes(scene.output)


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))
