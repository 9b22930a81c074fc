"""The name server: it reads requests, uses the tables, and sends the answers.

With `externalListenPort` it has a second port for clients outside the brokers' network, such as a Kubernetes cluster's.
There, routes and the list of brokers have the brokers' external addresses, without brokers that have none.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tallystick.node.access.access_log import AccessLog
from tallystick.node.access.account_file import AccountFile
from tallystick.node.access.control import AccessControl, Accounts
from tallystick.node.access.opening import open_accounts, open_sealer
from tallystick.node.access.request_table import NAME_SERVER, administrative_codes
from tallystick.node.core import kept_settings, logs
from tallystick.node.core.configuration import parse_text
from tallystick.node.core.java_properties import parse_properties
from tallystick.node.core.settings import NameServerSettings
from tallystick.node.nameserver.brokers import BrokerRequests
from tallystick.node.nameserver.inquiry import ANSWER_S
from tallystick.node.nameserver.kv import ORDER_TOPIC_CONFIG, KvConfig, KvFullError
from tallystick.node.nameserver.routes import RouteTable
from tallystick.node.remoting.codes import RequestCode, ResponseCode
from tallystick.node.remoting.command import (
    Command,
    ResponseError,
    need_str,
    opt_bool,
)
from tallystick.node.remoting.server import Connection, Handler, Limits, RemotingServer
from tallystick.node.tls.process import ProcessTls
from tallystick.store import fastjson
from tallystick.store._kernel import Door
from tallystick.store.finding_log import FindingLog
from tallystick.store.setting import changeable, why_not_changeable
from tallystick.store.tables import JsonTable

_logger = logging.getLogger("tallystick.nameserver")
_V3_0_11 = 37  # older brokers send another body
_V4_9_4 = 401  # newer clients want strict JSON
_FIRST_SCAN_S, _SCAN_S = 5.0, 10.0
_ACCOUNTS_S = 1.0
# All other settings take effect at the next start.
_CHANGEABLE = changeable(NameServerSettings)


def _steady_ms() -> int:
    """Not the wall clock: one that is set forward would forget every broker."""
    return time.monotonic_ns() // 1_000_000


class NameServer:
    """One name server. `now_ms` is any clock that only goes forward; `door` is where the KV file is written.

    `contest_s`: how long a broker has to answer when another connection registers its address or its name and id.
    """

    def __init__(
        self,
        settings: NameServerSettings,
        *,
        door: Door | None = None,
        now_ms: Callable[[], int] = _steady_ms,
        findings: FindingLog | None = None,
        contest_s: float = ANSWER_S,
        tls: ProcessTls | None = None,
    ) -> None:
        self.settings = settings
        self._tls = tls
        self._findings = findings or FindingLog()
        self.routes = RouteTable()
        door, kv_path = door or Door(), Path(settings.kvConfigPath).expanduser()
        self.kv = KvConfig(JsonTable(door, kv_path))
        self._kept = JsonTable(door, kv_path.with_name(kept_settings.FILE_NAME))
        self._changing = asyncio.Lock()
        self.brokers = BrokerRequests(self.routes, self.kv, now_ms, contest_s)
        self._access_log = AccessLog()
        self.access = AccessControl(NAME_SERVER, self._access_log) if settings.aclEnable else None
        self.accounts: AccountFile | None = None
        """From the start on; None: requests are not checked."""
        self._door = door
        limits = Limits(
            frame_stall_s=settings.frameMaxStallTimeSeconds, connections_of_address=settings.maxConnectionsPerAddress
        )
        self.server = RemotingServer(
            self._checked(self._handlers()),
            idle_seconds=settings.serverChannelMaxIdleTimeSeconds,
            limits=limits,
            name="nameserver",
        )
        external = {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self._external_route,
            RequestCode.GET_BROKER_CLUSTER_INFO: lambda _, request: _json(request, self.routes.external_cluster_info()),
        }
        self.external_server = RemotingServer(
            self._checked(self._handlers() | external),
            idle_seconds=settings.serverChannelMaxIdleTimeSeconds,
            limits=limits,
            name="nameserver.external",
        )
        for server in (self.server, self.external_server):
            server.on_close.append(self._connection_lost)
        self._now_ms = now_ms
        self._scan: asyncio.TimerHandle | None = None
        self._account_look: asyncio.TimerHandle | None = None

    async def start(self) -> int:
        """Reads its files and listens. Returns the port. ConfigurationError, TableError, OSError."""
        self.kv.load(self._findings)
        if kept := kept_settings.open_kept_settings(self._kept, self._findings):
            self._use(parse_text(self.settings, kept, str(self._kept.path)))
        settings = self.settings
        if self.access is not None:
            self.accounts = open_accounts(settings.aclFile, open_sealer(settings.aclKeyFile), self._door)
            self.access.accounts = Accounts.of(self.accounts.acl)
            self._look_at_accounts(self.access, self.accounts)
        port = await self.server.start(settings.bindAddress, settings.listenPort, self._tls, "nameserver.listenPort")
        if settings.externalListenPort:
            try:
                setting = "nameserver.externalListenPort"
                await self.external_server.start(settings.bindAddress, settings.externalListenPort, self._tls, setting)
            except OSError:
                await self.server.stop()
                raise
        self._scan = asyncio.get_running_loop().call_later(_FIRST_SCAN_S, self._scan_and_again)
        return port

    async def stop(self) -> None:
        """Accept nothing more, finish what runs, close."""
        for timer in (self._scan, self._account_look):
            if timer is not None:
                timer.cancel()
        self._scan = self._account_look = None
        await asyncio.gather(self.server.stop(), self.external_server.stop())

    def access_json(self) -> dict[str, Any] | None:
        """For `GET /node`: the accounts in use, without secrets; None: requests are not checked."""
        if self.access is None or self.accounts is None:
            return None
        acl = self.accounts.acl
        return {
            "accounts": len(acl.accounts),
            "version": dict(acl.version or {}),
            "denied": dict(self.access.denied),
            "problem": self.accounts.problem,
        }

    def expire(self) -> None:
        """Forget brokers that were silent for `brokerExpirySeconds`, and close their connections."""
        for owner in self.routes.expire(self._now_ms(), self.settings.brokerExpirySeconds * 1000):
            if isinstance(owner, Connection):
                _logger.warning("removed the broker at %s from the routes: it sent nothing for too long", owner.id)
                owner.close()

    def _checked(self, routes: dict[int, Handler]) -> dict[int, Handler]:
        if self.access is None:
            return self._access_log.guard(routes, administrative_codes(NAME_SERVER))
        return self.access.guard(routes)

    def _look_at_accounts(self, access: AccessControl, file: AccountFile) -> None:
        """Uses a changed account file, from now on each second."""
        if file.look():
            access.accounts = Accounts.of(file.acl)
        loop = asyncio.get_running_loop()
        self._account_look = loop.call_later(_ACCOUNTS_S, self._look_at_accounts, access, file)

    def _scan_and_again(self) -> None:
        self.expire()
        self._scan = asyncio.get_running_loop().call_later(_SCAN_S, self._scan_and_again)

    def _connection_lost(self, connection: Connection) -> None:
        for address in self.routes.owner_lost(connection, self._now_ms()):
            _logger.info("removed broker %s from the routes: its connection was closed", address)

    def _handlers(self) -> dict[int, Handler]:
        code = RequestCode
        return {
            code.PUT_KV_CONFIG: self._put_kv,
            code.GET_KV_CONFIG: self._get_kv,
            code.DELETE_KV_CONFIG: self._delete_kv,
            code.GET_KVLIST_BY_NAMESPACE: self._get_kv_namespace,
            code.REGISTER_BROKER: self.brokers.register,
            code.UNREGISTER_BROKER: self.brokers.unregister,
            code.QUERY_DATA_VERSION: self.brokers.query_data_version,
            code.GET_ROUTEINFO_BY_TOPIC: self._route,
            code.GET_BROKER_CLUSTER_INFO: lambda _, request: _json(request, self.routes.cluster_info()),
            code.WIPE_WRITE_PERM_OF_BROKER: self._wipe,
            code.ADD_WRITE_PERM_OF_BROKER: self._add_write,
            code.DELETE_TOPIC_IN_NAMESRV: self._delete_topic,
            code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: lambda _, request: _topics(request, self.routes.topics()),
            code.GET_TOPICS_BY_CLUSTER: lambda _, request: _topics(
                request, self.routes.topics_of_cluster(need_str(request.ext, "cluster"))
            ),
            code.GET_SYSTEM_TOPIC_LIST_FROM_NS: lambda _, request: _topics(
                request, self.routes.system_names(), brokerAddr=self.routes.any_address()
            ),
            code.GET_UNIT_TOPIC_LIST: lambda _, request: _topics(request, self.routes.unit_topics()),
            code.GET_HAS_UNIT_SUB_TOPIC_LIST: lambda _, request: _topics(request, self.routes.unit_sub_topics()),
            code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: lambda _, request: _topics(
                request, self.routes.unit_sub_only_topics()
            ),
            code.UPDATE_NAMESRV_CONFIG: self._update_config,
            code.GET_NAMESRV_CONFIG: self._get_config,
        }

    # --- brokers ---

    def _wipe(self, connection: Connection, request: Command) -> Command:
        name = need_str(request.ext, "brokerName")
        count = self.routes.wipe(name)
        _logger.warning(
            "write permission of broker %s removed from %d topics, as requested by %s", name, count, connection.id
        )
        return request.reply(ext={"wipeTopicCount": str(count)})

    def _add_write(self, connection: Connection, request: Command) -> Command:
        name = need_str(request.ext, "brokerName")
        count = self.routes.add_write(name)
        _logger.warning(
            "write permission of broker %s added to %d topics, as requested by %s", name, count, connection.id
        )
        return request.reply(ext={"addTopicCount": str(count)})

    def _delete_topic(self, connection: Connection, request: Command) -> Command:
        self.routes.delete_topic(need_str(request.ext, "topic"))
        return request.reply()

    # --- routes ---

    def _route(self, connection: Connection, request: Command) -> Command:
        topic = need_str(request.ext, "topic")
        return self._route_answer(request, topic, self.routes.route(topic))

    def _external_route(self, connection: Connection, request: Command) -> Command:
        topic = need_str(request.ext, "topic")
        return self._route_answer(request, topic, self.routes.external_route(topic))

    def _route_answer(self, request: Command, topic: str, route: dict[str, Any] | None) -> Command:
        if route is None:
            remark = (
                f"No topic route info in name server for the topic: {topic}\n"
                "See http://rocketmq.apache.org/docs/faq/ for further details."
            )
            return request.reply(ResponseCode.TOPIC_NOT_EXIST, remark=remark)
        if self.settings.orderMessageEnable:
            route["orderTopicConf"] = self.kv.get(ORDER_TOPIC_CONFIG, topic)
        strict = request.version >= _V4_9_4 or opt_bool(request.ext, "acceptStandardJsonOnly")
        return request.reply(body=fastjson.dumps(route, standard=strict, ascii_only=strict))

    # --- key-value configuration ---

    async def _put_kv(self, connection: Connection, request: Command) -> Command:
        ext = request.ext
        try:
            await self.kv.put(need_str(ext, "namespace"), need_str(ext, "key"), need_str(ext, "value"))
        except KvFullError as error:
            raise ResponseError(ResponseCode.SYSTEM_ERROR, str(error)) from error
        return request.reply()

    async def _delete_kv(self, connection: Connection, request: Command) -> Command:
        await self.kv.delete(need_str(request.ext, "namespace"), need_str(request.ext, "key"))
        return request.reply()

    def _get_kv(self, connection: Connection, request: Command) -> Command:
        namespace, key = need_str(request.ext, "namespace"), need_str(request.ext, "key")
        value = self.kv.get(namespace, key)
        if value is None:
            remark = f"No config item, Namespace: {namespace} Key: {key}"
            return request.reply(ResponseCode.QUERY_NOT_FOUND, remark=remark)
        return request.reply(ext={"value": value})

    def _get_kv_namespace(self, connection: Connection, request: Command) -> Command:
        namespace = need_str(request.ext, "namespace")
        values = self.kv.namespace(namespace)
        if values is None:
            return request.reply(ResponseCode.QUERY_NOT_FOUND, remark=f"No config item, Namespace: {namespace}")
        return _json(request, {"table": values})

    # --- the name server's own settings ---

    def _get_config(self, connection: Connection, request: Command) -> Command:
        lines = (f"{name}={_setting_text(value)}\n" for name, value in dataclasses.asdict(self.settings).items())
        return request.reply(body="".join(lines).encode())

    async def _update_config(self, connection: Connection, request: Command) -> Command:
        """Changes all settings of the request, or none. They are on disk before the answer."""
        try:
            changes = parse_properties(request.body)
        except ValueError as error:
            raise ResponseError(ResponseCode.SYSTEM_ERROR, f"string2Properties error: {error}") from error
        for name in changes:
            if name not in _CHANGEABLE:
                reason = why_not_changeable(name, NameServerSettings)
                raise ResponseError(ResponseCode.SYSTEM_ERROR, f"{name} {reason}")
        async with self._changing:
            try:
                changed: NameServerSettings = parse_text(self.settings, changes, "update")
            except ValueError as error:  # ConfigurationError, which names the key
                raise ResponseError(ResponseCode.SYSTEM_ERROR, str(error)) from error
            await asyncio.to_thread(kept_settings.keep_settings, self._kept, changes)
            self._use(changed)
        _logger.warning("settings changed, as requested by %s: %s", connection.id, changes)
        return request.reply()

    def _use(self, changed: NameServerSettings) -> None:
        if changed.logLevel != self.settings.logLevel:
            logs.set_level(changed.logLevel)
        self.settings = changed


def _json(request: Command, value: Any) -> Command:
    return request.reply(body=fastjson.dumps(value))


def _topics(request: Command, topics: list[str], **more: str | None) -> Command:
    return _json(request, {"topicList": topics, **more})


def _setting_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
