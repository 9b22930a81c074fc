"""The page docs/security.md has the present rules of request codes."""

import re
from pathlib import Path

from scripts import loaded

from tallystick.node.access.request_table import BROKER, NAME_SERVER

ROOT = Path(__file__).resolve().parents[2]


def test_the_table_of_request_codes_is_that_of_the_rules() -> None:
    page = loaded(ROOT / "docs" / "security_table.py")
    assert page.PAGE.read_text() == page.page(), "run docs/security_table.py"


def test_the_matrix_has_each_request_code() -> None:
    page = (ROOT / "docs" / "access-matrix.md").read_text()
    of_brokers, of_name_servers = page.split("## Name servers")
    for part, rules in ((of_brokers, BROKER), (of_name_servers, NAME_SERVER)):
        codes = [int(code) for code in re.findall(r"^\| (\d+) \|", part, re.MULTILINE)]
        assert codes == sorted(int(code) for code in rules), "run `make acl-matrix WRITE=docs/access-matrix.md`"
