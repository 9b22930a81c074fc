"""The spec of a BrokerCluster as values, with the defaults of the CRD.

The schema rejects most invalid specs. This module checks them again, and rejects settings that the operator manages in
any spelling.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeVar

from tallystick.operator.clusters.adoption_source import AdoptSpec, AdoptSpecError
from tallystick.operator.clusters.pod_template import PodTemplate, PodTemplateError
from tallystick.operator.clusters.recovery_source import RecoverySpec
from tallystick.operator.core.backup_place import BackupPlaceError
from tallystick.operator.core.kube import Json
from tallystick.operator.core.names import PAUSED, ROTATE, fenced_of, hibernation_of, is_set
from tallystick.operator.security.spec import SecuritySpec, SecuritySpecError

E = TypeVar("E", bound=Enum)

MAX_MEMBERS = 5
"""Maximum number of members. dLegerPeers of every pod contains all of them, so scaling restarts no pod."""

OWN_SETTINGS = frozenset(
    {
        *(
            "addresswaitmills",
            "admintokenfile",
            "allowedhosts",
            "autocreatetopicenable",
            "bindaddress",
            "brokerclustername",
            "brokerid",
        ),
        *("brokerip1", "brokerip2", "brokername", "brokerrole", "dlegergroup", "dlegerpeers", "dlegerselfid"),
        *(
            "enabledlegercommitlog",
            "externaladdress",
            "externallistenport",
            "externalnamesrvaddr",
            "flushdisktype",
            "groupbootstrap",
        ),
        *("groupbootstrapmembers", "grouptlsca", "grouptlscertificate", "grouptlskey", "grouptlspeername"),
        *("halistenport", "hamasteraddress", "listenport", "mappedfilesizecommitlog", "namesrvaddr", "open"),
        *("preferredleaderid", "readtokenfile", "storepathcommitlog", "storepathrootdir", "viplistenerenable"),
    }
)
"""Settings that the operator manages, in lower case. The CEL rules of spec.config contain the same settings."""


SECURITY_SETTINGS = frozenset({"aclenable", "aclfile", "aclcredentialsfile", "aclkeyfile", "grouptlsmode", "tlsmode"})
"""Settings that the operator manages if the cluster has spec.security, in lower case."""


class SpecError(ValueError):
    """The spec is invalid; retrying will not help. `field`: the path of the invalid field."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field


class Durability(Enum):
    MAJORITY = "Majority"
    MAJORITY_ASYNC = "MajorityAsync"

    @property
    def flush(self) -> str:
        """RocketMQ's flushDiskType."""
        return "SYNC_FLUSH" if self is Durability.MAJORITY else "ASYNC_FLUSH"


class ChangePolicy(Enum):
    """What a change of the size or the class of volumes does."""

    EXPAND = "Expand"
    REPLACE_MEMBERS = "ReplaceMembers"


class External(Enum):
    """How clients outside the Kubernetes cluster reach brokers."""

    NONE = "None"
    NODE_PORT = "NodePort"
    LOAD_BALANCER = "LoadBalancer"


@dataclass(frozen=True, slots=True)
class Placement:
    """Scheduling and resources of pods, copied to the pod spec, and what users add to it."""

    resources: Json = field(default_factory=dict)
    node_selector: Json = field(default_factory=dict)
    tolerations: tuple[Json, ...] = ()
    affinity: Json = field(default_factory=dict)
    spread: tuple[Json, ...] | None = None
    """None: the default, over zones. Empty: no constraint."""
    template: PodTemplate = field(default_factory=PodTemplate)

    @classmethod
    def parse(cls, spec: Mapping[str, Any], place: str) -> Placement:
        """Parses the fields of a spec at a path, which ends with a dot. SpecError: one is invalid."""
        spread = spec.get("topologySpreadConstraints")
        try:
            template = PodTemplate.parse(spec.get("podTemplate") or {})
        except PodTemplateError as error:
            raise SpecError(f"{place}podTemplate.{error.field}", error.reason) from error
        return cls(
            resources=dict(spec.get("resources") or {}),
            node_selector=dict(spec.get("nodeSelector") or {}),
            tolerations=tuple(spec.get("tolerations") or ()),
            affinity=dict(spec.get("affinity") or {}),
            spread=None if spread is None else tuple(spread),
            template=template,
        )


