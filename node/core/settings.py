# ruff: noqa: N815
"""The settings of brokers, name servers and the HTTP port; names and defaults are RocketMQ 4.8's where it has them.

One frozen dataclass for each. Each field is declared by `setting` (see `store/setting.py`); `docs/settings.md` is made
from these declarations. `validate()` raises SettingsError, which names the wrong setting, before a file is opened.

The settings of the store (files, flushing, cleaning) are `tallystick.store.settings.StoreSettings`.

Source: BrokerConfig, NettyServerConfig and NamesrvConfig of RocketMQ 4.8.0.
"""

from __future__ import annotations

import enum
import ipaddress
import socket
from dataclasses import dataclass
from typing import Any

from tallystick.node.access.addresses import AddressError, address_list
from tallystick.node.core import logs
from tallystick.node.tls.settings import TlsMode
from tallystick.store.memory_budget import MIN_LIMIT
from tallystick.store.setting import Change, SettingsError, check, setting

WILDCARDS = ("0.0.0.0", "::")
"""Addresses that stand for all addresses of the host. Clients cannot connect to them."""
PERMISSION_INHERIT, PERMISSION_WRITE, PERMISSION_READ = 1, 2, 4
UNDECIDED = -1
"""`brokerId` of a member of a replicated group while no leader is known: the member is not registered."""


def is_loopback(address: str) -> bool:
    """Whether only this machine reaches an address: a name other than `localhost` may lead anywhere."""
    try:
        return ipaddress.ip_address(address.strip("[]")).is_loopback
    except ValueError:
        return address.lower() == "localhost"


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


_INT = 2**31 - 1
_LONG = 2**63 - 1
_PORT = (0, 65535)
_ACL_ENABLE = (
    "Check signatures and permissions of requests, as RocketMQ's access control does. The accounts are in `aclFile`. "
    "See [security.md](security.md)."
)
_ACL_KEY_FILE = (
    "File with 64 hexadecimal digits, the key with which the secrets of accounts are encrypted where they are stored. "
    "`tally backup new-key` makes one. All members of a group need the same. Empty: secrets are stored as they are."
)
_NO_QUEUE = "the broker serves each request when it reads it, so no request waits in a queue"
_ONLY_SHOWN = "the runtime information shows it; a busy broker reads no more from a connection instead"
_NO_POOL = "there is no thread pool"
_RUNNING = Change.RUNNING
_QUOTA: dict[str, Any] = {"range": (0, (1 << 53) - 1), "change": _RUNNING, "own": True}


class GroupTlsMode(enum.Enum):
    """Whether the members of a group use TLS for each other."""

    permissive = "both are accepted, connections are made without TLS"
    preferred = "both are accepted, connections are made with TLS"
    enforcing = "only TLS"


class AuditTopic(enum.Enum):
    """Whether lines of the access log are stored as messages."""

    auto = "if access control is on"
    on = "always"
    off = "never"


