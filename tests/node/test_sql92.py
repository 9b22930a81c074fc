"""The filter language says what RocketMQ 4.8.0 says, and refuses with a place what it cannot mean."""

import json
from pathlib import Path

import pytest

from tallystick.node.broker import sql92
from tallystick.node.broker.sql92 import lexer, parser, tree

ANSWERS = [json.loads(line) for line in (Path(__file__).parent / "sql92_answers.jsonl").read_text("utf-8").splitlines()]
"""Expressions with what RocketMQ 4.8.0's filter module answered for some properties: true, false, "unknown" or "error";
null instead of a list where it refused the expression."""


@pytest.mark.parametrize("case", ANSWERS, ids=[case["expression"] for case in ANSWERS])
def test_answers_are_those_of_rocketmq(case):
    if case["answers"] is None:
        with pytest.raises(sql92.Sql92Error):
            sql92.compile(case["expression"])
        return
    expression = sql92.compile(case["expression"])
    for properties, answer in zip(case["properties"], case["answers"], strict=True):
        value = expression.evaluate(properties)
        assert {True: True, False: False, None: answer}[value] == answer, properties
        assert expression.matches(properties) is (answer is True), properties


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("color CONTAINS 'ee'", True),
        ("color contains 'ea'", False),
        ("color NOT CONTAINS 'ea'", True),
        ("color STARTSWITH 'gr'", True),
        ("color NOT STARTSWITH 'gr'", False),
        ("color ENDSWITH 'en' AND num > 3", True),
        ("nothing CONTAINS 'a'", False),
        ("nothing NOT CONTAINS 'a'", False),
        ("color CONTAINS ''", False),
        ("color NOT CONTAINS ''", False),
        ("contains = 'a property'", True),
        ("contains CONTAINS 'prop'", True),
    ],
)
def test_words_of_rocketmq_5(text, answer):
    assert sql92.compile(text).matches({"color": "green", "num": "4", "contains": "a property"}) is answer


@pytest.mark.parametrize(
    ("text", "offset", "reason"),
    [
        ("", 0, "expected a property or a value, found the end"),
        ("num >", 5, "expected a property or a value, found the end"),
        ("a = 1 b = 2", 6, "'b' after a complete expression"),
        ("a LIKE 'x'", 2, "'LIKE' after a complete expression"),
        ("a = 'open", 4, "closing quote"),
        ("a /* open", 2, "a comment without its end"),
        ("a != 5", 2, "unexpected character '!'"),
        ("a = ?", 4, "unexpected character '?'"),
        ("a = NULL", 4, "write IS NULL"),
        ("b = 1 AND a > 'x'", 14, "compares properties and numbers only"),
        ("a BETWEEN 5 AND 3", 10, "the lower bound must come first"),
        ("a IN (1)", 6, "expected a string in quotes"),
        ("'a' IN ('a')", 0, "IN needs a property"),
        ("a = 9223372036854775808", 4, "greater than"),
        ("a = " + "9" * 5000, 4, "greater than"),
        ("a = 1e999", 4, "too great"),
        ("a = 1e-999", 4, "too small"),
        ("a = 1 AND 'x'", 10, "expected a condition"),
        ("(a = 1", 6, "expected ')'"),
        ("a IS 5", 5, "expected 'NULL'"),
    ],
)
def test_what_is_refused_is_named_with_its_place(text, offset, reason):
    with pytest.raises(sql92.Sql92Error) as caught:
        sql92.compile(text)
    assert reason in caught.value.reason
    assert caught.value.offset == offset
    assert str(caught.value).endswith(f"at character {offset}")


def test_zero_with_a_fraction_is_a_number():
    """4.8.0 calls it too small and refuses the subscription."""
    assert sql92.compile("a > 0.0").matches({"a": "0.5"})


def test_a_comment_may_end_with_the_text():
    assert sql92.compile("a = 1 -- only ones").matches({"a": "1"})


@pytest.mark.parametrize("text", ["(" * 200 + "a" + ")" * 200, "NOT " * 200 + "a", "- " * 200 + "a = 1"])
def test_nesting_has_a_limit(text):
    with pytest.raises(sql92.Sql92Error, match=f"nested deeper than {sql92.MAX_DEPTH} levels"):
        sql92.compile(text)


def test_chained_comparisons_count_as_nesting():
    with pytest.raises(sql92.Sql92Error, match="nested deeper"):
        sql92.compile("a" + " = b" * 4000)


def test_the_deepest_tree_can_be_evaluated():
    text = "a" + " = TRUE" * (sql92.MAX_DEPTH - 2)
    assert sql92.compile(text).evaluate({"a": "true"}) is True


def test_many_conditions_are_not_deep():
    text = " OR ".join(f"num = {number}" for number in range(1000))
    assert sql92.compile(text).matches({"num": "999"})


def test_length_has_a_limit():
    longest = "a = '" + "x" * (lexer.MAX_LENGTH - 6) + "'"
    assert sql92.compile(longest).matches({"a": "x" * (lexer.MAX_LENGTH - 6)})
    with pytest.raises(sql92.Sql92Error, match="16385 characters; the limit is 16384"):
        sql92.compile(longest + " ")


def test_an_expression_knows_the_properties_it_reads():
    assert sql92.compile("a = 1 OR NOT (b IN ('x') AND -c > d) OR e").names == {"a", "b", "c", "d", "e"}


def test_compiled_expressions_are_kept():
    assert sql92.compile("a = 1 AND b = 2") is sql92.compile("a = 1 AND b = 2")


def test_words_of_every_kind():
    found = [(token.kind.name, token.text) for token in lexer.tokens("a>=5.E2,'x''y'or 7L<>.5")]
    assert found == [
        ("NAME", "a"),
        ("OPERATOR", ">="),
        ("FLOAT", "5.E2"),
        ("OPERATOR", ","),
        ("STRING", "'x''y'"),
        ("KEYWORD", "OR"),
        ("DECIMAL", "7L"),
        ("OPERATOR", "<>"),
        ("FLOAT", ".5"),
        ("END", ""),
    ]


def test_not_binds_to_what_follows_at_once():
    assert parser.parse("NOT a = 5") == tree.Compare("=", tree.Not(tree.Cast(tree.Property("a"))), tree.Literal(5))