@dataclass(frozen=True, slots=True)
class Storage:
    """The volume of a member. `size`: a quantity. Without a class: the default storage class."""

    size: str = "10Gi"
    storage_class: str | None = None
    segment_bytes: int = 1 << 30
    replaces: bool = False
    """Members whose volume has another size or class get a new one. Otherwise volumes only grow in place."""


@dataclass(frozen=True, slots=True)
class Listener:
    """External access. `host`: replaces the address of the Kubernetes node (NodePort only)."""

    type: External = External.NONE
    host: str = ""
    name_server_port: int | None = None
    annotations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """BrokerCluster.spec with its defaults."""

    image: str
    image_pull_policy: str = "IfNotPresent"
    image_pull_secrets: tuple[Json, ...] = ()
    groups: int = 1
    replicas: int = 3
    durability: Durability = Durability.MAJORITY
    auto_create_topics: bool = False
    storage: Storage = field(default_factory=Storage)
    name_servers: int = 2
    name_server_placement: Placement = field(default_factory=Placement)
    placement: Placement = field(default_factory=Placement)
    listener: Listener = field(default_factory=Listener)
    config: Mapping[str, str] = field(default_factory=dict)
    disruption_budget: bool = True
    network_policy: bool = True
    clients_from: tuple[Json, ...] = ()
    """NetworkPolicyPeers that may connect to the client ports; empty: all."""
    recovery: RecoverySpec | None = None
    """The backups from which a new cluster starts; None: it starts empty."""
    adopt: AdoptSpec | None = None
    """The RocketMQ cluster whose place a new cluster takes; None: it takes no place."""
    security: SecuritySpec = field(default_factory=SecuritySpec)

    @classmethod
    def parse(cls, spec: Mapping[str, Any], default_image: str) -> ClusterSpec:
        """Parses a spec. SpecError: it is invalid."""
        storage, external = spec.get("storage") or {}, (spec.get("listeners") or {}).get("external") or {}
        servers, policy = spec.get("nameServers") or {}, spec.get("networkPolicy") or {}
        return cls(
            image=spec.get("image") or default_image,
            image_pull_policy=spec.get("imagePullPolicy") or "IfNotPresent",
            image_pull_secrets=tuple(spec.get("imagePullSecrets") or ()),
            groups=_bounded(spec.get("groups", 1), "groups", range(1, 65)),
            replicas=_bounded(spec.get("replicas", 3), "replicas", (1, 3, 5)),
            durability=_choice(Durability, spec.get("durability") or "Majority", "durability"),
            auto_create_topics=bool(spec.get("autoCreateTopics", False)),
            storage=Storage(
                size=str(storage.get("size") or "10Gi"),
                storage_class=storage.get("storageClassName"),
                segment_bytes=int(storage.get("segmentBytes") or 1 << 30),
                replaces=_choice(ChangePolicy, storage.get("changePolicy") or "Expand", "storage.changePolicy")
                is ChangePolicy.REPLACE_MEMBERS,
            ),
            name_servers=_bounded(servers.get("replicas", 2), "nameServers.replicas", range(1, 8)),
            name_server_placement=Placement.parse(servers, "spec.nameServers."),
            placement=Placement.parse(spec, "spec."),
            listener=Listener(
                type=_choice(External, external.get("type") or "None", "listeners.external.type"),
                host=external.get("host") or "",
                name_server_port=external.get("nameServerNodePort"),
                annotations=dict(external.get("annotations") or {}),
            ),
            config=_config(spec.get("config") or {}),
            disruption_budget=bool((spec.get("podDisruptionBudget") or {}).get("enabled", True)),
            network_policy=bool(policy.get("enabled", True)),
            clients_from=tuple(policy.get("clientsFrom") or ()),
            recovery=_recovery(spec.get("bootstrap") or {}),
            adopt=_adopt(spec),
            security=_security(spec),
        )


