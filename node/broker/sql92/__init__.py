"""RocketMQ's SQL92 message filters: `compile(text)` once, `matches(properties)` for each message.

    color = 'red' AND num BETWEEN 10 AND 20        region IN ('north', 'west') OR TAGS IS NOT NULL

`lexer` splits the text, `parser` has the grammar and the checks, `evaluate` computes the result. The store does not
depend on this package: it gets a function of a record's properties.
"""

from tallystick.node.broker.sql92.evaluate import Expression, compile
from tallystick.node.broker.sql92.lexer import MAX_LENGTH, Sql92Error
from tallystick.node.broker.sql92.parser import MAX_DEPTH

__all__ = ["MAX_DEPTH", "MAX_LENGTH", "Expression", "Sql92Error", "compile"]
