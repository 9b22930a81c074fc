"""The tree of a filter expression: values at its leaves, conditions above them.

A condition is true, false or NULL. A value is a string, a number, a boolean or NULL.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Property:
    """The value of a message's property: a string, or NULL."""

    name: str


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant. `wide`: an integer beyond 32 bits, Java's Long. A string is converted to the type of the literal."""

    value: str | int | float | bool | None
    wide: bool = False


@dataclass(frozen=True, slots=True)
class Negate:
    operand: Node


@dataclass(frozen=True, slots=True)
class Not:
    operand: Node


@dataclass(frozen=True, slots=True)
class Cast:
    """A property in the place of a condition. Properties are strings, so it is never true."""

    operand: Property


@dataclass(frozen=True, slots=True)
class And:
    """Operands from left to right. A chain of ANDs is one node, so that long lists of conditions are not deep."""

    operands: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Or:
    operands: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Compare:
    """A comparison. `operator` is one of = < <= > >=; `<>` is Not of `=`. IS NULL is `=` with the NULL literal."""

    operator: str
    left: Node
    right: Node


@dataclass(frozen=True, slots=True)
class In:
    operand: Property
    values: frozenset[str]
    negated: bool


@dataclass(frozen=True, slots=True)
class Text:
    """`operator` is one of CONTAINS, STARTSWITH, ENDSWITH."""

    operator: str
    operand: Node
    search: str
    negated: bool


Node = Property | Literal | Negate | Not | Cast | And | Or | Compare | In | Text

NULL = Literal(None)


def is_truth(node: Node) -> bool:
    """Returns whether the node is a condition: its value is never a string or a number."""
    if isinstance(node, Literal):
        return node.value is None or isinstance(node.value, bool)
    return not isinstance(node, Property | Negate)


def children(node: Node) -> tuple[Node, ...]:
    match node:
        case And(operands) | Or(operands):
            return operands
        case Compare(_, left, right):
            return left, right
        case Negate(operand) | Not(operand) | Cast(operand) | In(operand) | Text(_, operand):
            return (operand,)
    return ()


def depth(root: Node) -> int:
    """Returns the number of levels of the tree. It does not recurse, because it limits the depth of recursions."""
    levels = 0
    row: tuple[Node, ...] = (root,)
    while row:
        levels, row = levels + 1, tuple(child for node in row for child in children(node))
    return levels
