"""The console on the HTTP port: what it needs of the process, and who may use it.

A user of access control logs in with its password, and brokers get its requests signed with it: they decide as for each
other client. The role comes from the permissions for the cluster:

    admin       a super user, `admin: true`, or Update on the cluster
    operator    Get and Pub on the cluster
    viewer      Get on the cluster

A token of `adminTokenFile` has the role admin, and the account of `aclCredentialsFile` for brokers. Without tokens and
access control, callers on this machine have the role admin.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tallystick.admin.admin import Admin
from tallystick.console.api.access import Failures, Gate, Role, User, Users
from tallystick.console.api.backends import Identity
from tallystick.console.api.problems import ProblemError
from tallystick.console.app import Console
from tallystick.node.access.policies import CLUSTER, Action, Rules
from tallystick.node.core.admin_token import TokenFile
from tallystick.node.core.settings import HttpSettings
from tallystick.node.http.authentication import cross_site, foreign, is_closed, known_hosts
from tallystick.node.tls.settings import TlsMode
from tallystick.store.formats.message import Host


@dataclass(frozen=True, slots=True)
class ConsoleView:
    """What the console needs of its process."""

    nameservers: Callable[[], str]
    """Their addresses; empty: not known yet."""
    credentials: Callable[[], tuple[str, str] | None]
    """The account of the process at brokers; None: it signs nothing."""
    tls: Callable[[], ssl.SSLContext | None]
    """TLS of new connections to brokers; None: without."""
    rules: Callable[[], Mapping[str, Rules] | None]
    """The users of access control by name; None: there is no access control."""


def console_url(http: Host, settings: HttpSettings) -> str:
    """Returns where a browser on this machine finds the console."""
    near = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(http.ip, http.ip)
    scheme = "https" if settings.tlsMode is TlsMode.enforcing else "http"
    return f"{scheme}://{Host(near, http.port)}/"


class AclUsers:
    """Users and accounts, as the console sees them."""

    def __init__(self, rules: Mapping[str, Rules]) -> None:
        self._rules = rules

    def find(self, name: str, source: str) -> User | None:
        """Returns a user that is enabled, with its role; None: there is none."""
        rules = self._rules.get(name)
        if rules is None or not rules.user.is_enabled:
            return None
        return User(rules.user.secret, role_of(rules, source))


def role_of(rules: Rules, source: str) -> Role | None:
    """Returns the role of a user for requests from an address; None: it may not use the console."""
    if rules.allows(CLUSTER, Action.UPDATE, source):
        return Role.ADMIN
    if not rules.allows(CLUSTER, Action.GET, source):
        return None
    return Role.OPERATOR if rules.allows(CLUSTER, Action.PUB, source) else Role.VIEWER


def make_console(view: ConsoleView, settings: HttpSettings, tokens: TokenFile | None, failures: Failures) -> Console:
    """Returns the console of a process. `failures`: those of the whole port."""
    hosts = known_hosts(settings)

    def users() -> Users | None:
        rules = view.rules()
        return None if rules is None else AclUsers(rules)

    def connect(identity: Identity) -> Admin:
        nameservers = view.nameservers()
        if not nameservers:
            raise ProblemError(
                "busy", "the process is starting, or it knows no name server", headers={"Retry-After": "1"}
            )
        return Admin(nameservers, tls=view.tls() or False, acl=identity or view.credentials())

    gate = Gate(
        failures=failures,
        foreign=lambda request: foreign(request, hosts),
        cross_site=cross_site,
        users=users,
        token_admits=None if tokens is None else tokens.admits,
        needs_login=is_closed(settings),
    )
    return Console(connect, view.nameservers, gate)
