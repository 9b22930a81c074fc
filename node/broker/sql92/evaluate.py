"""The result of an expression for one message: true, false or NULL.

The tree is compiled once to nested functions, so that a message costs one call per node. The type of each node is known
then, except that a property is a string or NULL. So the comparison of two nodes is chosen once, too.

The values follow Java, because clients rely on it:

- A property compared with a number is converted to the *literal's* type: 32-bit integer, 64-bit integer or double. `num
  > 5` fails for num = '5.5', '99999999999' and 'abc' alike; `num > 5.0` takes the first two.
- Two properties are ordered as doubles. NaN is above everything and equal to itself, -0.0 is below 0.0.
- `=` is NULL with NULL on the left, false with NULL only on the right, and true with NULL on both sides. `<`, `<=`, `>`
  and `>=` with NULL are NULL.
- AND, OR and NOT are three-valued and stop as soon as the result is known.
- A value that cannot be converted ends the whole evaluation: the message does not match, even if the other side of an
  OR is true.
- CONTAINS, STARTSWITH and ENDSWITH are false for NULL and for the empty search string, with and without NOT.

Source: ComparisonExpression, LogicExpression and UnaryExpression of RocketMQ's filter module; tests compare with
answers of the real one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from tallystick.node.broker.sql92.parser import parse
from tallystick.node.broker.sql92.tree import (
    And,
    Cast,
    Compare,
    In,
    Literal,
    Negate,
    Node,
    Not,
    Or,
    Property,
    Text,
    children,
    is_truth,
)
from tallystick.node.broker.sql92.values import UnconvertibleError, boolean, double, int32, int64, order

Properties = Mapping[str, str]
Evaluate = Callable[[Properties], Any]
Convert = Callable[[Any], Any]


class Expression:
    """A compiled expression. `text` is its source, `names` the properties it reads."""

    __slots__ = ("_evaluate", "names", "text")

    def __init__(self, text: str, root: Node) -> None:
        self.text = text
        self.names = frozenset(_names(root))
        self._evaluate = _function(root)

    def evaluate(self, properties: Properties) -> bool | None:
        """Returns true, false, or None for NULL."""
        try:
            value: bool | None = self._evaluate(properties)
        except UnconvertibleError:
            return None
        return value

    def matches(self, properties: Properties) -> bool:
        """Returns whether the message belongs to the subscription: the expression is true, neither false nor NULL."""
        try:
            return self._evaluate(properties) is True
        except UnconvertibleError:
            return False

    def __repr__(self) -> str:
        return f"Expression({self.text!r})"


@lru_cache(maxsize=512)
def compile(expression: str) -> Expression:
    """Compiles an expression. Sql92Error: what is wrong with the text, and where.

    Compiled expressions are cached, because each pull may contain its expression.
    """
    return Expression(expression, parse(expression))


def _names(node: Node) -> list[str]:
    found, rest = [], [node]
    while rest:
        node = rest.pop()
        if isinstance(node, Property):
            found.append(node.name)
        rest.extend(children(node))
    return found


def _type(node: Node) -> str:
    """Returns the type of the node's value, if that is not NULL."""
    match node:
        case Property():
            return "string"
        case Literal(value, wide):
            if isinstance(value, bool):
                return "boolean"
            if isinstance(value, int):
                return "long" if wide else "int"
            return {float: "double", str: "string"}.get(type(value), "nothing")
        case Negate(operand):
            inner = _type(operand)
            return inner if inner in ("int", "long", "double") else "nothing"
    return "boolean"


_CONVERTERS: dict[str, Convert] = {"int": int32, "long": int64, "double": double, "boolean": boolean}


def _same(value: Any) -> Any:
    return value


def _impossible(value: Any) -> Any:
    raise UnconvertibleError


def _function(node: Node) -> Evaluate:
    match node:
        case Property(name):
            return lambda properties: properties.get(name)
        case Literal(value):
            return lambda properties: value
        case Negate(operand):
            return _negate(operand)
        case Not(operand):
            return _not(_function(operand))
        case Cast(Property(name)):
            return lambda properties: None if properties.get(name) is None else False
        case And(operands):
            return _chain(operands, decisive=False)
        case Or(operands):
            return _chain(operands, decisive=True)
        case Compare("=", left, right):
            return _equal(left, right)
        case Compare(operator, left, right):
            return _ordered(operator, left, right)
        case In():
            return _in(node)
        case Text():
            return _text(node)
    raise AssertionError(f"no such node: {node}")


