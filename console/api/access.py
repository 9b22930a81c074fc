"""Who may use the console and the REST interface: sessions, tokens, and roles.

    cookie of a session ─▶ the user, with the role that its permissions mean now; or a token's role
    Authorization: Bearer ─▶ admin
    without both ─▶ admin, if the port needs no log-in (no access control, and only this machine reaches it)

A user's requests to brokers are signed with the user's own secret, so the brokers decide as for each other client. The
role restricts further. A request with a token, or without a log-in, uses the credentials of the process.

A browser sends a session's cookie also for pages of other sites, if they are on the same site. `Gate.cross_site`
therefore refuses what the browser marks as such. A request without credentials is checked for more (`Gate.foreign`).
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from aiohttp import web

from tallystick.console.api.problems import ProblemError

IDLE_S = 3600.0
"""A session without a request for this time ends."""
LONGEST_S = 12 * 3600.0
MOST_SESSIONS = 256
"""Of all users. One more ends the session that has been idle longest."""
MOST_OF_USER = 16
COOKIE = "tally-session"
USER, BY = web.RequestKey("user", str), web.RequestKey("by", str)
"""Keys of a request for the access log: the user, and how the caller is known."""
_UNKNOWN_SECRET = secrets.token_hex(16)


class Role(enum.IntEnum):
    """What a caller may do. Each role may do what those before it may."""

    VIEWER = 1
    """Reads."""
    OPERATOR = 2
    """Sends, receives and resends messages, and sets offsets."""
    ADMIN = 3


ROLES = {role.name.lower(): role for role in Role}


@dataclass(frozen=True, slots=True)
class User:
    """A user of access control at this time."""

    secret: str = field(repr=False)
    role: Role | None
    """None: its permissions mean no role."""


class Users(Protocol):
    """The users of access control that this process knows."""

    def find(self, name: str, source: str) -> User | None:
        """Returns a user that is enabled, with its role for requests from this address; None: there is none."""


class Failures(Protocol):
    """Counts wrong credentials by address."""

    def add(self, address: str) -> None:
        """One more."""

    def wait_s(self, address: str) -> int:
        """Returns for how many seconds the address is refused; 0: it is not."""


@dataclass(frozen=True)
class Gate:
    """What the process that serves the console says about callers."""

    failures: Failures
    foreign: Callable[[web.Request], str]
    """Why a request without credentials may come from a page of another site; empty: it does not."""
    cross_site: Callable[[web.Request], str]
    """The same for a request with credentials."""
    users: Callable[[], Users | None] = lambda: None
    """None: there is no access control."""
    token_admits: Callable[[str | None], bool] | None = None
    """Whether a value of the header `Authorization` has a valid token; None: there are no tokens."""
    needs_login: bool = False
    """Whether others than this machine's users reach the port."""

    def methods(self) -> list[str]:
        """Returns how a caller can log in."""
        found = ["password"] if self.users() is not None else []
        return [*found, "token"] if self.token_admits is not None else found


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sends a request."""

    role: Role
    by: str
    """session, token or address."""
    user: str | None = None
    secret: str | None = field(default=None, repr=False)
    """Of the user: it signs requests to brokers. None: the process's own credentials do."""
    session: Session | None = None

    @property
    def identity(self) -> tuple[str, str] | None:
        """The credentials for brokers; None: those of the process."""
        return None if self.user is None or self.secret is None else (self.user, self.secret)


@dataclass(slots=True, eq=False)
class Session:
    """A log-in."""

    user: str | None
    credential: str = field(repr=False)
    """The password or the token, as long as it is valid."""
    begun_s: float
    used_s: float
    expires_ms: int
    ended: bool = False


