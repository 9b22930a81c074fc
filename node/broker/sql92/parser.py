"""Parses an expression to a tree, with RocketMQ's checks.

    or          and (OR and)*
    and         equality (AND equality)*
    equality    comparison (= comparison | <> comparison | IS [NOT] NULL)*
    comparison  unary (< <= > >= unary | [NOT] BETWEEN unary AND unary | [NOT] IN (string, ...)
                       | [NOT] CONTAINS|STARTSWITH|ENDSWITH string)*
    unary       + unary | - unary | NOT unary | primary
    primary     literal | name | ( or )

NOT binds more tightly than `=`: `NOT a = 5` is `(NOT a) = 5`. Write `NOT (a = 5)`.

The parser refuses what RocketMQ refuses when a client subscribes: NULL with `=` or `<>`; anything but properties and
numbers with `<`, `<=`, `>` and `>=`; bounds of BETWEEN that are NULL or in the wrong order; IN without a property and
strings; anything but conditions and properties with AND, OR and NOT, and as the whole expression.

There are three differences from 4.8.0: text after a complete expression is an error (4.8.0 ignores it), `0.0` is a
number (4.8.0 calls it too small), and a `--` comment may end with the text. A tree has at most MAX_DEPTH levels.

Source: SelectorParser.jj and the expression classes of RocketMQ's filter module.
"""

from __future__ import annotations

from typing import NoReturn

from tallystick.node.broker.sql92.lexer import Kind, Sql92Error, Token, string_value, tokens
from tallystick.node.broker.sql92.tree import (
    NULL,
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
    depth,
    is_truth,
)

MAX_DEPTH = 64
"""Largest number of levels of a tree. Parsing needs six Python frames per level, evaluation one."""

INT_MAX, LONG_MAX = 2**31 - 1, 2**63 - 1
_TEXT_OPERATORS = frozenset({"CONTAINS", "STARTSWITH", "ENDSWITH"})


def parse(text: str) -> Node:
    """Returns the tree of `text`; its root is a condition. Sql92Error: what is wrong, and where."""
    return _Parser(text).expression()


