"""Texts use plain technical English: words that readers have to decode stay out of the texts that are done.

To add a folder or a file, rewrite its texts and append it to `DONE`. To ban a word, append it to `BANNED`
with its replacement.
"""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
BANNED = {
    r"whoever": "name the subject: the client, the user, the caller",
    r"anew": "again, create a new one",
    r"(?<!there )(?:is|are|was) (?-i:none)": "is not valid, does not exist, is absent",
    r"of itself": "name the subject",
    r"bears?": "tolerates, can lose",
    r"mend(?:s|ed)?": "repair, correct",
    r"has not the": "does not have the",
    r"is no more": "is no longer",
    r"looks? after": "manages, watches",
    r"nobody (?:leads|knows|says|hears|asked)": "no member, unknown",
    r"of its own": "its own, separate",
    r"away with": "without, remove",
    r"a file a thing": "one file per module",
}
"""Regular expressions of words, and what to write instead."""
DONE = (
    "README.md",
    "benchmarks/README.md",
    "charts",
    "crds",
    "docs/benchmarks.md",
    "docs/compatibility.md",
    "docs/design.md",
    "docs/kubernetes",
    "docs/operation.md",
    "docs/reliability.md",
    "docs/spark.md",
    "e2e/README.md",
    "e2e/kind",
    "node/README.md",
    "operator",
    "replication/README.md",
    "spark/README.md",
    "store/README.md",
    "tests/README.md",
    "tests/charts",
    "tests/crds",
    "tests/golden/README.md",
    "tests/operator",
)
"""Folders and files without banned words. Lines of generated files count as well: correct their source."""
SUFFIXES = frozenset({".json", ".md", ".py", ".sh", ".tpl", ".txt", ".yaml"})


def files(name: str) -> list[Path]:
    """Returns the texts in a folder, or the file itself."""
    if (ROOT / name).is_file():
        return [ROOT / name]
    found = [path for path in (ROOT / name).rglob("*") if path.suffix in SUFFIXES and path.is_file()]
    return sorted(path for path in found if "__pycache__" not in path.parts)


def banned(text: str) -> list[tuple[int, str]]:
    """Number and word of each line with a banned word. A word may be broken over two lines."""
    flat = re.sub(r"\s", " ", text)
    found = [match for word in BANNED for match in re.finditer(rf"\b{word}\b", flat, re.IGNORECASE)]
    return sorted((text.count("\n", 0, match.start()) + 1, match.group()) for match in found)


@pytest.mark.parametrize("name", DONE)
def test_no_text_has_a_banned_word(name: str) -> None:
    assert files(name) != []
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {word}" for path in files(name) for line, word in banned(path.read_text())
    ]
    assert wrong == []


def test_banned_words_are_found() -> None:
    assert banned("Whoever asks.\nThe group is\nnone. It bears it.") == [(1, "Whoever"), (2, "is none"), (3, "bears")]
    assert banned("Somebody ended the bearing of a dependent.") == []


@pytest.mark.parametrize("word", BANNED)
def test_banned_words_have_a_replacement(word: str) -> None:
    assert BANNED[word]
