"""What a request must be permitted to do: rules for request codes, without knowledge of any particular code.

A rule reads a request and says which actions on which resources it needs. It runs after the signature was checked, and
before the request is served. A field that is missing needs nothing: the processor refuses the request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from tallystick.node.access.access_log import AUDIT_TOPIC
from tallystick.node.access.plain_acl import topic_resource
from tallystick.node.access.policies import CLUSTER, Action, Resource, ResourceKind
from tallystick.node.remoting.command import Command
from tallystick.store import fastjson
from tallystick.store.fastjson import FastjsonError

TopicAt = Callable[[int], str | None]
"""Returns the topic of the message that begins at a position of the log; None: no message begins there."""


class Need(NamedTuple):
    """One action on one resource. `alternative`: another action that permits the same."""

    resource: Resource
    action: Action
    alternative: Action | None = None


class UnreadableError(ValueError):
    """A request does not have the form of its code: what it needs is unknown."""


Part = Callable[[Command, TopicAt], Iterable[Need]]


@dataclass(frozen=True, slots=True)
class Rule:
    """What the requests of one code need. `text` is for people."""

    text: str
    parts: tuple[Part, ...] = ()
    """No parts: any account may send the request."""
    is_open: bool = False
    """Anyone may send the request: it is not checked."""
    is_administrative: bool = False
    """It is recorded in the access log also if it is allowed."""

    def needs(self, command: Command, topic_at: TopicAt) -> list[Need]:
        """Raises UnreadableError."""
        return [need for part in self.parts for need in part(command, topic_at)]


def topic(action: Action, field: str = "topic", *, alternative: Action | None = None) -> Rule:
    """An action on the topic that a field names."""
    return Rule(
        f"{_either(action, alternative)} on the topic (`{field}`)",
        (lambda command, _: _named(command, field, _topic, action, alternative),),
    )


def group(action: Action, field: str = "consumerGroup", *, alternative: Action | None = None) -> Rule:
    """An action on the consumer group that a field names."""
    return Rule(
        f"{_either(action, alternative)} on the group (`{field}`)",
        (lambda command, _: _named(command, field, _group, action, alternative),),
    )


def cluster(action: Action) -> Rule:
    """An action on the cluster."""
    return Rule(f"{action.value} on the cluster", (lambda *_: (Need(CLUSTER, action),),))


def message_at(action: Action, field: str) -> Rule:
    """An action on the topic of the message at the position that a field names."""

    def needs(command: Command, topic_at: TopicAt) -> Iterable[Need]:
        text = (command.ext or {}).get(field)
        if text is None:
            return ()
        try:
            found = topic_at(int(text)) if len(text) <= 20 else None
        except ValueError:
            found = None
        # Without a message there is no topic to check. The permission for the cluster keeps it from other users whether
        # a message is at the position.
        return (Need(CLUSTER, action) if found is None else _need(_topic(found), action),)

    return Rule(f"{action.value} on the topic of the message (`{field}`)", (needs,))


def body(text: str, read: Callable[[Mapping[Any, Any]], Iterable[Need]]) -> Rule:
    """What the JSON object in the body names. `read` may raise UnreadableError."""

    def needs(command: Command, _: TopicAt) -> Iterable[Need]:
        try:
            value = fastjson.loads_request(command.body)
        except FastjsonError as error:
            raise UnreadableError(f"the body is not JSON: {error}") from error
        if not isinstance(value, dict):
            raise UnreadableError("the body is not a JSON object")
        return read(value)

    return Rule(text, (needs,))


def both(*rules: Rule) -> Rule:
    """Everything that these rules need."""
    return Rule("; ".join(rule.text for rule in rules), tuple(part for rule in rules for part in rule.parts))


def administrative(rule: Rule) -> Rule:
    """The same rule, for requests that are recorded in any case."""
    return Rule(rule.text, rule.parts, rule.is_open, True)


AUTHENTICATED = Rule("a signature")
OPEN = Rule("nothing", is_open=True)


def objects(value: Any, what: str) -> list[Mapping[Any, Any]]:
    """The objects of a list; none for null. Raises UnreadableError."""
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise UnreadableError(f"{what} is not a list of objects")
    return value


def on_topic(name: Any, action: Action) -> Need:
    """Raises UnreadableError: the name is not a text."""
    return _need(_topic(_text(name, "a topic")), action)


def on_group(name: Any, action: Action) -> Need:
    """Raises UnreadableError: the name is not a text."""
    return Need(_group(_text(name, "a group")), action)


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise UnreadableError(f"the name of {what} is not a text")
    return value


def _topic(name: str) -> Resource:
    """The lines of the audit belong to the cluster: no permission on topics gives them to a user."""
    return CLUSTER if name == AUDIT_TOPIC else topic_resource(name)


def _need(resource: Resource, action: Action, alternative: Action | None = None) -> Need:
    if resource is CLUSTER:
        return Need(CLUSTER, Action.GET if action in (Action.SUB, Action.GET) else Action.UPDATE)
    return Need(resource, action, alternative)


def _group(name: str) -> Resource:
    return Resource(ResourceKind.GROUP, name)


def _either(action: Action, alternative: Action | None) -> str:
    return action.value if alternative is None else f"{action.value} or {alternative.value}"


def _named(
    command: Command, field: str, resource: Callable[[str], Resource], action: Action, alternative: Action | None
) -> Iterable[Need]:
    name = (command.ext or {}).get(field)
    if name is None:
        return ()
    found = resource(name)
    if action is Action.PUB and found.kind is ResourceKind.GROUP:  # to the retry topic of the group
        action = Action.RESEND
    return (_need(found, action, alternative),)
