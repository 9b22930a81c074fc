# ruff: noqa: N815
"""What a broker, a name server and the HTTP port may be told; names and defaults are RocketMQ 4.8's where it has them.

One frozen dataclass a process. A field's name says its unit (`...Mills`, `...Period`: milliseconds); where RocketMQ's
name does not, the docstring does. `validate()` raises SettingsError naming the first wrong key, before anything is
opened.

Settings of the store (files, flushing, cleaning) are `tallystick.store.settings.StoreSettings`.

Source: BrokerConfig, NettyServerConfig and NamesrvConfig of RocketMQ 4.8.0.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from tallystick.node import logs
from tallystick.store.memory_budget import MIN_LIMIT
from tallystick.store.settings import SettingsError

WILDCARDS = ("0.0.0.0", "::")
"""Addresses to listen on that mean all of this host's; nobody can connect to them."""
PERMISSION_INHERIT, PERMISSION_WRITE, PERMISSION_READ = 1, 2, 4
UNDECIDED = -1
"""`brokerId` of a member of a replicated group before it is known who leads: it is registered nowhere."""


def _host_name() -> str:
    return socket.gethostname() or "DEFAULT_BROKER"


def _local_address() -> str:
    """The address this host uses to reach others. No packet is sent: connecting a UDP socket only asks the routes."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            address: str = probe.getsockname()[0]
        except OSError:
            return "127.0.0.1"  # no route at all: a machine without a network can still talk to itself
    return "127.0.0.1" if address == "0.0.0.0" else address


def check_types(settings: Any) -> None:
    """Every field has the type of its annotation (an int is not a bool). SettingsError names the first that has not."""
    kinds = {"int": int, "bool": bool, "str": str}
    for item in fields(settings):
        kind = kinds[str(item.type)]
        value = getattr(settings, item.name)
        if type(value) is not kind:
            raise SettingsError(item.name, f"must be {item.type}, not {value!r}")


def check_ranges(settings: Any, ranges: Mapping[str, tuple[int, int]]) -> None:
    """Each named field lies in its closed range. SettingsError names the first that does not."""
    for name, (low, high) in ranges.items():
        value = getattr(settings, name)
        if not low <= value <= high:
            raise SettingsError(name, f"must be {low} to {high}, not {value}")


_INT = 2**31 - 1
_LONG = 2**63 - 1
_PORT = (0, 65535)


@dataclass(frozen=True)
class BrokerSettings:
    """One broker. What all brokers of a cluster share is its name; everything else is this broker's own."""

    # Identity and addresses
    brokerIP1: str = field(default_factory=_local_address)
    """Address or name told to clients and name servers; its IP is written as the store host of every record. Wrong:
    clients get a route they cannot reach. Default: the address of the route to the outside."""
    addressWaitMills: int = 60_000
    """Own setting. Milliseconds a start waits for the name in `brokerIP1` to have an address: in Kubernetes the name of
    a Service that was made a moment ago has none yet. 0: it has to have one."""
    externalAddress: str = ""
    """Own setting. `host:port` under which clients outside of the brokers' network reach this broker; told to those who
    ask a name server at its `externalListenPort`. Empty: they do not see this broker."""
    brokerName: str = field(default_factory=_host_name)
    """Name of the group of a master and its slaves. Two masters with one name replace each other in the route."""
    brokerClusterName: str = "DefaultCluster"
    """Cluster this broker registers in; also the name of a topic and part of `<cluster>_REPLY_TOPIC`."""
    brokerId: int = 0
    """0 is the master; any other number is a slave for clients: they send nothing to it. In a replicated group
    (`enableDLegerCommitLog`) it is not set: the leader has 0, a follower the number of its `dLegerSelfId` plus one."""
    listenPort: int = 10911
    """Port for clients (0: any free one). With `vipListenerEnable` port - 2 listens as well, unless it is 0."""
    bindAddress: str = "0.0.0.0"
    """Address the sockets are bound to (a name of RocketMQ 5; 4.8 always takes all interfaces)."""
    vipListenerEnable: bool = True
    """Own setting. Also listen at listenPort - 2, where old clients send by default; pulls are not served there."""
    namesrvAddr: str = ""
    """Name servers, `host:port;host:port`. Empty: this broker registers nowhere and no client finds it."""
    serverChannelMaxIdleTimeSeconds: int = 120
    """Seconds without a byte in or out after which a connection is closed. Clients speak every 30 s."""
    frameMaxStallTimeSeconds: int = 60
    """Own setting. Seconds within which an unfinished frame must grow by 4 KiB; its connection is cut otherwise."""
    connectionMemoryBytes: int = 0
    """Own setting. What all connections of the process may hold together: unfinished frames, unsent bytes, bodies of
    requests under way. Above, the largest are cut. 0: a quarter of the memory limit of the process's cgroup, or of the
    machine's memory. At least 33554432."""
    logLevel: str = "INFO"
    """Own setting. The process logs lines of this level and above: DEBUG (each step of Raft), INFO, WARNING or ERROR.
    Can be changed while the broker runs."""
    logFormat: str = "text"
    """Own setting. Lines on standard error: text, or json (one object per line)."""
    regionId: str = "DefaultRegion"
    """Told to producers in MSG_REGION; only message traces use it."""

    # Topics and groups
    brokerPermission: int = 6
    """Bits 2 write, 4 read. Without write sends are refused (16), without read pulls are; told to name servers
    with each topic."""
    defaultTopicQueueNums: int = 8
    """Queues of TBW102, the model of topics made by sending; a created topic has at most so many."""
    autoCreateTopicEnable: bool = True
    """Sending to an unknown topic makes it. Off: answer 17."""
    clusterTopicEnable: bool = True
    """The topic named like the cluster may be read and written, not only inherited from."""
    brokerTopicEnable: bool = True
    """The topic named like the broker may be read and written, not only inherited from."""
    autoCreateSubscriptionGroup: bool = True
    """A consumer of an unknown group makes it. Off: answer 26, except for CID_RMQ_SYS_ groups."""
    traceTopicEnable: bool = False
    """Make `msgTraceTopicName` at start, so that traces of clients are kept."""
    msgTraceTopicName: str = "RMQ_SYS_TRACE_TOPIC"
    """Topic of message traces. Clients look for RocketMQ's default."""
    traceOn: bool = True
    """Told to producers in TRACE_ON; false keeps them from sending traces."""

    # Consuming
    flushConsumerOffsetInterval: int = 5000
    """Milliseconds between writes of consumerOffset.json. What was committed since is consumed again after a crash."""
    longPollingEnable: bool = True
    """Hold pulls at the end of a queue as long as the client allows; off: `shortPollingTimeMills`."""
    pullThreadPoolQueueCapacity: int = 100000
    """Pulls held at one time; the next one is answered 2 (busy) instead of being held."""
    shortPollingTimeMills: int = 1000
    """Milliseconds a pull is held when long polling is off."""
    notifyConsumerIdsChangedEnable: bool = True
    """Tell the members of a group at once that one came or went (40). Off: they find out at their own 20 s."""
    slaveReadEnable: bool = False
    """Advise slow consumers to read from a slave."""
    disableConsumeIfConsumerReadSlowly: bool = False
    """Stop a group that falls behind by more than `consumerFallbehindThreshold`."""
    consumerFallbehindThreshold: int = 16 * 1024**3
    """Bytes a group may be behind before it counts as slow."""
    enablePropertyFilter: bool = False
    """SQL92 subscriptions. Off: they are refused when a client starts (46)."""
    expectConsumerNumUseFilter: int = 32
    """SQL92 groups a topic is expected to have: sizes the bloom filter."""
    maxErrorRateOfBloomFilter: int = 20
    """Percent of false hits of the bloom filter at `expectConsumerNumUseFilter` groups."""
    filterDataCleanTimeSpan: int = 24 * 3600 * 1000
    """Milliseconds after which the filter of a group that left is forgotten."""
    filterSupportRetry: bool = False
    """Filter retried messages by the properties of the original too."""

    # Sending, replies, transactions
    startAcceptSendRequestTimeStamp: int = 0
    """Time (ms since 1970) before which sends are refused with code 1."""
    rejectTransactionMessage: bool = False
    """Refuse half messages with code 16."""
    transactionTimeOut: int = 6000
    """Milliseconds a half message is left alone before its producer is asked."""
    transactionCheckMax: int = 15
    """Checks of a half message before it goes to TRANS_CHECK_MAX_TIME_TOPIC."""
    transactionCheckInterval: int = 60000
    """Milliseconds between rounds of checks."""
    storeReplyMessageEnable: bool = True
    """Keep replies in `<cluster>_REPLY_TOPIC` after they were pushed to the requester."""

    # Registration
    registerNameServerPeriod: int = 30000
    """Milliseconds between registrations, kept within 10 000 to 60 000. Name servers forget a broker after 120 s."""
    registerBrokerTimeoutMills: int = 6000
    """Milliseconds to wait for one name server's answer."""

    # Replicated group (`enableDLegerCommitLog` and the other `dLeger...` settings are the store's)
    groupBootstrap: bool = False
    """Own setting. Make a new group of the members in `dLegerPeers`. Give it to all of them at their very first start
    and never again: to a member whose disk was lost it would say that there is nothing it could have forgotten, and
    such a member may vote twice. A disk that has a member already passes it over."""
    groupBootstrapMembers: str = ""
    """Own setting. Who votes in a group that `groupBootstrap` makes, `n0;n1;n2`: `dLegerPeers` may name more, who can
    be let in later. The same at all of them. Empty: all of `dLegerPeers`. A member that is not named makes no group."""
    groupElectionTimeoutMills: int = 800
    """Own setting. Milliseconds without a word of the leader after which a member stands for election; at least ten
    times a round trip and a slow fsync, or members are elected away for being busy."""
    groupHeartbeatMills: int = 100
    """Own setting. Milliseconds between the leader's heartbeats."""
    groupLingerMills: int = 0
    """Own setting. Milliseconds that a member which is stopped, and has said goodbye to the name servers, still passes
    on what clients send, as long as any are connected. Clients look at their routes every 30 s and find nobody at its
    address after that: where it is not started again at once (a pod that moves), 35 000 lets no send fail."""
    groupTlsCa: str = ""
    """Own setting. PEM file of the authorities that other members' certificates must come from. With it, members speak
    TLS with each other; then certificate and key are needed too. Changed files are taken while the broker runs."""
    groupTlsCertificate: str = ""
    """Own setting. PEM file of this member's certificate and what leads from it to the authority."""
    groupTlsKey: str = ""
    """Own setting. PEM file of its private key, not encrypted."""
    groupTlsPeerName: str = ""
    """Own setting. The name that a member's certificate must carry, with {cluster}, {group} and {member} filled in,
    such as `n{member}.{group}`. Empty: any certificate of the authorities may speak for any member."""

    # Access control
    aclEnable: bool = False
    """Check signatures and permissions of requests. True is refused: there is no such check yet, and a broker that only
    seems guarded is worse than one that is known to be open."""

    # Accepted because RocketMQ's configuration files have them; they change nothing here
    brokerFastFailureEnable: bool = True
    """No effect: requests are served as they are read, so none waits in a queue."""
    waitTimeMillsInSendQueue: int = 200
    """No effect: requests are served as they are read, so none waits in a queue."""
    waitTimeMillsInPullQueue: int = 5000
    """No effect: requests are served as they are read, so none waits in a queue."""
    waitTimeMillsInHeartbeatQueue: int = 31000
    """No effect: requests are served as they are read, so none waits in a queue."""
    waitTimeMillsInTransactionQueue: int = 3000
    """No effect: requests are served as they are read, so none waits in a queue."""
    sendThreadPoolQueueCapacity: int = 10000
    """Shown in the runtime information only: a busy broker reads no more from a connection instead."""
    queryThreadPoolQueueCapacity: int = 20000
    """Shown in the runtime information only: a busy broker reads no more from a connection instead."""
    endTransactionPoolQueueCapacity: int = 100000
    """Shown in the runtime information only: a busy broker reads no more from a connection instead."""
    heartbeatThreadPoolQueueCapacity: int = 50000
    """No effect: requests are served as they are read, so none waits in a queue."""
    enableCalcFilterBitMap: bool = False
    """No effect: expressions are evaluated when messages are pulled."""
    forceRegister: bool = True
    """No effect: every period is a registration, whether a topic changed or not."""
    compressedRegister: bool = False
    """No effect: registrations are plain JSON, which every name server reads."""
    sendMessageThreadPoolNums: int = 1
    """No effect: there is no pool of threads."""
    pullMessageThreadPoolNums: int = 16
    """No effect: there is no pool of threads."""
    queryMessageThreadPoolNums: int = 8
    """No effect: there is no pool of threads."""
    adminBrokerThreadPoolNums: int = 16
    """No effect: there is no pool of threads."""
    heartbeatThreadPoolNums: int = 32
    """No effect: there is no pool of threads."""
    transferMsgByHeap: bool = True
    """No effect: records are copied once, from the log into the answer."""

    def validate(self) -> None:
        """SettingsError names the key whose value cannot be used."""
        check_types(self)
        check_ranges(self, _BROKER_RANGES)
        _check_connection_memory(self.connectionMemoryBytes)
        for name in ("brokerIP1", "brokerName", "brokerClusterName", "bindAddress", "msgTraceTopicName"):
            if not getattr(self, name).strip():
                raise SettingsError(name, "must not be empty")
        for name, longest in (("brokerName", 127), ("brokerClusterName", 127 - len("_REPLY_TOPIC"))):
            value = getattr(self, name)
            # Both are names of topics too, and a topic is a folder.
            if len(value.encode()) > longest or "/" in value or not value.isprintable() or value in (".", ".."):
                raise SettingsError(name, f"must be at most {longest} printable bytes without '/', not {value!r}")
        if self.brokerIP1 in WILDCARDS:
            raise SettingsError("brokerIP1", f"{self.brokerIP1} is every address: clients need one")
        logs.check(self.logLevel, self.logFormat)
        if self.aclEnable:
            raise SettingsError("aclEnable", "access control is not supported yet")
        check_addresses("namesrvAddr", self.namesrvAddr)
        if ";" in self.externalAddress:
            raise SettingsError("externalAddress", f"{self.externalAddress!r} is more than one host:port")
        check_addresses("externalAddress", self.externalAddress)
        tls = {name: getattr(self, name) for name in ("groupTlsCa", "groupTlsCertificate", "groupTlsKey")}
        for name, value in tls.items():
            if any(tls.values()) and not value:
                raise SettingsError(name, "is needed as well, as the other groupTls settings are given")
        if self.vipListenerEnable and 0 < self.listenPort <= 2:
            raise SettingsError("listenPort", f"must be above 2: port - 2 listens too, not {self.listenPort}")