@dataclass(frozen=True)
class BrokerSettings:
    """The settings of one broker."""

    # -- identity and addresses ----------------------------------------------------------------------------------------
    brokerIP1: str = setting(
        _local_address,
        "Address or name that clients and name servers get for this broker. Its IP address is the store host of each "
        "record. With a wrong value clients get a route that they cannot reach.",
        operator=True,
        default_text="the address of the default route",
    )
    brokerIP2: str = setting(
        "",
        "Address or name at which slaves reach the port for slaves.",
        operator=True,
        default_text="`brokerIP1`",
    )
    haAllowedAddresses: str = setting(
        "",
        "Addresses of slaves, separated by commas: networks such as `10.1.0.0/16`, and the patterns of "
        "`plain_acl.yml`. Others are refused at the port for slaves (`haListenPort`), which has neither access control "
        "nor TLS and gives the whole log. Empty: every address may connect; with `aclEnable` none, and the port stays "
        "closed.",
        own=True,
    )
    addressWaitMills: int = setting(
        60_000,
        "Time that a start waits until the name in `brokerIP1` has an address: in Kubernetes the name of a new "
        "Service has none at first. 0: do not wait.",
        unit="ms",
        range=(0, 3_600_000),
        own=True,
        operator=True,
    )
    externalAddress: str = setting(
        "",
        "`host:port` at which clients outside the brokers' network reach this broker. The name server tells it to "
        "clients of its `externalListenPort`. Empty: those clients do not see this broker.",
        own=True,
        operator=True,
    )
    brokerName: str = setting(
        _host_name,
        "Name of the broker: the name of a master and its slaves, or of a replicated group. If two masters have one "
        "name, each replaces the other in the route.",
        operator=True,
        same_in_group=True,
        default_text="the host name",
    )
    brokerClusterName: str = setting(
        "DefaultCluster",
        "Cluster in which the broker registers. It is also the name of a topic and a part of `<cluster>_REPLY_TOPIC`.",
        operator=True,
        same_in_group=True,
    )
    brokerId: int = setting(
        0,
        "0 is a master, other numbers are slaves: clients send nothing to them. Do not set it in a replicated group: "
        "there the leader has 0, and a follower the number of its `dLegerSelfId` plus one.",
        range=(UNDECIDED, _LONG),
        operator=True,
    )
    listenPort: int = setting(
        10911,
        "Port for clients. 0: any free port. With `vipListenerEnable` the broker also listens at this port - 2.",
        range=_PORT,
        operator=True,
    )
    bindAddress: str = setting(
        "0.0.0.0",
        "Address at which the broker listens. (The name is RocketMQ 5's; 4.8 always uses all interfaces.)",
        operator=True,
    )
    vipListenerEnable: bool = setting(
        True,
        "Also listen at `listenPort` - 2, where old clients send by default. This port serves no pulls.",
        own=True,
        operator=True,
    )
    namesrvAddr: str = setting(
        "",
        "Name servers: `host:port;host:port`. Empty: the broker registers nowhere, and no client finds it.",
        operator=True,
    )
    externalNamesrvAddr: str = setting(
        "",
        "Further name servers, at which the broker registers with `externalAddress` as its address. RocketMQ's name "
        "servers know one address of a broker: use this for those whose clients are outside the brokers' network.",
        own=True,
        operator=True,
    )
    serverChannelMaxIdleTimeSeconds: int = setting(
        120,
        "Time without data after which the broker closes a connection. Clients send something every 30 s.",
        unit="s",
        range=(1, _INT),
    )
    frameMaxStallTimeSeconds: int = setting(
        60,
        "Time in which an unfinished frame must grow by 4 KiB. Otherwise the broker closes the connection.",
        unit="s",
        range=(1, _INT),
        own=True,
    )
    connectionMemoryBytes: int = setting(
        0,
        "Memory of all connections of the process: unfinished frames, unsent data, bodies of requests. Above it, the "
        "process closes the largest connections. At least 33554432. 0: a quarter of the memory limit of the process's "
        "cgroup, or of the machine's memory.",
        unit="bytes",
        range=(0, _LONG),
        own=True,
    )
    logLevel: str = setting(
        "INFO",
        "The process logs messages of this level and above: DEBUG (each step of Raft), INFO, WARNING or ERROR.",
        change=_RUNNING,
        own=True,
    )
    logFormat: str = setting(
        "text", "Format of the log on standard error: text, or json (one object per line).", own=True
    )
    regionId: str = setting(
        "DefaultRegion", "Told to producers as `MSG_REGION`. Only message traces use it.", change=_RUNNING
    )

    # -- topics and groups ---------------------------------------------------------------------------------------------
    brokerPermission: int = setting(
        6,
        "Sum of 2 (write) and 4 (read). Without write the broker refuses sends (16), without read it refuses pulls. "
        "Name servers get it with each topic.",
        range=(0, PERMISSION_READ | PERMISSION_WRITE),
        change=_RUNNING,
    )
    defaultTopicQueueNums: int = setting(
        8,
        "Number of queues of TBW102, the template of topics that a send creates, and the largest number for such a "
        "topic.",
        unit="queues",
        range=(1, 65535),
        change=_RUNNING,
    )
    autoCreateTopicEnable: bool = setting(
        True,
        "A send to an unknown topic creates it. Off: the broker refuses the send (17).",
        change=_RUNNING,
        operator=True,
    )
    clusterTopicEnable: bool = setting(
        True, "Clients can read and write the topic with the name of the cluster. Off: it is a template only."
    )
    brokerTopicEnable: bool = setting(
        True, "Clients can read and write the topic with the name of the broker. Off: it is a template only."
    )
    autoCreateSubscriptionGroup: bool = setting(
        True,
        "A consumer of an unknown group creates it. Off: the broker refuses the consumer (26), except for groups "
        "whose names begin with CID_RMQ_SYS_.",
        change=_RUNNING,
    )
    traceTopicEnable: bool = setting(False, "Create `msgTraceTopicName` at start, so that the broker keeps traces.")
    msgTraceTopicName: str = setting(
        "RMQ_SYS_TRACE_TOPIC", "Topic of message traces. RocketMQ's clients use the default."
    )
    traceOn: bool = setting(True, "Told to producers as `TRACE_ON`. Off: they send no traces.", change=_RUNNING)

    # -- consuming -----------------------------------------------------------------------------------------------------
    flushConsumerOffsetInterval: int = setting(
        5000,
        "Time between two writes of consumerOffset.json. After a crash, consumers get messages of this time again. A "
        "member of a replicated group has the default 1000.",
        unit="ms",
        range=(100, _INT),
        change=_RUNNING,
    )
    longPollingEnable: bool = setting(
        True,
        "Hold a pull at the end of a queue for the time that the client allows. Off: for `shortPollingTimeMills`.",
        change=_RUNNING,
    )
    pullThreadPoolQueueCapacity: int = setting(
        100000,
        "Number of held pulls. The broker answers further ones with 2 (busy).",
        unit="pulls",
        range=(1, _INT),
        change=_RUNNING,
    )
    shortPollingTimeMills: int = setting(
        1000, "Time that the broker holds a pull if long polling is off.", unit="ms", range=(0, _INT), change=_RUNNING
    )
    notifyConsumerIdsChangedEnable: bool = setting(
        True,
        "Tell the members of a consumer group at once when one joins or leaves (40). Off: they notice within 20 s.",
        change=_RUNNING,
    )
    slaveReadEnable: bool = setting(False, "Advise slow consumers to read from a slave.", change=_RUNNING)
    disableConsumeIfConsumerReadSlowly: bool = setting(
        False,
        "Stop a group that is further behind than `consumerFallbehindThreshold`.",
        change=_RUNNING,
    )
    consumerFallbehindThreshold: int = setting(
        16 * 1024**3,
        "A group that is further behind the end of the log counts as slow.",
        unit="bytes",
        range=(0, _LONG),
        change=_RUNNING,
    )
    enablePropertyFilter: bool = setting(
        False,
        "Allow SQL92 subscriptions. Off: the broker refuses them when a client starts (46).",
        change=_RUNNING,
    )
    expectConsumerNumUseFilter: int = setting(
        32,
        "Expected number of groups with an SQL92 subscription per topic. It gives the size of the bloom filter.",
        unit="groups",
        range=(1, _INT),
    )
    maxErrorRateOfBloomFilter: int = setting(
        20, "False positives of the bloom filter with `expectConsumerNumUseFilter` groups.", unit="%", range=(1, 99)
    )
    filterDataCleanTimeSpan: int = setting(
        24 * 3600 * 1000,
        "Time after which the filter of a group without consumers is removed.",
        unit="ms",
        range=(0, _LONG),
        change=_RUNNING,
    )
    filterSupportRetry: bool = setting(
        False, "Apply SQL92 filters to retried messages with the properties of the original.", change=_RUNNING
    )

    # -- sending, replies, transactions --------------------------------------------------------------------------------
    startAcceptSendRequestTimeStamp: int = setting(
        0,
        "The broker refuses sends (1) before this time.",
        unit="ms since 1970",
        range=(0, _LONG),
        change=_RUNNING,
    )
    rejectTransactionMessage: bool = setting(False, "Refuse half messages (16).", change=_RUNNING)
    recallMessageEnable: bool = setting(
        False,
        "Let producers recall messages that wait for their time (370). (The name and the default are RocketMQ 5's.)",
        change=_RUNNING,
    )
    allowRecallWhenBrokerNotWriteable: bool = setting(
        True, "Let them do so also while `brokerPermission` forbids sends. (The name is RocketMQ 5's.)", change=_RUNNING
    )
    transactionTimeOut: int = setting(
        6000,
        "Age of a half message at which the broker asks its producer for the first time.",
        unit="ms",
        range=(0, _INT),
        change=_RUNNING,
    )
    transactionCheckMax: int = setting(
        15,
        "Number of checks of a half message. Afterwards the broker moves it to TRANS_CHECK_MAX_TIME_TOPIC.",
        unit="checks",
        range=(1, _INT),
        change=_RUNNING,
    )
    transactionCheckInterval: int = setting(
        60000, "Time between two rounds of checks.", unit="ms", range=(1, _INT), change=_RUNNING
    )
    storeReplyMessageEnable: bool = setting(
        True, "Keep replies in `<cluster>_REPLY_TOPIC` after the requester got them.", change=_RUNNING
    )

    # -- registration --------------------------------------------------------------------------------------------------
    registerNameServerPeriod: int = setting(
        30000,
        "Time between two registrations. Values below 10000 count as 10000, values above 60000 as 60000. A name "
        "server removes a broker after 120 s.",
        unit="ms",
        range=(1, _INT),
        change=_RUNNING,
    )
    registerBrokerTimeoutMills: int = setting(
        6000, "Time to wait for the answer of a name server.", unit="ms", range=(1, _INT), change=_RUNNING
    )

    # -- replicated group (`enableDLegerCommitLog` and the other `dLeger...` settings belong to the store) -------------
    groupBootstrap: bool = setting(
        False,
        "Create a new group of the members in `dLegerPeers`. Set it for the first start of all members, and never "
        "again: a member that lost its disk would assume that it never voted, and could vote twice. A member that has "
        "data ignores it.",
        own=True,
        operator=True,
    )
    groupBootstrapMembers: str = setting(
        "",
        "Voters of a group that `groupBootstrap` creates, such as `n0;n1;n2`. `dLegerPeers` can name more members, "
        "which join later. A member that is not in the list creates no group. Empty: all of `dLegerPeers`.",
        own=True,
        operator=True,
        same_in_group=True,
    )
    groupElectionTimeoutMills: int = setting(
        800,
        "Time without a message of the leader after which a member starts an election. Use at least ten times the "
        "round trip plus a slow fsync. Otherwise a busy leader loses its leadership.",
        unit="ms",
        range=(50, 600_000),
        own=True,
        same_in_group=True,
    )
    groupHeartbeatMills: int = setting(
        100, "Time between two heartbeats of the leader.", unit="ms", range=(5, 300_000), own=True, same_in_group=True
    )
    groupLingerMills: int = setting(
        0,
        "Longest time that a stopping member continues to forward requests of connected clients after it has left the "
        "name servers. Clients look for new routes every 30 s: with 35000 no send fails when a member stops and its "
        "address does not come back at once, for example when a pod moves.",
        unit="ms",
        range=(0, 600_000),
        own=True,
    )
    groupTlsCa: str = setting(
        "",
        "PEM file of the authorities that sign the members' certificates. With it members use TLS for each other, and "
        "need `groupTlsCertificate` and `groupTlsKey`. The broker reads changed files while it runs.",
        own=True,
        operator=True,
    )
    groupTlsMode: GroupTlsMode = setting(
        GroupTlsMode.enforcing,
        "With `groupTlsCa`: whether members without TLS are accepted, while a running group begins or ends to use it. "
        "`permissive`: the member accepts both, and connects without TLS; `preferred`: it accepts both, and connects "
        "with TLS; `enforcing`: only TLS. Change all members to one before the first one goes to the next.",
        own=True,
    )
    groupTlsCertificate: str = setting(
        "", "PEM file of this member's certificate and its chain.", own=True, operator=True
    )
    groupTlsKey: str = setting("", "PEM file of this member's private key, not encrypted.", own=True, operator=True)
    groupTlsPeerName: str = setting(
        "",
        "Name that the certificate of another member must have, such as `n{member}.{group}`; {cluster}, {group} and "
        "{member} are replaced. Empty: any certificate of the authorities is accepted for any member.",
        own=True,
        operator=True,
        same_in_group=True,
    )

    # -- access control ------------------------------------------------------------------------------------------------
    aclEnable: bool = setting(False, _ACL_ENABLE, same_in_group=True)
    aclFile: str = setting(
        "",
        "File of the accounts, in the format of RocketMQ's `plain_acl.yml`. The broker reads it again when it changes. "
        "Empty: `conf/plain_acl.yml` in the folder that the environment variable `ROCKETMQ_HOME` names. A group "
        "uses it until its log has accounts.",
        own=True,
    )
    aclKeyFile: str = setting("", _ACL_KEY_FILE, own=True)
    aclCredentialsFile: str = setting(
        "",
        "File with `accessKey` and `secretKey`, in the format of RocketMQ's `conf/tools.yml`. With them the broker "
        "signs its own requests: to name servers, and to the master that it copies. Empty: they are not signed.",
        own=True,
    )

    auditTopic: AuditTopic = setting(
        AuditTopic.auto,
        "Whether the broker stores the lines of the access log as messages of the system topic `rmq_sys_audit`: "
        "refused requests, and who changed what. `auto`: if `aclEnable` is set; `on`: always; `off`: never.",
        own=True,
    )

    # -- quotas --------------------------------------------------------------------------------------------------------
    userMessagesPerSecond: int = setting(
        0,
        "Messages that one user may send and receive per second. A quota of the user in `aclFile` replaces it. 0: no "
        "limit. See [security.md](security.md#quotas).",
        **_QUOTA,
    )
    userBytesPerSecond: int = setting(
        0, "Bytes of messages that one user may send and receive per second. 0: no limit.", **_QUOTA, unit="bytes"
    )
    userRequestsPerSecond: int = setting(0, "Requests of one user per second. 0: no limit.", **_QUOTA)
    userTopics: int = setting(
        0, "Topics that one user may create, by sending to them or as an administrator. 0: no limit.", **_QUOTA
    )
    clientMessagesPerSecond: int = setting(
        0,
        "Messages that one client may send and receive per second. A client of a user is its client id; any other one "
        "is its address, of IPv6 its network of 64 bits. 0: no limit.",
        **_QUOTA,
    )
    clientBytesPerSecond: int = setting(
        0, "Bytes of messages that one client may send and receive per second. 0: no limit.", **_QUOTA, unit="bytes"
    )
    clientRequestsPerSecond: int = setting(0, "Requests of one client per second. 0: no limit.", **_QUOTA)
    quotaBurstSeconds: int = setting(
        2,
        "Who used less than its quota may use what the quota gives in this time at once.",
        unit="s",
        range=(1, 3600),
        change=_RUNNING,
        own=True,
    )
    maxConnectionsPerAddress: int = setting(
        10_000,
        "Open connections of one address to one port, of IPv6 of one network of 64 bits. The broker closes new ones "
        "above it. All connections to a port are at most 20 000. 0: no limit.",
        range=(0, 20_000),
        own=True,
    )

    # -- accepted for RocketMQ's configuration files; no effect --------------------------------------------------------
    brokerFastFailureEnable: bool = setting(
        True, "Refuse requests that wait in a queue for too long.", no_effect=_NO_QUEUE
    )
    waitTimeMillsInSendQueue: int = setting(
        200, "Longest time of a send in its queue.", unit="ms", range=(1, _INT), no_effect=_NO_QUEUE
    )
    waitTimeMillsInPullQueue: int = setting(
        5000, "Longest time of a pull in its queue.", unit="ms", range=(1, _INT), no_effect=_NO_QUEUE
    )
    waitTimeMillsInHeartbeatQueue: int = setting(
        31000, "Longest time of a heartbeat in its queue.", unit="ms", range=(1, _INT), no_effect=_NO_QUEUE
    )
    waitTimeMillsInTransactionQueue: int = setting(
        3000, "Longest time of the end of a transaction in its queue.", unit="ms", range=(1, _INT), no_effect=_NO_QUEUE
    )
    sendThreadPoolQueueCapacity: int = setting(
        10000, "Length of the queue of sends.", unit="requests", range=(1, _INT), no_effect=_ONLY_SHOWN
    )
    queryThreadPoolQueueCapacity: int = setting(
        20000, "Length of the queue of queries.", unit="requests", range=(1, _INT), no_effect=_ONLY_SHOWN
    )
    endTransactionPoolQueueCapacity: int = setting(
        100000, "Length of the queue of ends of transactions.", unit="requests", range=(1, _INT), no_effect=_ONLY_SHOWN
    )
    heartbeatThreadPoolQueueCapacity: int = setting(
        50000, "Length of the queue of heartbeats.", unit="requests", range=(1, _INT), no_effect=_NO_QUEUE
    )
    enableCalcFilterBitMap: bool = setting(
        False,
        "Evaluate SQL92 expressions when messages are dispatched, and store the result in a bit map in the extension "
        "of the ConsumeQueue. Pulls skip messages by it, and do not read them. It needs `enableConsumeQueueExt`.",
    )
    forceRegister: bool = setting(
        True,
        "Register in each period.",
        no_effect="the broker registers in each period, even if no topic changed",
    )
    compressedRegister: bool = setting(
        False, "Compress registrations.", no_effect="registrations are plain JSON, which every name server reads"
    )
    sendMessageThreadPoolNums: int = setting(
        1, "Threads for sends.", unit="threads", range=(1, _INT), no_effect=_NO_POOL
    )
    pullMessageThreadPoolNums: int = setting(
        16, "Threads for pulls.", unit="threads", range=(1, _INT), no_effect=_NO_POOL
    )
    queryMessageThreadPoolNums: int = setting(
        8, "Threads for queries.", unit="threads", range=(1, _INT), no_effect=_NO_POOL
    )
    adminBrokerThreadPoolNums: int = setting(
        16, "Threads for administration.", unit="threads", range=(1, _INT), no_effect=_NO_POOL
    )
    heartbeatThreadPoolNums: int = setting(
        32, "Threads for heartbeats.", unit="threads", range=(1, _INT), no_effect=_NO_POOL
    )
    transferMsgByHeap: bool = setting(
        True,
        "Copy messages into the answer instead of sending them from the file.",
        no_effect="the broker copies each record once, from the log to the answer",
    )

    def validate(self) -> None:
        """Checks every field. SettingsError: names the first setting that cannot be used."""
        check(self)
        _check_connection_memory(self.connectionMemoryBytes)
        for name in ("brokerIP1", "brokerName", "brokerClusterName", "bindAddress", "msgTraceTopicName"):
            if not getattr(self, name).strip():
                raise SettingsError(name, "must not be empty")
        for name, longest in (("brokerName", 127), ("brokerClusterName", 127 - len("_REPLY_TOPIC"))):
            value = getattr(self, name)
            # Both are also names of topics, and a topic is a folder.
            if len(value.encode()) > longest or "/" in value or not value.isprintable() or value in (".", ".."):
                raise SettingsError(name, f"must be at most {longest} printable bytes without '/', not {value!r}")
        if self.brokerIP2 in WILDCARDS:
            raise SettingsError("brokerIP2", f"{self.brokerIP2} stands for every address: slaves need one address")
        if self.brokerIP1 in WILDCARDS:
            raise SettingsError("brokerIP1", f"{self.brokerIP1} stands for every address: clients need one address")
        logs.check(self.logLevel, self.logFormat)
        check_addresses("namesrvAddr", self.namesrvAddr)
        check_addresses("externalNamesrvAddr", self.externalNamesrvAddr)
        if self.externalNamesrvAddr and not self.externalAddress:
            raise SettingsError("externalNamesrvAddr", "needs externalAddress, which the broker registers there")
        if ";" in self.externalAddress:
            raise SettingsError("externalAddress", f"{self.externalAddress!r} is more than one host:port")
        check_addresses("externalAddress", self.externalAddress)
        try:
            address_list(self.haAllowedAddresses)
        except AddressError as error:
            raise SettingsError("haAllowedAddresses", str(error)) from None
        tls = {name: getattr(self, name) for name in ("groupTlsCa", "groupTlsCertificate", "groupTlsKey")}
        for name, value in tls.items():
            if any(tls.values()) and not value:
                raise SettingsError(name, "must be set, because another groupTls setting is set")
        if self.groupTlsMode is not GroupTlsMode.enforcing and not self.groupTlsCa:
            raise SettingsError("groupTlsMode", "needs groupTlsCa")
        if self.vipListenerEnable and 0 < self.listenPort <= 2:
            raise SettingsError(
                "listenPort", f"must be above 2, not {self.listenPort}: the broker also listens at port - 2"
            )


