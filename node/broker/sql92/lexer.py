"""The tokens of the SQL92 filter language.

    number      7  7L  7.  .7  7.5E-3  7e3     (no sign: that is an operator; no leading zeros)
    string      'it''s'                        (two quotes are one; line ends are allowed)
    name        letter, _ or $, then also digits; case-sensitive
    keyword     NOT AND OR BETWEEN IN TRUE FALSE NULL IS, in any case
    operator    = <> < <= > >= ( ) , + -
    comment     -- to the end of the line, /* to */

CONTAINS, STARTSWITH and ENDSWITH (RocketMQ 5) are names here, because a property may have such a name. The parser
recognizes them where only an operator is possible.

Source: the grammar of RocketMQ's filter module, itself made from ActiveMQ's selectors.
"""

from __future__ import annotations

import enum
import re
from typing import NamedTuple

MAX_LENGTH = 16_384
"""Largest number of characters of an expression. RocketMQ has no limit. The broker parses it for a pull, which takes
8 ms for each 1000 characters, and evaluates it for every message."""


class Sql92Error(ValueError):
    """The text is not a valid expression. `reason` says why; `offset` says where, in characters from the start."""

    def __init__(self, reason: str, offset: int) -> None:
        super().__init__(f"{reason} at character {offset}")
        self.reason = reason
        self.offset = offset


class Kind(enum.Enum):
    DECIMAL = "a number"
    FLOAT = "a number with a fraction"
    STRING = "a string"
    NAME = "a name"
    KEYWORD = "a keyword"
    OPERATOR = "an operator"
    END = "the end"


class Token(NamedTuple):
    """`text`: as written, keywords in upper case. `offset`: in characters from the start of the expression."""

    kind: Kind
    text: str
    offset: int

    def __str__(self) -> str:
        return "the end of the expression" if self.kind is Kind.END else repr(self.text)


KEYWORDS = frozenset({"NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS"})

# The first alternative that matches is taken: so FLOAT stands before DECIMAL.
_TOKEN = re.compile(
    r"""
      (?P<SKIP>     [ \t\n\r\f]+ | --[^\n\r]* | /\* .*? \*/ )
    | (?P<FLOAT>    (?: [0-9]+\.[0-9]* | \.[0-9]+ ) (?: [eE][+-]?[0-9]+ )? | [0-9]+[eE][+-]?[0-9]+ )
    | (?P<DECIMAL>  0 | [1-9][0-9]*[lL]? )
    | (?P<STRING>   ' (?: '' | [^'] )* ' )
    | (?P<NAME>     [A-Za-z_$][A-Za-z0-9_$]* )
    | (?P<OPERATOR> <> | <= | >= | [=<>(),+-] )
    """,
    re.VERBOSE | re.DOTALL,
)


def tokens(text: str) -> list[Token]:
    """Returns the tokens of `text` and one END. Sql92Error: an unexpected character, or more than MAX_LENGTH of
    them."""
    if len(text) > MAX_LENGTH:
        raise Sql92Error(f"the expression has {len(text)} characters; the limit is {MAX_LENGTH}", MAX_LENGTH)
    found = []
    offset = 0
    while offset < len(text):
        match = _TOKEN.match(text, offset)
        if match is None:
            raise Sql92Error(_complaint(text, offset), offset)
        group = match.lastgroup
        assert group is not None, "every alternative has a name"
        if group != "SKIP":
            kind, word = Kind[group], match.group()
            if kind is Kind.NAME and word.upper() in KEYWORDS:
                kind, word = Kind.KEYWORD, word.upper()
            found.append(Token(kind, word, offset))
        offset = match.end()
    found.append(Token(Kind.END, "", offset))
    return found


def _complaint(text: str, offset: int) -> str:
    if text[offset] == "'":
        return "a string without its closing quote"
    if text.startswith("/*", offset):
        return "a comment without its end"
    return f"unexpected character {text[offset]!r}"


def string_value(token: Token) -> str:
    """Returns the value of a STRING token."""
    return token.text[1:-1].replace("''", "'")