CHANGEABLE = frozenset(
    {
        "autoCreateSubscriptionGroup",
        "autoCreateTopicEnable",
        "brokerPermission",
        "consumerFallbehindThreshold",
        "disableConsumeIfConsumerReadSlowly",
        "enablePropertyFilter",
        "filterSupportRetry",
        "logLevel",
        "longPollingEnable",
        "notifyConsumerIdsChangedEnable",
        "registerBrokerTimeoutMills",
        "registerNameServerPeriod",
        "rejectTransactionMessage",
        "shortPollingTimeMills",
        "slaveReadEnable",
        "startAcceptSendRequestTimeStamp",
        "storeReplyMessageEnable",
        "transactionCheckInterval",
        "transactionCheckMax",
        "transactionTimeOut",
    }
)
"""What UPDATE_BROKER_CONFIG may change. The rest is who a broker is, where it listens, or read once at its start."""


_BROKER_RANGES: dict[str, tuple[int, int]] = {
    "addressWaitMills": (0, 3_600_000),
    "brokerId": (UNDECIDED, _LONG),
    "groupElectionTimeoutMills": (50, 600_000),
    "groupHeartbeatMills": (5, 300_000),
    "groupLingerMills": (0, 600_000),
    "listenPort": _PORT,
    "serverChannelMaxIdleTimeSeconds": (1, _INT),
    "frameMaxStallTimeSeconds": (1, _INT),
    "connectionMemoryBytes": (0, _LONG),
    "brokerPermission": (0, PERMISSION_READ | PERMISSION_WRITE),
    "defaultTopicQueueNums": (1, 65535),
    "flushConsumerOffsetInterval": (100, _INT),
    "shortPollingTimeMills": (0, _INT),
    "consumerFallbehindThreshold": (0, _LONG),
    "expectConsumerNumUseFilter": (1, _INT),
    "maxErrorRateOfBloomFilter": (1, 99),
    "filterDataCleanTimeSpan": (0, _LONG),
    "startAcceptSendRequestTimeStamp": (0, _LONG),
    "transactionTimeOut": (0, _INT),
    "transactionCheckMax": (1, _INT),
    "transactionCheckInterval": (1, _INT),
    "waitTimeMillsInSendQueue": (1, _INT),
    "waitTimeMillsInPullQueue": (1, _INT),
    "waitTimeMillsInHeartbeatQueue": (1, _INT),
    "waitTimeMillsInTransactionQueue": (1, _INT),
    "sendThreadPoolQueueCapacity": (1, _INT),
    "pullThreadPoolQueueCapacity": (1, _INT),
    "queryThreadPoolQueueCapacity": (1, _INT),
    "heartbeatThreadPoolQueueCapacity": (1, _INT),
    "endTransactionPoolQueueCapacity": (1, _INT),
    "registerNameServerPeriod": (1, _INT),
    "registerBrokerTimeoutMills": (1, _INT),
    "sendMessageThreadPoolNums": (1, _INT),
    "pullMessageThreadPoolNums": (1, _INT),
    "queryMessageThreadPoolNums": (1, _INT),
    "adminBrokerThreadPoolNums": (1, _INT),
    "heartbeatThreadPoolNums": (1, _INT),
}