def _check_connection_memory(size: int) -> None:
    if 0 < size < MIN_LIMIT:
        raise SettingsError("connectionMemoryBytes", f"must be 0 or at least {MIN_LIMIT}, not {size}")


def check_addresses(name: str, text: str) -> None:
    """Checks that `text` is empty or `host:port;host:port`. SettingsError: names the setting and the wrong part."""
    for part in filter(None, (part.strip() for part in text.split(";"))):
        host, colon, port = part.rpartition(":")
        if not colon or not host or not port.isdecimal() or not 0 < int(port) <= 65535:
            raise SettingsError(name, f"{part!r} is not host:port")


_AS_BROKER = "As the broker's setting. In a process with a broker, the broker's value applies."


@dataclass(frozen=True)
class NameServerSettings:
    """The settings of one name server. Name servers do not talk to each other: brokers register with each of them."""

    listenPort: int = setting(9876, "Port for brokers and clients. 0: any free port.", range=_PORT)
    bindAddress: str = setting("0.0.0.0", "Address at which the name server listens.")
    kvConfigPath: str = setting(
        "~/namesrv/kvConfig.json", "File of the key-value configuration. `~` is the home directory."
    )
    orderMessageEnable: bool = setting(
        False,
        "Add ORDER_TOPIC_CONFIG to routes. Clients then use only the queues that it names.",
        change=_RUNNING,
    )
    serverChannelMaxIdleTimeSeconds: int = setting(
        120,
        "Time without data after which the name server closes a connection. It removes the broker of this connection.",
        unit="s",
        range=(1, _INT),
    )
    frameMaxStallTimeSeconds: int = setting(
        60,
        "Time in which an unfinished frame must grow by 4 KiB. Otherwise the name server closes the connection.",
        unit="s",
        range=(1, _INT),
        own=True,
    )
    connectionMemoryBytes: int = setting(0, _AS_BROKER, unit="bytes", range=(0, _LONG), own=True)
    maxConnectionsPerAddress: int = setting(
        10_000,
        "Open connections of one address to one port, of IPv6 of one network of 64 bits. The name server closes new "
        "ones above it. 0: no limit.",
        range=(0, 20_000),
        own=True,
    )
    aclEnable: bool = setting(False, _ACL_ENABLE, own=True)
    aclFile: str = setting(
        "", "File of the accounts. See the broker's setting; a name server always uses its file.", own=True
    )
    aclKeyFile: str = setting("", _ACL_KEY_FILE, own=True)
    logLevel: str = setting("INFO", _AS_BROKER, change=_RUNNING, own=True)
    logFormat: str = setting("text", _AS_BROKER, own=True)
    brokerExpirySeconds: int = setting(
        120,
        "Time without a registration after which the name server removes a broker. (A constant in RocketMQ.)",
        unit="s",
        range=(1, _INT),
        change=_RUNNING,
        own=True,
    )
    externalListenPort: int = setting(
        0,
        "Second port, for clients outside the brokers' network: routes contain the brokers' `externalAddress`, and no "
        "brokers without one. 0: no second port.",
        range=_PORT,
        own=True,
        operator=True,
    )

    def validate(self) -> None:
        """Checks every field. SettingsError: names the first setting that cannot be used."""
        check(self)
        _check_connection_memory(self.connectionMemoryBytes)
        logs.check(self.logLevel, self.logFormat)
        if self.externalListenPort and self.externalListenPort == self.listenPort:
            raise SettingsError("externalListenPort", f"{self.externalListenPort} is also listenPort")
        for name in ("kvConfigPath", "bindAddress"):
            if not getattr(self, name).strip():
                raise SettingsError(name, "must not be empty")


