"""What a user's program in a StoreJob can call (`spec.job: program`).

    from tallystick.spark.program import set_result

    set_result("3 late orders", orders=1200, late=3)

The message and the figures are then in `status.result` of the StoreJob. Elsewhere the call has no effect.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_NAME = re.compile("[A-Za-z][A-Za-z0-9_]{0,62}")
_MOST_FIGURES = 32
_MOST_CHARACTERS = 400


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """What the last call of `set_result` said."""

    message: str = ""
    figures: dict[str, int] = field(default_factory=dict)


_result = ProgramResult()


def set_result(message: str, **figures: int) -> None:
    """Sets the message (one line) and the figures of the result. A later call replaces them.

    ValueError: a figure is not a whole number of 64 bits, its name is too long, there are more than 32, or the message
    is longer than 400 characters.
    """
    if len(message) > _MOST_CHARACTERS:
        raise ValueError(f"the message has {len(message)} characters, at most {_MOST_CHARACTERS} are kept")
    if len(figures) > _MOST_FIGURES:
        raise ValueError(f"there are {len(figures)} figures, at most {_MOST_FIGURES} are kept")
    for name, value in figures.items():
        if not isinstance(value, int) or isinstance(value, bool) or not -(2**63) <= value < 2**63:
            raise ValueError(f"the figure {name} must be a whole number of 64 bits, not {value!r}")
        if not _NAME.fullmatch(name):
            raise ValueError(f"the name of the figure {name!r} must be at most 63 letters, digits and underscores")
    global _result
    _result = ProgramResult(" ".join(message.split()), dict(figures))


def result() -> ProgramResult:
    """Returns what the program has set."""
    return _result