def _check_connection_memory(size: int) -> None:
    if 0 < size < MIN_LIMIT:
        raise SettingsError("connectionMemoryBytes", f"must be 0 or at least {MIN_LIMIT}, not {size}")


def check_addresses(name: str, text: str) -> None:
    """`text` is empty or `host:port;host:port`. SettingsError names the key and the part that is not."""
    for part in filter(None, (part.strip() for part in text.split(";"))):
        host, colon, port = part.rpartition(":")
        if not colon or not host or not port.isdecimal() or not 0 < int(port) <= 65535:
            raise SettingsError(name, f"{part!r} is no host:port")


@dataclass(frozen=True)
class NameServerSettings:
    """One name server. They do not talk to each other; brokers register with every one."""

    listenPort: int = 9876
    """Port for brokers and clients (0: any free one)."""
    bindAddress: str = "0.0.0.0"
    """Address the socket is bound to."""
    kvConfigPath: str = "~/namesrv/kvConfig.json"
    """File of the key-value configuration (order of topics); `~` is the home directory."""
    orderMessageEnable: bool = False
    """Add ORDER_TOPIC_CONFIG to routes: clients then use the queues named there and no others."""
    serverChannelMaxIdleTimeSeconds: int = 120
    """Seconds without a byte in or out after which a connection is closed, and its broker forgotten."""
    frameMaxStallTimeSeconds: int = 60
    """Own setting. Seconds within which an unfinished frame must grow by 4 KiB; its connection is cut otherwise."""
    connectionMemoryBytes: int = 0
    """Own setting. As a broker's; in a process with a broker the broker's counts."""
    logLevel: str = "INFO"
    """Own setting. As a broker's; in a process with a broker the broker's counts."""
    logFormat: str = "text"
    """Own setting. As a broker's; in a process with a broker the broker's counts."""
    brokerExpirySeconds: int = 120
    """Own setting (a constant in RocketMQ). Seconds without a registration after which a broker is forgotten."""
    externalListenPort: int = 0
    """Own setting. A second port (0: none) for clients outside of the brokers' network: routes that are asked there
    have the brokers' `externalAddress`, and leave out those that have none."""

    def validate(self) -> None:
        """SettingsError names the key whose value cannot be used."""
        check_types(self)
        limits = {
            "listenPort": _PORT,
            "externalListenPort": _PORT,
            "serverChannelMaxIdleTimeSeconds": (1, _INT),
            "brokerExpirySeconds": (1, _INT),
            "frameMaxStallTimeSeconds": (1, _INT),
            "connectionMemoryBytes": (0, _LONG),
        }
        check_ranges(self, limits)
        _check_connection_memory(self.connectionMemoryBytes)
        logs.check(self.logLevel, self.logFormat)
        if self.externalListenPort and self.externalListenPort == self.listenPort:
            raise SettingsError("externalListenPort", f"{self.externalListenPort} is listenPort too")
        for name in ("kvConfigPath", "bindAddress"):
            if not getattr(self, name).strip():
                raise SettingsError(name, "must not be empty")


@dataclass(frozen=True)
class HttpSettings:
    """The port for probes, metrics and administration."""

    host: str = "127.0.0.1"
    """Address the socket is bound to. Without `adminTokenFile` nothing here asks who is there: other than loopback is
    for trusted networks then."""
    port: int = 8080
    """Port (0: any free one; -1: no HTTP at all)."""
    adminTokenFile: str = ""
    """File with a token a line; all but probes and metrics is refused to those who do not send one of them
    (`Authorization: Bearer ...`). Read again when it changes. Empty: nothing is asked for."""
    readTokenFile: str = ""
    """Such a file for `/store` alone, the store's files: its tokens open nothing else. Those of `adminTokenFile` open
    `/store` as well. Empty: `/store` is as open as the rest."""

    def validate(self) -> None:
        """SettingsError names the key whose value cannot be used."""
        check_types(self)
        check_ranges(self, {"port": (-1, 65535)})
        if not self.host.strip():
            raise SettingsError("host", "must not be empty")