@dataclass(frozen=True, slots=True)
class Cluster:
    """A BrokerCluster: its identity and its spec."""

    namespace: str
    name: str
    uid: str
    generation: int
    paused: bool
    spec: ClusterSpec
    fenced: frozenset[str] = frozenset()
    """Names of the members that a user fenced; `*`: all of them."""
    hibernation: str = ""
    """Value of the annotation, in lower case: `on`, `off`, or a value that the status reports as invalid."""
    rotation: str = ""
    """Value of the annotation `tallystick.dev/rotate`: another one asks for another authority."""

    @property
    def hibernating(self) -> bool:
        """Whether no pod of the cluster is to run."""
        return self.hibernation == "on"

    @classmethod
    def parse(cls, body: Json, default_image: str) -> Cluster:
        """Parses a BrokerCluster. SpecError: see ClusterSpec.parse."""
        metadata = body["metadata"]
        return cls(
            namespace=metadata["namespace"],
            name=metadata["name"],
            uid=metadata.get("uid", ""),
            generation=metadata.get("generation", 0),
            paused=is_set(metadata, PAUSED),
            spec=ClusterSpec.parse(body.get("spec") or {}, default_image),
            fenced=fenced_of(metadata),
            hibernation=hibernation_of(metadata),
            rotation=str((metadata.get("annotations") or {}).get(ROTATE) or ""),
        )


def _bounded(value: Any, field: str, allowed: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value not in allowed:
        shown = f"from {allowed[0]} to {allowed[-1]}" if isinstance(allowed, range) else f"one of {allowed}"
        raise SpecError(f"spec.{field}", f"must be a number {shown}, not {value!r}")
    return value


def _choice(kind: type[E], value: str, field: str) -> E:
    try:
        return kind(value)
    except ValueError as error:
        allowed = ", ".join(str(each.value) for each in kind)
        raise SpecError(f"spec.{field}", f"must be one of {allowed}, not {value!r}") from error


def _recovery(bootstrap: Mapping[str, Any]) -> RecoverySpec | None:
    try:
        return RecoverySpec.parse(bootstrap)
    except BackupPlaceError as error:
        field, _, reason = str(error).partition(": ")
        raise SpecError(field, reason) from error


def _adopt(spec: Mapping[str, Any]) -> AdoptSpec | None:
    try:
        found = AdoptSpec.parse(spec)
    except AdoptSpecError as error:
        field, _, reason = str(error).partition(": ")
        raise SpecError(field, reason) from error
    if found is not None and (spec.get("bootstrap") or {}).get("recovery"):
        raise SpecError("spec.adoptFrom", "cannot be used together with spec.bootstrap: a cluster starts once")
    return found


def _security(spec: Mapping[str, Any]) -> SecuritySpec:
    try:
        found = SecuritySpec.parse(spec)
    except SecuritySpecError as error:
        field, _, reason = str(error).partition(": ")
        raise SpecError(field, reason) from error
    own = sorted(key for key in spec.get("config") or {} if key.lower() in SECURITY_SETTINGS)
    if own and found != SecuritySpec():
        raise SpecError("spec.config", f"{', '.join(own)}: managed by the operator because spec.security is set")
    if spec.get("adoptFrom") and found != SecuritySpec():
        raise SpecError(
            "spec.security", "cannot be used together with spec.adoptFrom: remove spec.adoptFrom after the switch"
        )
    return found


def _config(config: Mapping[str, Any]) -> Mapping[str, str]:
    own = sorted(key for key in config if key.lower() in OWN_SETTINGS)
    if own:
        raise SpecError("spec.config", f"{', '.join(own)}: managed by the operator, remove it from spec.config")
    return {key: str(value) for key, value in sorted(config.items())}
