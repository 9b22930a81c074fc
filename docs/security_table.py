"""Generates the table of request codes in security.md from the rules.

`python docs/security_table.py` writes it. A test compares the page with the rules.
"""

from __future__ import annotations

from pathlib import Path

from tallystick.node.access.needs import Rule
from tallystick.node.access.request_table import (
    ADMINISTRATION_OF_ROCKETMQ,
    BROKER,
    CHECKED_BY_ROCKETMQ,
    NAME_SERVER,
)
from tallystick.node.remoting.codes import RequestCode

PAGE = Path(__file__).with_name("security.md")
_MARK = "<!-- table of request codes -->\n"


def page() -> str:
    """Returns the text of the page with the present table."""
    head, mark, _ = PAGE.read_text().partition(_MARK)
    assert mark, "the page has a mark before its table"
    parts = (("Brokers", BROKER), ("Name servers", NAME_SERVER))
    return head + mark + "".join(f"\n### {title}\n\n{_table(rules)}" for title, rules in parts)


def _table(rules: dict[int, Rule]) -> str:
    lines = ["| code | request | needs | RocketMQ 4.8 |", "| --- | --- | --- | --- |"]
    for code, rule in sorted(rules.items()):
        lines.append(f"| {int(code)} | {RequestCode(code).name} | {rule.text} | {_of_rocketmq(code)} |")
    return "\n".join(lines) + "\n"


def _of_rocketmq(code: int) -> str:
    if code in CHECKED_BY_ROCKETMQ:
        return "yes"
    return "administrator" if code in ADMINISTRATION_OF_ROCKETMQ else "no"


if __name__ == "__main__":
    PAGE.write_text(page())
