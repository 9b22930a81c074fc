"""A broker with access control, and sends to it."""

from pathlib import Path
from typing import Any

from tallystick.node.core.settings import BrokerSettings
from tallystick.node.remoting.codes import RequestCode as Code
from tallystick.node.remoting.command import Command, HeaderType
from tallystick.store.formats import properties
from tallystick.store.settings import StoreSettings

SECRET = "12345678"


def send(topic: str = "Orders", header: HeaderType = HeaderType.JSON) -> Command:
    fields = {"a": "writers", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1700000000000", "h": "0"}
    text = properties.encode({"UNIQ_KEY": "0" * 32, "WAIT": "true", "TAGS": 'é"\\'})
    fields |= {"i": text, "j": "0", "k": "false", "m": "false"}
    return Command(Code.SEND_MESSAGE_V2, ext=fields, body=b"body", header_type=header)


def settings(**changes: Any) -> BrokerSettings:
    values: dict[str, Any] = {"brokerIP1": "127.0.0.1", "bindAddress": "127.0.0.1", "listenPort": 0, "brokerName": "b"}
    return BrokerSettings(**(values | {"aclEnable": True} | changes))


def small(folder: Path) -> StoreSettings:
    return StoreSettings(str(folder), mappedFileSizeCommitLog=1 << 20, maxHashSlotNum=100, maxIndexNum=400)
