"""The rules of access, compared with a slow twin that orders policies by pairwise comparison."""

import functools

from hypothesis import given
from hypothesis import strategies as st

from tallystick.node.access.addresses import AddressPattern
from tallystick.node.access.policies import (
    CLUSTER,
    Action,
    Decision,
    Match,
    Policy,
    Resource,
    ResourceKind,
    ResourcePattern,
    Rules,
    User,
)

TOPIC, GROUP = ResourceKind.TOPIC, ResourceKind.GROUP
NAMES = ("", "a", "ab", "abc", "b")
SOURCES = ("10.0.0.1", "10.0.0.2", "::1")
patterns = st.builds(
    # In the text of a policy, resources of any kind have any name.
    lambda kind, match, name: (
        ResourcePattern(kind, Match.ANY)
        if kind is None
        else ResourcePattern(kind, match, "" if match is Match.ANY else name)
    ),
    st.sampled_from([None, *ResourceKind]),
    st.sampled_from(Match),
    st.sampled_from(NAMES),
)
policies = st.builds(
    Policy,
    patterns,
    st.frozensets(st.sampled_from([Action.PUB, Action.SUB, Action.GET]), min_size=1),
    st.sampled_from(Decision),
    st.sampled_from([(), (AddressPattern.parse("10.0.0.1"),), (AddressPattern.parse("10.0.0.*"),)]),
    st.booleans(),
)


def twin_compare(one: Policy, other: Policy) -> int:
    """Which of two policies that match decides: negative for the first."""
    if one.is_default != other.is_default:
        return 1 if one.is_default else -1
    a, b = one.pattern, other.pattern
    if (a.kind is None) != (b.kind is None):
        return 1 if a.kind is None else -1
    if a.match != b.match:
        return -1 if a.match < b.match else 1
    if len(a.name) != len(b.name):
        return -1 if len(a.name) > len(b.name) else 1
    if one.decision != other.decision:
        return -1 if one.decision is Decision.DENY else 1
    return 0


def twin_allows(user: User, resource: Resource, action: Action, source: str) -> bool:
    matching = []
    for policy in user.policies:
        pattern = policy.pattern
        if pattern.kind not in (None, resource.kind):
            continue
        if pattern.match is Match.EXACT and pattern.name != resource.name:
            continue
        if pattern.match is Match.PREFIX and not resource.name.startswith(pattern.name):
            continue
        if action not in policy.actions:
            continue
        if policy.sources and not any(each.matches(source) for each in policy.sources):
            continue
        matching.append(policy)
    if user.is_super:
        return True
    return bool(matching) and min(matching, key=functools.cmp_to_key(twin_compare)).decision is Decision.ALLOW


@given(
    st.lists(policies, max_size=8),
    st.sampled_from(ResourceKind),
    st.sampled_from(NAMES),
    st.sampled_from([Action.PUB, Action.SUB, Action.GET]),
    st.sampled_from(SOURCES),
)
def test_decisions_equal_those_of_the_twin(
    own: list[Policy], kind: ResourceKind, name: str, action: Action, source: str
) -> None:
    user = User("user", "secret", tuple(own))
    resource = Resource(kind, name)
    asked = CLUSTER if kind is ResourceKind.CLUSTER else resource
    assert Rules(user, name).allows(asked, action, source) == twin_allows(user, resource, action, source)


def rule(kind: ResourceKind | None, match: Match, name: str, decision: Decision, *, is_default: bool = False) -> Policy:
    return Policy(ResourcePattern(kind, match, name), frozenset({Action.PUB}), decision, is_default=is_default)


def test_the_most_specific_policy_decides() -> None:
    allow, deny = Decision.ALLOW, Decision.DENY
    resource = Resource(TOPIC, "abc")
    ordered = [
        rule(TOPIC, Match.EXACT, "abc", deny),
        rule(TOPIC, Match.EXACT, "abc", allow),
        rule(TOPIC, Match.PREFIX, "ab", deny),
        rule(TOPIC, Match.PREFIX, "a", allow),
        rule(TOPIC, Match.ANY, "", deny),
        rule(None, Match.EXACT, "abc", allow),
        rule(None, Match.ANY, "", deny),
        rule(TOPIC, Match.EXACT, "abc", allow, is_default=True),
        rule(TOPIC, Match.ANY, "", deny, is_default=True),
    ]
    for number, first in enumerate(ordered):
        user = User("user", "secret", tuple(reversed(ordered[number:])))
        assert Rules(user).allows(resource, Action.PUB, "::1") == (first.decision is allow), number
    assert not Rules(User("user", "secret")).allows(resource, Action.PUB, "::1"), "no policy denies"


def test_a_disabled_user_has_no_access() -> None:
    resource = Resource(TOPIC, "abc")
    assert Rules(User("user", "secret", is_super=True)).allows(resource, Action.PUB, "::1")
    assert not Rules(User("user", "secret", is_super=True, is_enabled=False)).allows(resource, Action.PUB, "::1")


def test_the_text_of_a_user_has_no_secret() -> None:
    assert "12345678" not in repr(Rules(User("user", "12345678")).user)
