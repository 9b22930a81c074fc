"""RocketMQ 4.8.0 itself in the cluster: a name server and a master in one pod, with the peer lab's jars."""

from __future__ import annotations

from dataclasses import dataclass

from harness.api import Api
from harness.pods import RESTRICTED, restricted_pod
from harness.shell import apply, kubectl
from harness.waiting import NotYetError, wait_for

BROKER, CLUSTER = "broker-a", "OldCluster"
_NAME = "rocketmq"
_START_S = 180
_OPTIONS = (
    "-Djava.net.preferIPv4Stack=true -XX:+UseSerialGC -Duser.home=/tmp "
    "--add-exports java.base/sun.nio.ch=ALL-UNNAMED --add-exports java.base/jdk.internal.ref=ALL-UNNAMED "
    "--add-opens java.base/java.nio=ALL-UNNAMED --add-opens java.base/sun.nio.ch=ALL-UNNAMED "
    "--add-opens java.base/jdk.internal.ref=ALL-UNNAMED --add-opens java.base/jdk.internal.misc=ALL-UNNAMED "
    "-cp '/java/classes:/java/lib/*'"
)
_HOME = """
mkdir -p /tmp/home/conf
echo '<configuration/>' > /tmp/home/conf/logback_{name}.xml
"""
_MASTER = f"""{_HOME.format(name="broker")}
cat > /tmp/broker.conf <<END
brokerClusterName={CLUSTER}
brokerName={BROKER}
brokerId=0
brokerRole=ASYNC_MASTER
brokerIP1=$POD_IP
namesrvAddr=$POD_IP:9876
storePathRootDir=/tmp/store
storePathCommitLog=/tmp/store/commitlog
mappedFileSizeCommitLog=4194304
mappedFileSizeConsumeQueue=60000
maxHashSlotNum=5000
maxIndexNum=20000
autoCreateTopicEnable=true
diskMaxUsedSpaceRatio=95
waitTimeMillsInSendQueue=20000
osPageCacheBusyTimeOutMills=20000
registerNameServerPeriod=10000
END
exec java -Xmx384m {_OPTIONS} org.apache.rocketmq.broker.BrokerStartup -c /tmp/broker.conf
"""


@dataclass(frozen=True, slots=True)
class RocketMq:
    namespace: str

    @property
    def name_server(self) -> str:
        return f"{_NAME}.{self.namespace}.svc:9876"

    def stop_master(self) -> None:
        """The process ends in order; its name server continues."""
        kubectl("exec", _NAME, "--namespace", self.namespace, "-c", "master", "--", "sh", "-c", "kill 1")


def rocketmq(api: Api, namespace: str, image: str) -> RocketMq:
    """Started, and waited for. WaitError."""
    labels = {"app.kubernetes.io/name": _NAME}
    mounts = [{"name": "tmp", "mountPath": "/tmp"}]
    home = {"name": "ROCKETMQ_HOME", "value": "/tmp/home"}
    address = {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}

    def container(name: str, script: str) -> dict[str, object]:
        about = {"image": image, "securityContext": RESTRICTED, "volumeMounts": mounts, "env": [address, home]}
        return {"name": name, "command": ["sh", "-c", script], **about}

    server = f"{_HOME.format(name='namesrv')}exec java -Xmx128m {_OPTIONS} org.apache.rocketmq.namesrv.NamesrvStartup"
    pod = restricted_pod(namespace, _NAME, container("master", _MASTER), [{"name": "tmp", "emptyDir": {}}])
    pod["spec"]["containers"].append(container("nameserver", server))
    pod["metadata"]["labels"] = labels
    apply(pod)
    ports = [{"name": "nameserver", "port": 9876}, {"name": "remoting", "port": 10911}]
    spec = {"selector": labels, "ports": ports, "clusterIP": "None"}
    metadata = {"name": _NAME, "namespace": namespace}
    apply({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec})

    def look() -> None:
        said = kubectl("logs", _NAME, "--namespace", namespace, "-c", "master")
        if "boot success" not in said:
            raise NotYetError(said[-300:])

    wait_for("the RocketMQ master has started", look, _START_S)
    return RocketMq(namespace)
