"""The page docs/security.md has the present rules of request codes."""

from pathlib import Path

from scripts import loaded

ROOT = Path(__file__).resolve().parents[2]


def test_the_table_of_request_codes_is_that_of_the_rules() -> None:
    page = loaded(ROOT / "docs" / "security_table.py")
    assert page.PAGE.read_text() == page.page(), "run docs/security_table.py"
