"""A rule that was broken."""

from __future__ import annotations


class ViolationError(AssertionError):
    """`rule` is its name; the rules stand in `oracle` and `tables`."""

    def __init__(self, rule: str, text: str) -> None:
        super().__init__(f"{rule}: {text}")
        self.rule = rule