class Sessions:
    """The sessions of one process. They are in memory, and end with it. Only digests of cookies are kept.

    `clock`: seconds, monotonic; `now_ms`: milliseconds since 1970.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, now_ms: Callable[[], int] = lambda: time.time_ns() // 10**6
    ) -> None:
        self._clock, self._now_ms = clock, now_ms
        self._found: dict[bytes, Session] = {}

    def __len__(self) -> int:
        return len(self._found)

    def begin(self, user: str | None, credential: str) -> tuple[str, Session]:
        """Returns the value of the cookie, and the session."""
        self._end_old()
        same = [key for key, each in self._found.items() if each.user == user]
        for keys, most in ((same, MOST_OF_USER), (list(self._found), MOST_SESSIONS)):
            if len(keys) >= most:
                self._end(min(keys, key=lambda key: self._found[key].used_s))
        now_s = self._clock()
        session = Session(user, credential, now_s, now_s, self._now_ms() + int(LONGEST_S * 1000))
        cookie = secrets.token_urlsafe(32)
        self._found[_digest(cookie)] = session
        return cookie, session

    def get(self, cookie: str) -> Session | None:
        """Returns the session of a cookie, and notes that it is used; None: it ended."""
        key = _digest(cookie)
        session = self._found.get(key)
        if session is None:
            return None
        now_s = self._clock()
        if self._is_old(session, now_s):
            self._end(key)
            return None
        session.used_s = now_s
        return session

    def is_alive(self, session: Session) -> bool:
        """Whether a session has not ended, for an answer that takes long."""
        return not session.ended and not self._is_old(session, self._clock())

    def end(self, session: Session) -> None:
        """Ends a session."""
        for key, each in list(self._found.items()):
            if each is session:
                self._end(key)

    def _end(self, key: bytes) -> None:
        session = self._found.pop(key, None)
        if session is not None:
            session.ended = True
            session.credential = ""

    def _end_old(self) -> None:
        now_s = self._clock()
        for key in [key for key, each in self._found.items() if self._is_old(each, now_s)]:
            self._end(key)

    @staticmethod
    def _is_old(session: Session, now_s: float) -> bool:
        return now_s - session.used_s >= IDLE_S or now_s - session.begun_s >= LONGEST_S


class Access:
    """Finds the caller of each request, and logs in and out."""

    def __init__(self, gate: Gate, sessions: Sessions | None = None) -> None:
        self.gate = gate
        self.sessions = Sessions() if sessions is None else sessions

    def caller(self, request: web.Request) -> Caller:
        """Returns who sends a request. ProblemError: 401, 403 or 429."""
        gate = self.gate
        given = request.headers.get("Authorization")
        if given is not None:
            return self._by_token(request, given)
        cookie = request.cookies.get(_cookie_name(request))
        if cookie is not None and (session := self.sessions.get(cookie)) is not None:
            self._check_site(request)
            if (caller := self.of_session(session, request.remote or "")) is not None:
                return caller
            self.sessions.end(session)
        if gate.needs_login or gate.token_admits is not None or gate.users() is not None:
            raise self._no_credentials("a log-in or a token is required")
        if reason := gate.foreign(request):
            raise ProblemError("foreign-page", reason)
        return Caller(Role.ADMIN, "address")

    def of_session(self, session: Session, source: str) -> Caller | None:
        """Returns the caller of a session from this address; None: its user or token is not valid any longer."""
        if not self.sessions.is_alive(session):
            return None
        if session.user is None:
            admits = self.gate.token_admits
            if admits is None or not admits(f"Bearer {session.credential}"):
                return None
            return Caller(Role.ADMIN, "session", session=session)
        users = self.gate.users()
        user = None if users is None else users.find(session.user, source)
        if user is None or user.role is None or not _same(user.secret, session.credential):
            return None
        return Caller(user.role, "session", session.user, session.credential, session)

    def log_in(self, request: web.Request, credentials: dict[str, str], response: web.Response) -> Caller:
        """Begins a session, whose cookie `response` gets. ProblemError: 401, 403 or 429."""
        self._check_site(request)
        self._check_failures(request)
        source = request.remote or ""
        name, secret = credentials.get("user"), credentials.get("password") or credentials["token"]
        if name is None:
            admits = self.gate.token_admits
            if admits is None:
                raise ProblemError("not-permitted", "this port has no tokens", methods=self.gate.methods())
            is_right, role = admits(f"Bearer {secret}"), Role.ADMIN
        else:
            users = self.gate.users()
            if users is None:
                raise ProblemError("not-permitted", "there is no access control here", methods=self.gate.methods())
            user = users.find(name, source)
            is_right = _same(_UNKNOWN_SECRET if user is None else user.secret, secret) and user is not None
            found = None if user is None else user.role
            if is_right and found is None:
                raise ProblemError("not-permitted", f"the permissions of {name} do not include the console")
            role = found or Role.VIEWER
        if not is_right:
            self.gate.failures.add(source)
            raise ProblemError("wrong-credentials", "the credentials are wrong, or the user is disabled")
        cookie, session = self.sessions.begin(name, secret)
        response.set_cookie(
            _cookie_name(request),
            cookie,
            httponly=True,
            samesite="Strict",
            secure=request.secure,
            path="/",
            max_age=int(LONGEST_S),
        )
        return Caller(role, "session", name, secret if name is not None else None, session)

    def log_out(self, request: web.Request, response: web.Response) -> None:
        """Ends the session of a request, if it has one. ProblemError: 403, from a page of another site."""
        self._check_site(request)
        cookie = request.cookies.get(_cookie_name(request))
        if cookie is not None and (session := self.sessions.get(cookie)) is not None:
            self.sessions.end(session)
        response.del_cookie(_cookie_name(request), path="/")

    def _by_token(self, request: web.Request, given: str) -> Caller:
        self._check_failures(request)
        admits = self.gate.token_admits
        if admits is None:
            raise self._no_credentials("this port has no tokens: send no Authorization")
        if not admits(given):
            self.gate.failures.add(request.remote or "")
            raise self._no_credentials("the token is not valid")
        return Caller(Role.ADMIN, "token")

    def _check_site(self, request: web.Request) -> None:
        if reason := self.gate.cross_site(request):
            raise ProblemError("foreign-page", reason)

    def _check_failures(self, request: web.Request) -> None:
        remote = request.remote or ""
        if wait_s := self.gate.failures.wait_s(remote):
            detail = f"too many wrong credentials came from {remote}: retry in {wait_s} s"
            raise ProblemError("too-many-failures", detail, headers={"Retry-After": str(wait_s)})

    def _no_credentials(self, detail: str) -> ProblemError:
        headers = {"WWW-Authenticate": "Bearer"} if self.gate.token_admits is not None else None
        return ProblemError("no-credentials", detail, headers=headers, methods=self.gate.methods())


def _same(one: str, other: str) -> bool:
    return hmac.compare_digest(_digest(one), _digest(other))


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def _cookie_name(request: web.Request) -> str:
    """Browsers send cookies to all ports of a host: each port has its own."""
    port = request.host.rpartition(":")[2] if not request.host.endswith("]") else ""
    return f"{COOKIE}-{port}" if port.isdecimal() else COOKIE
