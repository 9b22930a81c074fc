"""Each input of the corpus goes through its target. `make fuzz` finds new ones."""

from pathlib import Path

import pytest

from .targets import CORPUS, TARGETS

INPUTS = [(path.parent.name, path) for path in sorted(CORPUS.glob("*/*"))]


@pytest.mark.parametrize(("target", "path"), INPUTS, ids=[f"{target}-{path.name}" for target, path in INPUTS])
def test_an_input_of_the_corpus(target: str, path: Path) -> None:
    TARGETS[target](path.read_bytes())


def test_each_target_has_inputs() -> None:
    assert {target for target, _ in INPUTS} == set(TARGETS)
