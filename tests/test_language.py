"""Texts use plain technical English: words that readers have to decode stay out of the texts that are done.

To add a folder or a file, rewrite its texts and append it to `DONE`. To ban a word, append it to `BANNED`
with its replacement.
"""

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest

SELF = Path(__file__).resolve()
ROOT = SELF.parent.parent
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
    r"(?:any|every|some)body": "name the subject: a user, a process, every member",
    r"of its own(?! (?:term|tests))": "its own, separate",
    r"away with": "without, remove",
    r"a file a thing": "one file per module",
    r"comma between": "separated by commas",
}
"""Regular expressions of words, and what to write instead."""
BANNED_IN_THE_PRODUCT = {
    r"any more": "no longer",
    r"nobody": "name the subject: no member, no client",
    r"(?:goes|went) on": "continues, continued",
    r"under way": "in progress",
    r"in vain": "without success",
    r"for ever": "forever, without limit",
    r"(?:is|are|was|were|be) built again": "rebuilt",
    r"belongs into": "belongs in",
    r"no voter yet": "not a voter yet",
}
"""The same, except in the folders of `ALLOWED`, which may still have some of these words."""
ALLOWED = {"e2e": {"nobody"}, "store/kernel": set(BANNED_IN_THE_PRODUCT), "tests": {"nobody"}}
DONE = (
    "CONTRIBUTING.md",
    "README.md",
    "admin",
    "benchmarks",
    "charts",
    "client",
    "console",
    "crds",
    "docs/backup.md",
    "docs/benchmarks.md",
    "docs/client.md",
    "docs/compatibility.md",
    "docs/console.md",
    "docs/decisions",
    "docs/design.md",
    "docs/glossary.md",
    "docs/kubernetes",
    "docs/metrics.md",
    "docs/operation.md",
    "docs/reliability.md",
    "docs/runbooks",
    "docs/security.md",
    "docs/settings.md",
    "docs/spark.md",
    "e2e",
    "node",
    "operator",
    "replication",
    "spark",
    "store",
    "tests",
)
"""Folders and files without banned words. Lines of generated files count as well: correct their source."""
SUFFIXES = frozenset({".json", ".md", ".py", ".rs", ".sh", ".tpl", ".txt", ".yaml"})


CODE = {
    ".py": re.compile(r"#[^\n]*|\"{3}.*?\"{3}|'{3}.*?'{3}|\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*'", re.DOTALL),
    ".rs": re.compile(r"//[^\n]*|\"(?:[^\"\\]|\\.)*\"", re.DOTALL),
}
"""Comments and strings of each language: the texts among the code. Names in the code are not texts."""
NAME = re.compile(r"`[^`\n]*`")
"""A name of the code in a text."""


def files(name: str) -> list[Path]:
    """Returns the texts in a folder, or the file itself."""
    if (ROOT / name).is_file():
        return [ROOT / name]
    found = [path for path in (ROOT / name).rglob("*") if path.suffix in SUFFIXES and path.is_file()]
    return sorted(path for path in found if path != SELF and not {"__pycache__", "target"} & set(path.parts))


def _blank(match: re.Match[str]) -> str:
    return re.sub(r"\S", " ", match.group())


def texts(path: Path) -> str:
    """The texts of a file, each in its line. In code these are comments and strings, without the names in them."""
    text, last, parts = path.read_text(), 0, []
    if path.suffix not in CODE:
        return text
    for match in CODE[path.suffix].finditer(text):
        parts += [re.sub(r"[^\n]", " ", text[last : match.start()]), NAME.sub(_blank, match.group())]
        last = match.end()
    return "".join(parts)


@cache
def _one_of(words: frozenset[str]) -> re.Pattern[str]:
    return re.compile(rf"\b(?:{'|'.join(sorted(words))})\b", re.IGNORECASE)


def banned(text: str, words: Iterable[str] = BANNED) -> list[tuple[int, str]]:
    """Number and word of each line with a banned word. A word may be broken over two lines."""
    found = list(_one_of(frozenset(words)).finditer(re.sub(r"\s", " ", text)))
    return sorted((text.count("\n", 0, match.start()) + 1, match.group()) for match in found)


def banned_in(path: Path) -> Iterable[str]:
    """Returns the banned words of a file's folder."""
    allowed = [words for name, words in ALLOWED.items() if path.is_relative_to(ROOT / name)]
    return (BANNED | BANNED_IN_THE_PRODUCT).keys() - set().union(*allowed)


@pytest.mark.parametrize("name", DONE)
def test_no_text_has_a_banned_word(name: str) -> None:
    assert files(name) != []
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {word}"
        for path in files(name)
        for line, word in banned(texts(path), banned_in(path))
    ]
    assert wrong == [], "BANNED names a replacement for each word"


def test_banned_words_are_found() -> None:
    assert banned("Whoever asks.\nThe group is\nnone. It bears it.") == [(1, "Whoever"), (2, "is none"), (3, "bears")]
    assert banned("The body ended the bearing of a dependent.") == []


def test_names_in_code_are_no_texts(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text('"""Whoever calls `mend`."""\nmend = anew(1)  # made anew\nlog("it\\"s mended", f"{mend}")\n')
    assert banned(texts(path)) == [(1, "Whoever"), (2, "anew"), (3, "mend"), (3, "mended")]
    path = tmp_path / "module.rs"
    path.write_text('/// Whoever calls `mend`.\nlet mend = anew("none is\nmended"); // anew\n')
    assert banned(texts(path)) == [(1, "Whoever"), (3, "anew"), (3, "mended")]


@pytest.mark.parametrize("word", BANNED | BANNED_IN_THE_PRODUCT)
def test_banned_words_have_a_replacement(word: str) -> None:
    assert (BANNED | BANNED_IN_THE_PRODUCT)[word]


def test_a_folder_may_still_have_words() -> None:
    text = "Nobody asks. The load goes on."
    assert banned(text, banned_in(ROOT / "node" / "x.py")) == [(1, "Nobody"), (1, "goes on")]
    assert banned(text, banned_in(ROOT / "tests" / "x.py")) == [(1, "goes on")]
    assert banned(text, banned_in(ROOT / "store" / "kernel" / "src" / "x.rs")) == []
