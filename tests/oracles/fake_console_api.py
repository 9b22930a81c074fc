"""A small server with the interface of console/api, for tests of the pages.

It keeps a cluster in memory, made of the models of the admin core, so that its answers have the shapes of the real
ones, and serves the pages as the real server does. Changes change the cluster. `FakeApi.requests` has the changes that
the pages asked for, in order.

    python tests/oracles/fake_console_api.py 24000      serves the console at http://127.0.0.1:24000/
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import math
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import console_cluster
from aiohttp import web

from tallystick.admin.models import (
    Change,
    ConsumerGroup,
    Disagreement,
    Figures,
    GroupConfig,
    GroupDetail,
    GroupState,
    MessageSummary,
    OffsetChange,
    OffsetStep,
    Page,
    Rates,
    Resent,
    Step,
    StepState,
    Topic,
    TopicConfig,
    TopicDetail,
    TopicKind,
    json_of,
)
from tallystick.console.pages import page_routes

FAILING_TOPIC = "orders-created"
"""Changes of this topic fail at one of its brokers."""


def problem(status: int, title: str, detail: str, **rest: Any) -> web.HTTPException:
    """Returns an answer of application/problem+json, to raise."""
    body = json.dumps({"type": "about:blank", "title": title, "status": status, "detail": detail, **rest})
    kind = type("Problem", (web.HTTPException,), {"status_code": status})
    error: web.HTTPException = kind(text=body, content_type="application/problem+json")
    return error


def moved(value: Any, by_ms: int) -> Any:
    """Returns JSON with all its times moved: fields whose names end with `Ms`, except durations."""
    if isinstance(value, dict):
        return {
            name: each + by_ms
            if name.endswith("Ms") and name != "durationMs" and isinstance(each, int)
            else moved(each, by_ms)
            for name, each in value.items()
        }
    return [moved(each, by_ms) for each in value] if isinstance(value, list) else value


def json_answer(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    """Returns a model as an answer."""
    by_ms = int(time.time() * 1000) - console_cluster.NOW_MS
    return web.json_response(moved(json_of(value), by_ms), status=status, headers=headers)


def done(change: Change) -> web.Response:
    """Returns a change as an answer; one with a failed step is a problem."""
    failed = [step for step in change.steps if step.state is StepState.FAILED]
    if failed:
        raise problem(502, "A part of the change failed", f"{len(failed)} steps failed", change=json_of(change))
    return json_answer(change)


def check_etag(request: web.Request, etag: str) -> None:
    """Refuses a change of what was changed since the caller read it."""
    if request.headers.get("If-Match", f'"{etag}"') != f'"{etag}"':
        raise problem(412, "It was changed by another request", "Read it again.")


def page(items: list[Any], request: web.Request) -> Page[Any]:
    """Returns the part of a list that the query asks for."""
    begin, limit = int(request.query.get("cursor", 0)), int(request.query.get("limit", 100))
    return Page(items[begin : begin + limit], str(begin + limit) if begin + limit < len(items) else None)


def dry(request: web.Request) -> bool:
    """Whether a request changes nothing."""
    return request.query.get("dryRun") == "true"


class FakeApi:
    """The state of the cluster, and who may see it."""

    def __init__(self, *, number: int = 1000, role: str = "admin", password: str | None = None) -> None:
        """`password`: the one of the user `admin`; None: the server needs no log-in."""
        self.role = role
        self.password = password
        self.topics: dict[str, Topic] = console_cluster.topics(number)
        self.groups: dict[str, ConsumerGroup] = console_cluster.groups(number)
        self.settings = console_cluster.settings()
        self.requests: list[tuple[str, str, bool, Any]] = []
        self.failing: dict[str, tuple[int, str]] = {}
        """Paths that fail, with status and words."""
        self.sent: list[dict[str, Any]] = []
        self.streams: set[asyncio.Task[None]] = set()
        self.silent = asyncio.Event()
        """Set: the stream of events sends nothing more."""

    # --- who asks ---

    async def me(self, request: web.Request) -> web.Response:
        user = "admin" if self.password else None
        return json_answer({"user": user, "role": self.role, "authenticated": bool(user), "by": "session"})

    async def log_in(self, request: web.Request) -> web.Response:
        body = await request.json()
        if body not in ({"user": "admin", "password": self.password}, {"token": self.password}):
            raise problem(401, "The credentials are wrong", "the user does not exist, or the password is wrong")
        answer = json_answer({"user": "admin", "role": self.role}, 201)
        answer.set_cookie("session", "known", httponly=True, samesite="Strict")
        return answer

    async def log_out(self, request: web.Request) -> web.Response:
        answer = web.Response(status=204)
        answer.del_cookie("session")
        return answer

    # --- the cluster ---

    async def clusters(self, request: web.Request) -> web.Response:
        return json_answer(console_cluster.clusters())

    async def raft_groups(self, request: web.Request) -> web.Response:
        return json_answer(console_cluster.raft_groups())

    def figures(self) -> Figures:
        now = time.time()
        wave = 1 + 0.35 * math.sin(now / 9) + 0.12 * math.sin(now / 2.3)
        rates = {
            name: Rates(topic.rates.in_per_s * wave, topic.rates.out_per_s * (2 - wave))
            for name, topic in self.topics.items()
            if topic.rates.in_per_s
        }
        lags = {name: int((group.lag or 0) * wave) for name, group in self.groups.items()}
        disks = {
            broker.address: broker.disk.used_ratio
            for broker in console_cluster.clusters()[0].brokers
            if broker.disk.used_ratio
        }
        total_in, total_out = (
            sum(getattr(each, side) for each in rates.values()) for side in ("in_per_s", "out_per_s")
        )
        return Figures(console_cluster.NOW_MS, total_in, total_out, rates, lags, disks, [])

    async def show_figures(self, request: web.Request) -> web.Response:
        return json_answer(self.figures())

    async def events(self, request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
        await answer.prepare(request)
        while not self.silent.is_set():
            data = moved(json_of(self.figures()), int(time.time() * 1000) - console_cluster.NOW_MS)
            await answer.write(f"event: figures\ndata: {json.dumps(data)}\n\n".encode())
            await asyncio.sleep(1)
        return answer

    async def change_cluster(self, request: web.Request) -> web.Response:
        body = await request.json() if request.can_read_body else {}
        self.note(request, body)
        state = StepState.PLANNED if dry(request) else StepState.DONE
        action = request.path.split("/api/v1/")[1]
        return json_answer(
            Change(
                dry(request), [Step(console_cluster.address(0, 0), action, {"leader": 0}, {"leader": 1, **body}, state)]
            )
        )

    # --- topics ---

    def named(self, found: dict[str, Any], request: web.Request, part: str) -> Any:
        name = request.match_info[part]
        if name not in found:
            raise problem(404, "Not found", f"There is no {part} {name}.")
        return found[name]

    async def list_topics(self, request: web.Request) -> web.Response:
        search = request.query.get("search", "").lower()
        system = request.query.get("system") == "true"
        shown = [
            each
            for each in self.topics.values()
            if search in each.name.lower() and (system or each.kind is not TopicKind.SYSTEM)
        ]
        return json_answer(page(sorted(shown, key=lambda each: each.name), request))

    async def topic(self, request: web.Request) -> web.Response:
        topic = self.named(self.topics, request, "topic")
        producers = {"order-writers": [console_cluster.connection(each, "producer") for each in range(3)]}
        readers = [name for name, group in self.groups.items() if topic.name in group.topics]
        return json_answer(
            TopicDetail(topic, console_cluster.queues(topic), producers, readers, []),
            headers={"ETag": f'"{topic.etag}"'},
        )

    async def put_topic(self, request: web.Request) -> web.Response:
        name, body = request.match_info["topic"], await request.json()
        self.note(request, body)
        before = self.topics.get(name)
        if before:
            check_etag(request, before.etag)
        old = before.configs[console_cluster.BROKERS[0]] if before else None
        new = dataclasses.replace(
            old or TopicConfig(),
            read_queues=body["readQueues"],
            write_queues=body["writeQueues"],
            perm=body["perm"],
            order=body["order"],
        )
        steps = [
            Step(
                broker,
                "change the topic" if before else "create the topic",
                json_of(old),
                json_of(new),
                StepState.PLANNED if dry(request) else StepState.DONE,
            )
            for broker in console_cluster.BROKERS
        ]
        if not dry(request):
            if name == FAILING_TOPIC:
                steps[1] = dataclasses.replace(
                    steps[1], state=StepState.FAILED, error="The broker did not answer within 5 s."
                )
            configs = dict.fromkeys(console_cluster.BROKERS, new)
            self.topics[name] = (
                dataclasses.replace(before, configs=configs)
                if before
                else Topic(name, TopicKind.NORMAL, ["shop"], configs, True, 0, etag="n")
            )
        return done(Change(dry(request), steps))

    async def delete_topic(self, request: web.Request) -> web.Response:
        topic = self.named(self.topics, request, "topic")
        self.note(request, None)
        if not dry(request):
            del self.topics[topic.name]
        state = StepState.PLANNED if dry(request) else StepState.DONE
        return json_answer(
            Change(
                dry(request),
                [
                    Step(each, "delete the topic", json_of(config), None, state)
                    for each, config in topic.configs.items()
                ],
            )
        )

    async def send(self, request: web.Request) -> web.Response:
        topic, body = self.named(self.topics, request, "topic"), await request.json()
        self.note(request, body)
        self.sent.append(body)
        found = console_cluster.summary(topic.name, 1)
        result = {
            "state": "stored",
            "uniqueKey": found.unique_key,
            "messageId": found.id,
            "broker": found.broker,
            "queue": found.queue,
            "offset": found.offset,
            "status": "ok",
            "maybeTwice": False,
            "error": None,
        }
        return json_answer({"results": [result]}, 201)

    # --- consumer groups ---

    async def list_groups(self, request: web.Request) -> web.Response:
        search = request.query.get("search", "").lower()
        return json_answer(
            page([each for name, each in sorted(self.groups.items()) if search in name.lower()], request)
        )

    async def group(self, request: web.Request) -> web.Response:
        group = self.named(self.groups, request, "group")
        members = console_cluster.members(group)
        topic = self.topics.get(group.topics[0])
        lags = console_cluster.lags(group, topic) if topic else []
        by_expression: dict[str, list[str]] = {}
        for each in members:
            by_expression.setdefault(each.subscriptions[0].expression, []).append(each.connection.client_id)
        disagreements = [Disagreement(group.topics[0], by_expression)] if group.disagrees else []
        return json_answer(GroupDetail(group, lags, members, disagreements, []), headers={"ETag": f'"{group.etag}"'})

    async def put_group(self, request: web.Request) -> web.Response:
        name, body = request.match_info["group"], await request.json()
        self.note(request, body)
        before = self.groups.get(name)
        if before:
            check_etag(request, before.etag)
        new = GroupConfig(
            body["consumeEnable"],
            body["consumeFromMinEnable"],
            body["consumeBroadcastEnable"],
            body["retryQueues"],
            body["maxRetries"],
        )
        old = before.configs[console_cluster.BROKERS[0]] if before else None
        if not dry(request):
            configs = dict.fromkeys(console_cluster.BROKERS, new)
            self.groups[name] = (
                dataclasses.replace(before, configs=configs)
                if before
                else ConsumerGroup(name, GroupState.OFFLINE, 0, [FAILING_TOPIC], 0, None, configs=configs, etag="n")
            )
        state = StepState.PLANNED if dry(request) else StepState.DONE
        return json_answer(
            Change(
                dry(request),
                [
                    Step(each, "set the configuration", json_of(old), json_of(new), state)
                    for each in console_cluster.BROKERS
                ],
            )
        )

    async def delete_group(self, request: web.Request) -> web.Response:
        group = self.named(self.groups, request, "group")
        self.note(request, None)
        if not dry(request):
            del self.groups[group.name]
        state = StepState.PLANNED if dry(request) else StepState.DONE
        return json_answer(
            Change(
                dry(request),
                [
                    Step(each, "delete the group", json_of(config), None, state)
                    for each, config in group.configs.items()
                ],
            )
        )

    async def move_offsets(self, request: web.Request) -> web.Response:
        group, body = self.named(self.groups, request, "group"), await request.json()
        self.note(request, body)
        state = StepState.PLANNED if dry(request) else StepState.DONE
        to = body.get("to", {})
        steps = []
        for lag in console_cluster.lags(group, self.topics[body["topic"]]):
            before, end = lag.consumer_offset, lag.broker_offset
            after = 1000 if "earliest" in to else end if "latest" in to else (before or 1000) + to.get("shift", 0)
            steps.append(
                OffsetStep(lag.topic, lag.broker, lag.queue, before, max(1000, min(end, after)), 1000, end, state)
            )
        return json_answer(OffsetChange(dry(request), group.members > 0, steps))

    # --- messages ---

    def found(self, request: web.Request) -> MessageSummary:
        for number in range(200):
            each = console_cluster.summary(FAILING_TOPIC, number)
            if request.match_info["id"] in (each.id, each.unique_key):
                return each
        raise problem(404, "Not found", f"No broker has a message {request.match_info['id']}.")

    async def search(self, request: web.Request) -> web.Response:
        topic = self.named(self.topics, request, "topic")
        all_ = [console_cluster.summary(topic.name, number) for number in range(120)]
        if key := request.query.get("key"):
            all_ = [each for each in all_ if key in each.keys]
        elif unique := request.query.get("uniqueKey"):
            all_ = [each for each in all_ if each.unique_key == unique]
        elif int(request.query["begin"]) >= int(request.query["end"]):
            raise problem(400, "Bad request", "The window ends before it begins.")
        return json_answer(page(all_, request))

    async def message(self, request: web.Request) -> web.Response:
        return json_answer(console_cluster.message(self.found(request)))

    async def trace(self, request: web.Request) -> web.Response:
        return json_answer(console_cluster.trace(self.found(request)))

    async def consumers(self, request: web.Request) -> web.Response:
        return json_answer(console_cluster.tracks())

    async def resend(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.note(request, body)
        state = StepState.PLANNED if dry(request) else StepState.DONE
        target = body["clientId"] or f"%RETRY%{body['group']}"
        return json_answer(
            Resent(self.found(request).id, state, None if dry(request) else console_cluster.summary("", 9).id, target)
        )

    # --- dead letters ---

    async def dead_letter_groups(self, request: web.Request) -> web.Response:
        return json_answer(
            [{"group": name, "messages": each.dead_letters} for name, each in self.groups.items() if each.dead_letters]
        )

    def letters(self, request: web.Request) -> list[MessageSummary]:
        group = self.named(self.groups, request, "group")
        return [console_cluster.summary(group.topics[0], number) for number in range(group.dead_letters or 0)]

    async def dead_letters(self, request: web.Request) -> web.Response:
        return json_answer(page(self.letters(request), request))

    async def resend_dead_letters(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.note(request, body)
        ids = body["ids"] or [each.id for each in self.letters(request)]
        target = f"%RETRY%{request.match_info['group']}"
        done = [
            Resent(
                each,
                StepState.PLANNED if dry(request) else StepState.DONE,
                None if dry(request) else each[::-1],
                target,
            )
            for each in ids
        ]
        if not dry(request) and len(done) > 1:
            done[-1] = Resent(ids[-1], StepState.FAILED, None, target, "The message is no longer stored.")
        return json_answer(done)

    # --- configuration and the audit log ---

    async def show_settings(self, request: web.Request) -> web.Response:
        return json_answer(self.settings)

    async def set_settings(self, request: web.Request) -> web.Response:
        address, body = request.match_info["address"], await request.json()
        self.note(request, body)
        [(name, value)] = body.items()
        index = next(number for number, each in enumerate(self.settings) if each.name == name)
        before = self.settings[index].values[address]
        if not dry(request):
            values = {**self.settings[index].values, address: value}
            self.settings[index] = dataclasses.replace(
                self.settings[index], values=values, agree=len(set(values.values())) == 1
            )
        state = StepState.PLANNED if dry(request) else StepState.DONE
        return json_answer(Change(dry(request), [Step(address, f"set {name}", before, value, state)]))

    async def audit(self, request: web.Request) -> web.Response:
        return json_answer(page(console_cluster.audit(), request))

    # --- the server ---

    def note(self, request: web.Request, body: Any) -> None:
        self.requests.append((request.method, request.path.removeprefix("/api/v1"), dry(request), body))

    @web.middleware
    async def guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        path = request.path.removeprefix("/api/v1")
        if request.path.startswith("/api/v1"):
            if self.password and path != "/session" and "session" not in request.cookies:
                raise problem(
                    401, "A log-in is required", "a log-in or a token is required", methods=["password", "token"]
                )
            if path in self.failing:
                raise problem(self.failing[path][0], "Failed", self.failing[path][1])
            if self.role == "viewer" and request.method not in ("GET", "HEAD") and path != "/session":
                raise problem(403, "The caller may not do this", "a viewer may not change anything")
        return await handler(request)

    def app(self) -> web.Application:
        """Returns the application: the interface and the pages, with the headers of the real server."""
        app = web.Application(middlewares=[self.guard])
        topic, group, member = "/topics/{topic}", "/consumer-groups/{group}", "/raft-groups/{name}"
        for method, path, handler in (
            ("GET", "/me", self.me),
            ("POST", "/session", self.log_in),
            ("DELETE", "/session", self.log_out),
            ("GET", "/clusters", self.clusters),
            ("GET", "/raft-groups", self.raft_groups),
            ("GET", "/figures", self.show_figures),
            ("GET", "/events", self.events),
            ("POST", "/brokers/{name}/write-permission", self.change_cluster),
            ("POST", f"{member}/leader", self.change_cluster),
            ("POST", f"{member}/members", self.change_cluster),
            ("DELETE", f"{member}/members/{{id}}", self.change_cluster),
            ("GET", "/topics", self.list_topics),
            ("GET", topic, self.topic),
            ("PUT", topic, self.put_topic),
            ("DELETE", topic, self.delete_topic),
            ("POST", f"{topic}/messages", self.send),
            ("GET", f"{topic}/messages", self.search),
            ("GET", "/consumer-groups", self.list_groups),
            ("GET", group, self.group),
            ("PUT", group, self.put_group),
            ("DELETE", group, self.delete_group),
            ("POST", f"{group}/offsets/reset", self.move_offsets),
            ("POST", f"{group}/offsets/clone", self.move_offsets),
            ("GET", "/messages/{id}", self.message),
            ("GET", "/messages/{id}/trace", self.trace),
            ("GET", "/messages/{id}/consumers", self.consumers),
            ("POST", "/messages/{id}/resend", self.resend),
            ("GET", "/dead-letters", self.dead_letter_groups),
            ("GET", "/dead-letters/{group}", self.dead_letters),
            ("POST", "/dead-letters/{group}/resend", self.resend_dead_letters),
            ("GET", "/settings", self.show_settings),
            ("PATCH", "/brokers/{address}/settings", self.set_settings),
            ("GET", "/audit", self.audit),
        ):
            app.router.add_route(method, f"/api/v1{path}", handler)

        app.add_routes(page_routes())
        return app


if __name__ == "__main__":
    port, role, password = (*sys.argv[1:], "admin", "")[:3] if len(sys.argv) < 4 else sys.argv[1:4]
    web.run_app(FakeApi(role=role, password=password or None).app(), host="127.0.0.1", port=int(port))