@dataclass(frozen=True)
class HttpSettings:
    """The settings of the HTTP port for probes, metrics and administration."""

    host: str = setting(
        "127.0.0.1",
        "Address at which the process listens. Without `adminTokenFile`, and if the address is not loopback, only "
        "probes and metrics are answered: see `open`.",
        own=True,
    )
    port: int = setting(8080, "Port. 0: any free port. -1: no HTTP.", range=(-1, 65535), own=True)
    adminTokenFile: str = setting(
        "",
        "File with one token per line. All requests but probes and metrics then need one of them (`Authorization: "
        "Bearer ...`). The process reads the file again when it changes. Empty: no authentication.",
        own=True,
        operator=True,
    )
    readTokenFile: str = setting(
        "",
        "File of tokens that open only `/store`, the files of the store. Tokens of `adminTokenFile` open `/store` as "
        "well. Empty: `/store` needs the tokens of `adminTokenFile`.",
        own=True,
        operator=True,
    )

    open: bool = setting(
        False,
        "Answer administrative requests without a token also if the address is not loopback. Every caller that "
        "reaches the port can then delete topics: only for networks that you trust.",
        own=True,
        operator=True,
    )
    console: bool = setting(
        True,
        "Serve the console at `/`, and the REST interface of the cluster at `/api/v1`. See [rest.md](rest.md).",
        own=True,
    )
    tlsMode: TlsMode = setting(
        TlsMode.disabled,
        "What the port accepts, as `tls.server.mode`: with the same certificate. RocketMQ has no such port, and probes "
        "and scrapers that use it must know.",
        own=True,
    )
    allowedHosts: str = setting(
        "",
        "Names of this machine in requests without a token, separated by commas. Addresses, names without a dot, "
        "names that end with `.local`, `.internal` or `.svc`, and the name of the machine are accepted in any case. "
        "Others are refused, because a page in a browser may have made its own name lead to this port.",
        own=True,
        operator=True,
    )

    def validate(self) -> None:
        """Checks every field. SettingsError: names the first setting that cannot be used."""
        check(self)
        if not self.host.strip():
            raise SettingsError("host", "must not be empty")
