"""RocketMQ 5.5.0 with its proxy in one process: all three clients talk to the same broker."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from socket import create_connection

HOST = "127.0.0.1"
_EXPORTS = ("java.base/sun.nio.ch", "java.base/jdk.internal.ref")
_OPENS = (
    *("java.base/java.nio", "java.base/sun.nio.ch", "java.base/jdk.internal.ref", "java.base/jdk.internal.misc"),
    *("java.base/java.lang", "java.base/java.util"),
)
_LOGBACK = '<configuration><root level="OFF"/></configuration>\n'
_WAIT_S = 120.0
_BROKER = """
brokerClusterName=DefaultCluster
brokerName=broker-a
brokerId=0
namesrvAddr={host}:{nameserver}
brokerIP1={host}
brokerIP2={host}
listenPort={broker}
haListenPort={replication}
storePathRootDir={folder}/store
storePathCommitLog={folder}/store/commitlog
autoCreateTopicEnable=true
flushDiskType=ASYNC_FLUSH
mappedFileSizeCommitLog=268435456
diskMaxUsedSpaceRatio=95
waitTimeMillsInSendQueue=5000
sendThreadPoolQueueCapacity=100000
"""


class ServerError(Exception):
    """RocketMQ did not start; the text says where its output is."""


class Proxy:
    """A name server, and a proxy in its local mode, which contains the broker. `ports`: six neighbouring ones."""

    def __init__(self, folder: Path, jars: Path, first_port: int) -> None:
        self._folder = folder
        self._jars = jars
        self._nameserver, self._broker, self._grpc, self._remoting = (first_port + each for each in (0, 4, 8, 9))
        self._processes: list[subprocess.Popen[bytes]] = []
        self.nameserver = f"{HOST}:{self._nameserver}"
        self.broker = f"{HOST}:{self._broker}"
        self.endpoint = f"{HOST}:{self._grpc}"

    @property
    def pids(self) -> list[int]:
        """The running processes."""
        return [process.pid for process in self._processes]

    def start(self) -> None:
        """Starts both and waits until they listen. ServerError: they do not."""
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / "namesrv.conf").write_text(
            f"listenPort={self._nameserver}\nkvConfigPath={self._folder}/kv.json\n"
        )
        (self._folder / "broker.conf").write_text(
            _BROKER.format(
                host=HOST,
                folder=self._folder,
                nameserver=self._nameserver,
                broker=self._broker,
                replication=self._broker + 1,
            )
        )
        proxy = {
            **{"rocketMQClusterName": "DefaultCluster", "grpcServerPort": self._grpc, "localServeAddr": HOST},
            **{"remotingListenPort": self._remoting, "tlsTestModeEnable": True, "namesrvAddr": self.nameserver},
        }
        (self._folder / "proxy.json").write_text(json.dumps(proxy))
        (self._folder / "logback.xml").write_text(_LOGBACK)
        self._java("256m", "namesrv.NamesrvStartup", "-c", "namesrv.conf")
        self._wait(self._nameserver)
        self._java("1g", "proxy.ProxyStartup", "-pm", "local", "-bc", "broker.conf", "-pc", "proxy.json")
        for port in (self._broker, self._grpc):
            self._wait(port)

    def stop(self) -> None:
        """Ends both."""
        for process in reversed(self._processes):
            process.kill()
            process.wait()
        self._processes.clear()

    def _java(self, heap: str, name: str, *arguments: str) -> None:
        options = [f"--add-exports={each}=ALL-UNNAMED" for each in _EXPORTS]
        options += [f"--add-opens={each}=ALL-UNNAMED" for each in _OPENS]
        options += [f"-Xms{heap}", f"-Xmx{heap}", "-XX:MaxDirectMemorySize=1g", "-Djava.net.preferIPv4Stack=true"]
        options += [f"-Duser.home={self._folder}", f"-Drmq.logback.configurationFile={self._folder}/logback.xml"]
        command = ["java", *options, "-cp", f"{self._jars}/*", f"org.apache.rocketmq.{name}", *arguments]
        environment = {**os.environ, "ROCKETMQ_HOME": str(self._folder)}
        with (self._folder / "out.log").open("ab") as out:
            self._processes.append(
                subprocess.Popen(
                    command, cwd=self._folder, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out
                )
            )

    def _wait(self, port: int) -> None:
        deadline_s = time.monotonic() + _WAIT_S
        while time.monotonic() < deadline_s and self._processes[-1].poll() is None:
            try:
                create_connection((HOST, port), 1.0).close()
            except OSError:
                time.sleep(0.2)
            else:
                return
        raise ServerError(f"RocketMQ does not listen at port {port}: see {self._folder}/out.log")
