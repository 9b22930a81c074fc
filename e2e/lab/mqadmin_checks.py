"""The command lines of RocketMQ's admin tool that `make mqadmin` tries, in their order, and what they must show.

Every command that a tool of 4.8.0 or 5.5.0 offers is here: `without_line` finds those that are not.
"""

from collections.abc import Iterable
from dataclasses import dataclass

CLUSTER, BROKER_NAME = "PeerCluster", "broker-a"
TOPIC, OTHER_TOPIC = "AdminSmoke", "AdminSmokeOther"
GROUP, OTHER_GROUP, IDLE_GROUP = "admin-online", "admin-made", "admin-idle"

ACL = "access control without `aclEnable`"
ACL_2 = "the commands of ACL 2.0"
CONTROLLER = "the controller, whose part Raft plays here"
COLD = "flow control of cold data"
STATIC = "static topics"
LITE = "lite topics"
ROCKSDB = "stores in RocksDB"
POP = "POP consumption"
CONTAINER = "several brokers in one process"


@dataclass(frozen=True, slots=True)
class Check:
    """A command line, what its output must show (a regular expression), and values to keep from its named groups."""

    line: str
    shows: str = ""
    name: str = ""
    lacks: str = ""
    """What RocketMQ has and tallystick has not: the broker must refuse the command at once."""
    seconds: float = 0
    """The command runs until it is stopped: after this time."""

    @property
    def title(self) -> str:
        return self.name or self.line.split()[0]


# {broker}, {nameserver} and what earlier outputs gave ({key_id}, {offset_id}, ...) are filled in. The order matters.
_BOTH = (
    Check("updateTopic -b {broker} -t {topic} -r 4 -w 4", r"create topic to .* success"),
    Check("updateTopic -c {cluster} -t {other_topic} -r 2 -w 2", r"create topic to .* success", "updateTopic -c"),
    Check("updateTopicPerm -c {cluster} -t {other_topic} -p 4", r"update topic perm from 6 to 4"),
    Check("clusterList", r"{cluster}\s+broker-a\s+0\s+127\.0\.0\.1:\d+\s+V\d+_\d+_\d+"),
    Check("clusterList -m", r"{cluster}\s+broker-a\s+\d+", "clusterList -m"),
    Check("topicList", r"(?m)^{topic}$"),
    Check("topicList -c", r"{cluster}\s+{topic}", "topicList -c"),
    Check("topicRoute -t {topic}", r'"brokerName":\s*"broker-a"'),
    Check("topicStatus -t {topic}", r"broker-a\s+3\s+0\s+\d+"),
    Check("topicClusterList -t {topic}", r"(?m)^{cluster}$"),
    Check("allocateMQ -t {topic} -i 10.0.0.1,10.0.0.2", r"10\.0\.0\.2"),
    Check("updateOrderConf -t {topic} -m put -v broker-a:4", r"success", "updateOrderConf put"),
    Check("updateOrderConf -t {topic} -m get", r"broker-a:4", "updateOrderConf get"),
    Check("updateOrderConf -t {topic} -m delete", r"success", "updateOrderConf delete"),
    Check("sendMessage -t {topic} -p hello -k key-1 -c TagA", r"broker-a\s+(?P<queue>\d+)\s+SEND_OK\s+(?P<key_id>\w+)"),
    Check("sendTraced {topic}", r"SEND_OK (?P<traced_id>\w+)", "sendTraced (a producer with traces)"),
    Check("sendMsgStatus -b broker-a -s 100 -c 3", r"SEND_OK"),
    Check("checkMsgSendRT -t {topic} -a 5 -s 100", r"broker-a.*true"),
    Check("queryMsgByKey -t {topic} -k key-1", r"{key_id}\s+{queue}\s+(?P<offset>\d+)"),
    Check("queryMsgByOffset -t {topic} -b broker-a -i {queue} -o {offset}", r"OffsetID:\s+(?P<offset_id>\w+)"),
    Check("queryMsgByUniqueKey -t {topic} -i {key_id}", r"(?s)Topic:\s+{topic}.*Keys:\s+\[key-1\]"),
    Check("queryCq -t {topic} -q {queue} -i 0 -c 5 -b {broker}", r"(?s)max: \d+, min: 0"),
    Check("printMsg -t {topic}", r"key-1"),
    Check("printMsgByQueue -t {topic} -a broker-a -i {queue} -p true -d true", r"hello"),
    Check("consumeMessage -t {topic} -g {idle_group}", r"Consume ok"),
    Check("updateSubGroup -b {broker} -g {other_group}", r"create subscription group to .* success"),
    Check("updateSubGroup -c {cluster} -g {other_group} -r 3", r"create .* to .* success", "updateSubGroup -c"),
    Check("consumerProgress", r"{group}\s+1\s+V\d+_\d+_\d+"),
    Check("consumerProgress -g {group}", r"(?s){topic}\s+broker-a\s+{queue}.*Diff Total: \d+", "consumerProgress -g"),
    Check("consumerProgress -g {group} -s true", r"(?s){topic}.*Diff Total", "consumerProgress -s"),
    Check("consumerConnection -g {group}", r"(?s)JAVA\s+V\d+_\d+_\d+.*CLUSTERING"),
    Check("consumerStatus -g {group}", r"(?s)@.*V\d+_\d+_\d+"),
    Check("brokerConsumeStats -b {broker}", r"(?s){topic}\s+{group}.*Diff Total"),
    Check("statsAll -t {topic}", r"{topic}\s+{group}"),
    Check("cloneGroupOffset -s {group} -d {other_group} -t {topic}", r"clone group offset success"),
    Check("resetOffsetByTime -g {group} -t {topic} -s now", r"broker-a\s+\d"),
    Check("brokerStatus -b {broker}", r"commitLogMaxOffset\s+: \d+"),
    Check("brokerStatus -c {cluster}", r"putTps\s+: ", "brokerStatus -c"),
    Check("getBrokerConfig -b {broker}", r"brokerName\s+=\s+broker-a"),
    Check("getBrokerConfig -c {cluster}", r"flushDiskType\s+=", "getBrokerConfig -c"),
    Check("updateBrokerConfig -b {broker} -k longPollingEnable -v true", r"update broker config success"),
    Check("cleanExpiredCQ -b {broker}", r"success"),
    Check("cleanUnusedTopic -b {broker}", r"success"),
    Check("getNamesrvConfig -n {nameserver}", r"listenPort\s+=\s+\d+"),
    Check("updateNamesrvConfig -n {nameserver} -k orderMessageEnable -v false", r"(?i)success"),
    Check("updateKvConfig -s admin -k one -v 1", r"create or update kv config to namespace success"),
    Check("deleteKvConfig -s admin -k one", r"delete kv config from namespace success"),
    Check("deleteSubGroup -b {broker} -g {other_group}", r"delete subscription group .* success"),
    Check("deleteTopic -c {cluster} -t {other_topic}", r"delete topic \[{other_topic}\] from NameServer success"),
    Check("wipeWritePerm -b broker-a", r"wipe write perm of broker\[broker-a\] in name server\[.*\] OK"),
)