def _negate(operand: Node) -> Evaluate:
    inner = _function(operand)
    if _type(operand) in ("int", "long", "double"):
        return lambda properties: -inner(properties)

    def nothing(properties: Properties) -> None:
        inner(properties)  # it raises an error if the value cannot be converted

    return nothing


def _not(inner: Evaluate) -> Evaluate:
    def negation(properties: Properties) -> bool | None:
        value = inner(properties)
        return None if value is None else not value

    return negation


def _chain(operands: tuple[Node, ...], *, decisive: bool) -> Evaluate:
    """Compiles AND, which one false operand decides, or OR, which one true operand decides."""
    functions = tuple(_function(operand) for operand in operands)

    def chain(properties: Properties) -> bool | None:
        unknown = False
        for function in functions:
            value: bool | None = function(properties)
            if value is decisive:
                return decisive
            if value is None:
                unknown = True
        return None if unknown else not decisive

    return chain


def _conversions(left: str, right: str) -> tuple[Convert, Convert]:
    """Returns the conversions of two types to one in which they can be compared."""
    if left == right:
        return _same, _same
    if right == "string":
        # Java cannot cast a boolean on the left
        return _same, _impossible if left == "boolean" else _CONVERTERS[left]
    if left == "string":
        return _CONVERTERS[right], _same
    if left == "double" or right == "double":
        return float, float
    return _same, _same


def _equal(left: Node, right: Node) -> Evaluate:
    left_type, right_type = _type(left), _type(right)
    if isinstance(left, Property) and right_type == "nothing" and isinstance(right, Literal):
        name = left.name
        return lambda properties: name not in properties
    first, second = _function(left), _function(right)
    comparison: Callable[[Any, Any], bool]
    if (left_type == "boolean") != (right_type == "boolean") and "string" not in (left_type, right_type):
        comparison = _never  # a boolean and a number
    elif "nothing" in (left_type, right_type):
        comparison = _never  # not reachable
    elif left_type == right_type == "string":
        comparison = str.__eq__
    else:
        comparison = _equality(*_conversions(left_type, right_type))

    def equal(properties: Properties) -> bool | None:
        one, other = first(properties), second(properties)
        if one is None:
            return True if other is None else None
        if other is None:
            return False
        return comparison(one, other)

    return equal


def _never(one: Any, other: Any) -> bool:
    return False


def _equality(first: Convert, second: Convert) -> Callable[[Any, Any], bool]:
    return lambda one, other: order(first(one), second(other)) == 0


_ORDERINGS: dict[str, Callable[[int], bool]] = {
    "<": lambda order: order < 0,
    "<=": lambda order: order <= 0,
    ">": lambda order: order > 0,
    ">=": lambda order: order >= 0,
}


def _ordered(operator: str, left: Node, right: Node) -> Evaluate:
    assert not is_truth(left) and not is_truth(right), "the parser refuses to order booleans"
    holds = _ORDERINGS[operator]
    left_type, right_type = _type(left), _type(right)
    first, second = _function(left), _function(right)
    convert_left: Convert
    convert_right: Convert
    if "nothing" in (left_type, right_type):
        convert_left, convert_right = _same, _same  # not reachable
    elif left_type == right_type == "string":
        convert_left, convert_right = double, double
    else:
        convert_left, convert_right = _conversions(left_type, right_type)

    def ordered(properties: Properties) -> bool | None:
        one = first(properties)
        if one is None:
            return None
        other = second(properties)
        if other is None:
            return None
        return holds(order(convert_left(one), convert_right(other)))

    return ordered


def _in(node: In) -> Evaluate:
    name, values, negated = node.operand.name, node.values, node.negated

    def member(properties: Properties) -> bool | None:
        value = properties.get(name)
        return None if value is None else (value in values) is not negated

    return member


def _text(node: Text) -> Evaluate:
    inner, search, negated = _function(node.operand), node.search, node.negated
    test: Callable[[str, str], bool] = {
        "CONTAINS": str.__contains__,
        "STARTSWITH": str.startswith,
        "ENDSWITH": str.endswith,
    }[node.operator]

    def text(properties: Properties) -> bool:
        if not search:
            return False
        value = inner(properties)
        return isinstance(value, str) and test(value, search) is not negated

    return text