class _Parser:
    def __init__(self, text: str) -> None:
        self._tokens = tokens(text)
        self._at = 0
        self._open = 0  # unary operators and parentheses around the current token

    def expression(self) -> Node:
        start = self._now
        root = self._truth(self._or(), start)
        if self._now.kind is not Kind.END:
            self._fail(f"unexpected {self._now} after a complete expression")
        if depth(root) > MAX_DEPTH:
            self._fail(f"nested deeper than {MAX_DEPTH} levels")
        return root

    # Tokens

    @property
    def _now(self) -> Token:
        return self._tokens[self._at]

    def _fail(self, reason: str, token: Token | None = None) -> NoReturn:
        raise Sql92Error(reason, (token or self._now).offset)

    def _next(self) -> Token:
        token = self._now
        self._at += 1
        return token

    def _take(self, *texts: str) -> str | None:
        """Consumes the keyword or operator if it is one of `texts`. Returns it, or None."""
        token = self._now
        if token.kind in (Kind.KEYWORD, Kind.OPERATOR) and token.text in texts:
            self._at += 1
            return token.text
        return None

    def _need(self, text: str) -> None:
        if self._take(text) is None:
            self._fail(f"expected {text!r}, found {self._now}")

    def _string(self) -> str:
        if self._now.kind is not Kind.STRING:
            self._fail(f"expected a string in quotes, found {self._now}")
        return string_value(self._next())

    # Levels of the grammar

    def _or(self) -> Node:
        start = self._now
        operands = [self._and()]
        while self._take("OR"):
            operands[0] = self._truth(operands[0], start)
            start_right = self._now
            operands.append(self._truth(self._and(), start_right))
        return operands[0] if len(operands) == 1 else Or(tuple(operands))

    def _and(self) -> Node:
        start = self._now
        operands = [self._equality()]
        while self._take("AND"):
            operands[0] = self._truth(operands[0], start)
            start_right = self._now
            operands.append(self._truth(self._equality(), start_right))
        return operands[0] if len(operands) == 1 else And(tuple(operands))

    def _equality(self) -> Node:
        start = self._now
        left = self._comparison()
        while (operator := self._take("=", "<>", "IS")) is not None:
            if operator == "IS":
                negated = self._take("NOT") is not None
                self._need("NULL")
                left = Compare("=", left, NULL)
            else:
                negated = operator == "<>"
                start_right = self._now
                right = self._comparison()
                self._check_equality(left, start, right, start_right)
                left = Compare("=", left, right)
            if negated:
                left = Not(left)
        return left

    def _check_equality(self, left: Node, start: Token, right: Node, start_right: Token) -> None:
        for node, token in ((left, start), (right, start_right)):
            if node == NULL:
                self._fail("NULL cannot be compared: write IS NULL", token)
        if isinstance(left, Literal) and isinstance(right, Literal) and is_truth(left) and not is_truth(right):
            self._fail(f"{left.value} cannot be compared with {right.value!r}", start)

    def _comparison(self) -> Node:
        start = self._now
        left = self._unary()
        while True:
            if (operator := self._take("<", "<=", ">", ">=")) is not None:
                start_right = self._now
                left = self._ordered(operator, left, start, self._unary(), start_right)
                continue
            negated = self._now.text == "NOT" and self._now.kind is Kind.KEYWORD
            operator = self._word_operator(self._tokens[self._at + 1] if negated else self._now)
            if operator is None:
                return left
            self._at += 2 if negated else 1
            if operator == "BETWEEN":
                left = self._between(left, start, negated)
            elif operator == "IN":
                left = self._in(left, start, negated)
            else:
                left = Text(operator, left, self._string(), negated)

    @staticmethod
    def _word_operator(token: Token) -> str | None:
        if token.kind is Kind.KEYWORD and token.text in ("BETWEEN", "IN"):
            return token.text
        word = token.text.upper()
        return word if token.kind is Kind.NAME and word in _TEXT_OPERATORS else None

    def _ordered(self, operator: str, left: Node, start: Token, right: Node, start_right: Token) -> Node:
        for node, token in ((left, start), (right, start_right)):
            if is_truth(node) or (isinstance(node, Literal) and isinstance(node.value, str)):
                self._fail(f"{operator!r} compares properties and numbers only", token)
        return Compare(operator, left, right)

    def _between(self, value: Node, start: Token, negated: bool) -> Node:
        start_low = self._now
        low = self._unary()
        self._need("AND")
        start_high = self._now
        high = self._unary()
        if negated:
            below = self._ordered("<", value, start, low, start_low)
            return Or((below, self._ordered(">", value, start, high, start_high)))
        above = self._ordered(">=", value, start, low, start_low)
        inside = And((above, self._ordered("<=", value, start, high, start_high)))
        if isinstance(low, Literal) and isinstance(high, Literal):
            # `_ordered` accepts only numbers among the literals, which mypy cannot infer
            assert isinstance(low.value, int | float) and isinstance(high.value, int | float)
            if low.value > high.value:
                self._fail(f"BETWEEN {low.value} AND {high.value}: the lower bound must come first", start_low)
        return inside

    def _in(self, operand: Node, start: Token, negated: bool) -> Node:
        if not isinstance(operand, Property):
            self._fail("IN needs a property before it", start)
        self._need("(")
        values = {self._string()}
        while self._take(","):
            values.add(self._string())
        self._need(")")
        return In(operand, frozenset(values), negated)

    def _unary(self) -> Node:
        self._open += 1
        if self._open > MAX_DEPTH:
            self._fail(f"nested deeper than {MAX_DEPTH} levels")
        operator = self._take("+", "-", "NOT")
        start = self._now
        node = self._primary() if operator is None else self._unary()
        self._open -= 1
        if operator == "-":
            return Negate(node)
        if operator == "NOT":
            return Not(self._truth(node, start))
        return node

    def _primary(self) -> Node:
        token = self._next()
        match token.kind:
            case Kind.NAME:
                return Property(token.text)
            case Kind.STRING:
                return Literal(string_value(token))
            case Kind.DECIMAL:
                return self._decimal(token)
            case Kind.FLOAT:
                return self._float(token)
            case Kind.KEYWORD if token.text in ("TRUE", "FALSE", "NULL"):
                return Literal({"TRUE": True, "FALSE": False, "NULL": None}[token.text])
            case Kind.OPERATOR if token.text == "(":
                node = self._or()
                self._need(")")
                return node
        self._fail(f"expected a property or a value, found {token}", token)

    def _decimal(self, token: Token) -> Literal:
        digits = token.text.rstrip("lL")
        if len(digits) > len(str(LONG_MAX)) or (value := int(digits)) > LONG_MAX:
            self._fail(f"a number greater than {LONG_MAX}", token)
        return Literal(value, wide=value > INT_MAX)

    def _float(self, token: Token) -> Literal:
        value = float(token.text)
        mantissa = token.text.upper().partition("E")[0]
        if value == float("inf") or (value == 0 and mantissa.strip("0.")):
            self._fail(f"a number too {'great' if value else 'small'} for 64 bits", token)
        return Literal(value)

    def _truth(self, node: Node, start: Token) -> Node:
        if isinstance(node, Property):
            return Cast(node)
        if not is_truth(node):
            self._fail("expected a condition that is true or false", start)
        return node