_ONLY_4 = (
    Check("queryMsgById -i {offset_id}", r"(?s)Topic:\s+{topic}.*Keys:\s+\[key-1\]"),
    Check("updateAclConfig -b {broker} -a key -s 12345678", lacks=ACL),
    Check("deleteAccessConfig -b {broker} -a key", lacks=ACL),
    Check("updateGlobalWhiteAddr -b {broker} -g 10.0.0.1", lacks=ACL),
    Check("getAccessConfigSubCommand -b {broker}", lacks=ACL),
    Check("clusterAclConfigVersion -b {broker}", lacks=ACL),
    Check("QueryMsgTraceById -i {traced_id}", r"Pub"),
)

_ONLY_5 = (
    Check("queryMsgById -t {topic} -i {offset_id}", r"(?s)Topic:\s+{topic}.*Keys:\s+\[key-1\]"),
    Check("queryMsgTraceById -i {traced_id}", r"Pub"),
    Check(
        "updateTopic -b {broker} -t {topic} -r 4 -w 4 -a +retention.hours=24",
        r"create topic to .* success",
        "updateTopic -a (an attribute of tallystick)",
    ),
    Check("updateTopicList -b {broker} -f {topics_file}", r"(?i)submit batch of topic config to .* success"),
    Check("updateSubGroupList -b {broker} -f {groups_file}", r"(?i)submit batch of .*group config to .* success"),
    Check("addWritePerm -b broker-a", r"add write perm of broker\[broker-a\] in name server\[.*\] OK"),
    Check("producer -b {broker}", r"{group}|CLIENT_INNER_PRODUCER"),
    Check("deleteExpiredCommitLog -b {broker}", r"success"),
    Check("getConsumerConfig -g {group}", r"(?i)broker-a"),
    Check("haStatus -b {broker}", r"MasterAddr|InSyncSlaveNums"),
    Check("skipAccumulatedMessage -g {group} -t {topic}", r"broker-a"),
    Check("exportMetadata -c {cluster} -f {folder}", r"export .* success"),
    Check("exportConfigs -c {cluster} -f {folder}", r"export .* success"),
    Check("exportMetrics -c {cluster} -f {folder}", r"export .* success"),
    Check("resetMasterFlushOffset -b {broker} -o 0", lacks="the HA of controller mode"),
    Check("getBrokerEpoch -b broker-a", lacks=CONTROLLER),
    Check("getSyncStateSet -a {nameserver} -b broker-a", lacks=CONTROLLER),
    Check("getControllerMetaData -a {nameserver}", lacks=CONTROLLER),
    Check("getControllerConfig -a {nameserver}", lacks=CONTROLLER),
    Check("updateControllerConfig -a {nameserver} -k key -v value", lacks=CONTROLLER),
    Check("electMaster -a {nameserver} -b 1 -bn broker-a -c {cluster}", lacks=CONTROLLER),
    Check("cleanBrokerMetadata -a {nameserver} -bn broker-a -c {cluster}", lacks=CONTROLLER),
    Check("addBroker -c {broker} -b /none.conf", lacks=CONTAINER),
    Check("removeBroker -c {broker} -b {cluster}:broker-a:1", lacks=CONTAINER),
    Check("getColdDataFlowCtrInfo -b {broker}", lacks=COLD),
    Check("updateColdDataFlowCtrGroupConfig -b {broker} -g {group} -v 1000", lacks=COLD),
    Check("removeColdDataFlowCtrGroupConfig -b {broker} -g {group}", lacks=COLD),
    Check("setCommitLogReadAheadMode -b {broker} -m 0", lacks=COLD),
    Check("createUser -b {broker} -u someone -p secret", lacks=ACL_2),
    Check("updateUser -b {broker} -u someone -p other", lacks=ACL_2),
    Check("getUser -b {broker} -u someone", lacks=ACL_2),
    Check("listUser -b {broker}", lacks=ACL_2),
    Check("copyUser -f {broker} -t {broker}", lacks=ACL_2),
    Check("createAcl -b {broker} -s User:someone -r Topic:* -a Pub -d Allow", lacks=ACL_2),
    Check("updateAcl -b {broker} -s User:someone -r Topic:* -a Sub -d Allow", lacks=ACL_2),
    Check("getAcl -b {broker} -s User:someone", lacks=ACL_2),
    Check("listAcl -b {broker}", lacks=ACL_2),
    Check("copyAcl -f {broker} -t {broker}", lacks=ACL_2),
    Check("deleteAcl -b {broker} -s User:someone", lacks=ACL_2),
    Check("deleteUser -b {broker} -u someone", lacks=ACL_2),
    Check("updateStaticTopic -b broker-a -t {topic} -qn 4", lacks=STATIC),
    Check("remappingStaticTopic -b broker-a -t {topic}", lacks=STATIC),
    Check("setConsumeMode -b {broker} -t {topic} -g {group} -m PULL", lacks=POP),
    Check("exportPopRecord -b {broker} -d true", lacks=POP),
    Check("getBrokerLiteInfo -b {broker}", lacks=LITE),
    Check("getParentTopicInfo -p {topic}", lacks=LITE),
    Check("getLiteTopicInfo -p {topic} -l lite", lacks=LITE),
    Check("getLiteGroupInfo -p {topic} -g {group}", lacks=LITE),
    Check("getLiteClientInfo -p {topic} -g {group} -c client", lacks=LITE),
    Check("triggerLiteDispatch -p {topic} -g {group}", lacks=LITE),
    Check("switchTimerEngine -b {broker} -e F", lacks="the choice between engines for timers"),
    Check("checkRocksdbCqWriteProgress -c {cluster} -n {nameserver}", lacks=ROCKSDB),
    Check("exportMetadataInRocksDB -p {folder} -t topics", name="exportMetadataInRocksDB (local files)"),
    Check("rocksDBConfigToJson -t topics -c {cluster}", lacks=ROCKSDB),
    Check("dumpCompactionLog -f {topics_file}", name="dumpCompactionLog (local file)"),
)

_LAST = (
    Check("producerConnection -g CLIENT_INNER_PRODUCER -t {topic}", r"127\.0\.0\.1:\d+\s+JAVA"),
    Check("clusterRT -c {cluster} -a 2 -s 100 -i 1", r"{cluster}\s+broker-a", seconds=60),
    Check("startMonitoring", seconds=30),
)


def checks_of(version: str) -> tuple[Check, ...]:
    """The checks for the tool of this version."""
    is_5 = version.startswith("5")
    lines = [*_BOTH, *(_ONLY_5 if is_5 else _ONLY_4), *_LAST]
    # The broker is no longer writable behind wipeWritePerm; groups and topics are used by all others.
    behind = ("deleteSubGroup", "deleteTopic", "wipeWritePerm", "addWritePerm")
    return (
        *(check for check in lines if check.title not in behind),
        *(check for title in behind for check in lines if check.title == title),
    )


def without_line(version: str, offered: Iterable[str]) -> list[str]:
    """Names of commands that the tool offers, and no check tries."""
    tried = {check.line.split()[0] for check in checks_of(version)}
    return sorted(set(offered) - tried)
