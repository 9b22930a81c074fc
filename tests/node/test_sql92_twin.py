"""The compiled functions agree with a slow twin that walks the tree and converts as the documentation says."""

import string

from hypothesis import given, settings
from hypothesis import strategies as st

from tallystick.node.broker import sql92
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
)


class JavaError(Exception):
    pass


def number_of(text, literal):
    """`text` as the literal's type."""
    if isinstance(literal, float):
        try:
            return float(text)
        except ValueError as error:
            raise JavaError from error
    if not text.lstrip("+-").isdecimal() or len(text) - len(text.lstrip("+-")) > 1:
        raise JavaError
    value, bits = int(text), 32 if -(2**31) <= literal < 2**31 else 64
    if not -(2 ** (bits - 1)) <= value < 2 ** (bits - 1):
        raise JavaError
    return value


def walk(node: Node, properties):
    match node:
        case Property(name):
            return properties.get(name)
        case Literal(value):
            return value
        case Negate(operand):
            value = walk(operand, properties)
            return -value if isinstance(value, int | float) and not isinstance(value, bool) else None
        case Not(operand):
            value = walk(operand, properties)
            return None if value is None else not value
        case Cast(operand):
            return None if walk(operand, properties) is None else False
        case And(operands) | Or(operands):
            values = []
            decisive = isinstance(node, Or)
            for operand in operands:
                values.append(walk(operand, properties))
                if values[-1] is decisive:
                    return decisive
            return None if None in values else not decisive
        case In(operand, listed, negated):
            value = walk(operand, properties)
            return None if value is None else (value in listed) != negated
        case Text(operator, operand, search, negated):
            value = walk(operand, properties)
            if not isinstance(value, str) or search == "":
                return False
            found = {
                "CONTAINS": search in value,
                "STARTSWITH": value[: len(search)] == search,
                "ENDSWITH": value[-len(search) :] == search,
            }[operator]
            return found != negated
        case Compare(operator, left, right):
            return compare(operator, walk(left, properties), walk(right, properties))
    raise AssertionError(node)


def compare(operator, left, right):
    if left is None or right is None:
        if operator != "=" or (left is None) != (right is None):
            return False if operator == "=" and left is not None else None
        return True
    if isinstance(left, str) and isinstance(right, str) and operator == "=":
        return left == right
    if isinstance(left, str) and isinstance(right, str):
        left, right = number_of(left, 0.5), number_of(right, 0.5)
    elif isinstance(left, bool) or isinstance(right, bool):
        if isinstance(left, str):
            left = left.lower() == "true"
        elif isinstance(right, str):
            raise JavaError
        return type(left) is type(right) and left == right
    elif isinstance(left, str):
        left = number_of(left, right)
    elif isinstance(right, str):
        right = number_of(right, left)
    return {"=": left == right, "<": left < right, "<=": left <= right, ">": left > right, ">=": left >= right}[
        operator
    ]


NAMES = st.sampled_from(["a", "b", "c", "num"])
NUMBERS = st.one_of(
    st.integers(0, 20).map(str),
    st.integers(2**31 - 2, 2**31 + 1).map(str),
    st.integers(1, 40).map(lambda quarter: str(quarter / 4)),
)
STRINGS = st.text(string.ascii_lowercase + "' 1", max_size=3).map(lambda text: "'" + text.replace("'", "''") + "'")
OPERANDS = st.one_of(NAMES, NUMBERS, NUMBERS.map("-{}".format), STRINGS, st.sampled_from(["TRUE", "FALSE"]))
MEASURES = st.one_of(NAMES, NUMBERS, NUMBERS.map("-{}".format))
CONDITIONS = st.one_of(
    st.builds("{} {} {}".format, MEASURES, st.sampled_from(["<", "<=", ">", ">="]), MEASURES),
    st.builds("{} {} {}".format, OPERANDS, st.sampled_from(["=", "<>"]), OPERANDS),
    st.builds("{} IS {}NULL".format, NAMES, st.sampled_from(["", "NOT "])),
    st.builds("{} {}BETWEEN {} AND {}".format, NAMES, st.sampled_from(["", "not "]), MEASURES, MEASURES),
    st.builds("{} {}IN ({}, {})".format, NAMES, st.sampled_from(["", "not "]), STRINGS, STRINGS),
    st.builds(
        "{} {}{} {}".format,
        NAMES,
        st.sampled_from(["", "NOT "]),
        st.sampled_from(["CONTAINS", "startswith", "ENDSWITH"]),
        STRINGS,
    ),
)
EXPRESSIONS = st.recursive(
    CONDITIONS,
    lambda inner: st.one_of(
        st.builds("({})".format, inner),
        st.builds("NOT ({})".format, inner),
        st.builds("{} AND {}".format, inner, inner),
        st.builds("({}) or ({})".format, inner, inner),
        st.builds("({}) = ({})".format, inner, inner),
    ),
    max_leaves=8,
)
VALUES = st.one_of(
    st.integers(-3, 21).map(str),
    st.sampled_from(["true", "FALSE", "2147483648", "-2147483649", "9223372036854775808", "+7", "07", "2.5", "x", ""]),
    st.text(string.ascii_lowercase + "' 1", max_size=4),
)


@settings(max_examples=400)
@given(EXPRESSIONS, st.dictionaries(NAMES, VALUES))
def test_compiled_and_walked_agree(text, properties):
    try:
        tree = parse(text)
    except sql92.Sql92Error as error:
        assert "lower bound" in error.reason or "cannot be compared" in error.reason
        return
    try:
        expected = walk(tree, properties)
    except JavaError:
        expected = None
        assert not sql92.compile(text).matches(properties)
    assert sql92.compile(text).evaluate(properties) is expected


@settings(max_examples=400)
@given(st.text(string.printable + "标", max_size=40), st.dictionaries(NAMES, VALUES))
def test_any_text_compiles_or_is_refused_with_a_place_in_it(text, properties):
    try:
        expression = sql92.compile(text)
    except sql92.Sql92Error as error:
        assert 0 <= error.offset <= len(text)
    else:
        assert expression.evaluate(properties) in (True, False, None)


@settings(max_examples=200)
@given(
    st.lists(st.sampled_from(["a", "(", ")", "AND", "NOT", "=", "5", "'x'", "IN", "BETWEEN", "-", ",", "NULL", "IS"]))
)
def test_any_words_compile_or_are_refused(words):
    try:
        sql92.compile(" ".join(words)).matches({"a": "5"})
    except sql92.Sql92Error:
        pass
