"""The settings of brokers: compared, and changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

from tallystick.admin.changing import Planned, carry_out, only
from tallystick.admin.models import Change, Setting
from tallystick.admin.servers import Place, Question, Servers
from tallystick.client import ConfigurationError
from tallystick.client.wire.codes import RequestCode

_PER_BROKER = frozenset(
    (
        *("brokerName", "brokerId", "brokerIP1", "brokerIP2", "brokerRole", "listenPort", "haListenPort"),
        *("bindAddress", "dLegerSelfId", "dLedgerSelfId", "externalAddress", "externalListenPort", "httpAddress"),
        *("haMasterAddress", "rocketmqHome", "abortFile", "storeCheckpoint", "nettyServerAddress"),
        "startAcceptSendRequestTimeStamp",
    )
)
_SECRET_WORDS = ("password", "secret", "token", "accesskey", "credential", "privatekey")
HIDDEN = "(hidden)"


def is_secret(name: str) -> bool:
    """Whether the value of a setting may be a secret. Names of files are not."""
    lower = name.lower()
    return any(word in lower for word in _SECRET_WORDS) and not lower.endswith(("file", "path", "enable"))


def is_per_broker(name: str) -> bool:
    """Whether a setting is meant to differ between brokers."""
    return name in _PER_BROKER or name.lower().startswith("storepath")


class Config:
    """The settings of running brokers."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers

    async def settings(self, cluster: str | None = None) -> list[Setting]:
        """Returns the settings of all brokers of a cluster, or of all clusters, by name. A broker that does not answer
        is not in `values`; one that does not have the setting has None. Secrets are `HIDDEN`. ConfigurationError: there
        is no such cluster. ClientError: no broker answers."""
        question = self._servers.question()
        places = await _places(question, cluster)
        tables = await question.each(places, lambda place: settings_of(question, place))
        question.need_some(tables)
        names = sorted({name for table in tables.values() for name in table})
        return [_setting(name, {place.address: table.get(name) for place, table in tables.items()}) for name in names]

    async def set(self, target: str, changes: Mapping[str, str], *, dry_run: bool = False) -> Change:
        """Changes settings of running brokers. `target`: the address of a broker, or the name of a cluster: all its
        brokers are changed. A broker changes all of these settings or none. ConfigurationError: there is no such
        target, or a text cannot be sent. ClientError: no name server answers."""
        if not changes:
            raise ConfigurationError("no setting is given")
        for name, value in changes.items():
            if not name or set(name) & set("=: \t\r\n") or set(str(value)) & set("\r\n"):
                raise ConfigurationError(f"the setting {name!r:.80} cannot be sent: it contains = or a line break")
        question = self._servers.question()
        topology = await question.topology()
        place = topology.at(target)
        places = [place] if place is not None else await _places(question, target)
        tables = await question.each(places, lambda each: settings_of(question, each))
        plans = []
        for each in places:
            before = {name: tables.get(each, {}).get(name) for name in changes}
            after = {name: str(value) for name, value in changes.items()}
            work = None if before == after else only(partial(_write, question, each, after))
            plans.append(
                Planned(each.address, "change settings", _shown(before), _shown(after), work, question.reason(each))
            )
        return await carry_out(plans, dry_run=dry_run)


async def _places(question: Question, cluster: str | None) -> Iterable[Place]:
    topology = await question.topology()
    found = [place for place in topology.places if cluster in (None, place.cluster)]
    if not found:
        raise ConfigurationError(f"there is no broker or cluster {cluster}")
    return found


def _setting(name: str, values: dict[str, str | None]) -> Setting:
    shown = {address: _shown({name: value})[name] for address, value in values.items()}
    return Setting(name, shown, len(set(values.values())) <= 1, is_per_broker(name))


def _shown(settings: Mapping[str, str | None]) -> dict[str, str | None]:
    return {name: HIDDEN if value is not None and is_secret(name) else value for name, value in settings.items()}


async def settings_of(question: Question, place: Place) -> dict[str, str]:
    """Returns the settings of a broker. ClientError."""
    answer = await question.ask(place, RequestCode.GET_BROKER_CONFIG)
    found = {}
    for line in answer.body.decode("utf-8", "replace").splitlines():
        name, separator, value = line.partition("=")
        if separator:
            found[name.strip()] = value.strip()
    return found


async def _write(question: Question, place: Place, changes: Mapping[str, str]) -> None:
    # Brokers read Java's properties, in which a backslash begins an escape sequence.
    lines = [f"{name}={value}\n".replace("\\", "\\\\") for name, value in changes.items()]
    await question.ask(place, RequestCode.UPDATE_BROKER_CONFIG, {}, "".join(lines).encode())
