"""References in documents, docstrings and comments lead to something that exists.

Four kinds are checked: links between documents with their headings, paths of files, names of the code between
backticks, and targets of the Makefile. A name that is not in the repository's code belongs to another project:
`FOREIGN` lists it with its origin.
"""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOREIGN = {
    "RocketMQ": {
        "ACLUSTERPeerCluster", "BROKER_GET_FROM_DISK_NUMS", "BROKER_GET_FROM_DISK_SIZE", "BrokerConfig",
        "CommitLog.FlushRealTimeService", "CommitRealTimeService",
        "CommitLog", "DefaultMessageStore", "GROUP_GET_FROM_DISK_NUMS", "GROUP_GET_FROM_DISK_SIZE",
        "GetMessageStatus", "GroupCommitService", "MessageStoreConfig",
        "MixAll.object2Properties",
        "NamesrvConfig", "PutMessageStatus", "SelectMessageQueueByHash",
        "committedPosition", "flushedPosition", "pollNameServerInterval",
        "TlsSystemConfig", "recallMessage", "searchOffset", "setDelayTimeMs",
        "setDelayTimeSec", "setDeliverTimeMs", "viewMessage", "waitStoreMsgOK", "wrotePosition",
    },
    "Raft": {"commitIndex"},
    "Kafka": {"min.insync.replicas"},
    "Kubernetes": {
        "TALLY_SERVICE_HOST", "VERDICT", "VolumeSnapshot", "allowVolumeExpansion", "status.storedVersions",
    },
    "Java and Guava": {"String.hashCode", "asLong"},
    "Linux": { "df", "sendfile"},
    "Python": {"SSLObject.getpeercert", "asyncio.WriteTransport", "start_tls"},
    "TLS": {"close_notify"},
    "the environment": {"TALLY_TLS_SERVER_MODE"},
    "DLedger": {"flushFileInterval"},
    "pytest": {"conftest.py"},
    "Spark": {"mergeSchema", "timestamp_millis"},
}  # fmt: skip
NAME = re.compile(r"`{1,2}([A-Za-z_][A-Za-z0-9_.]*)(?:\(\))?`{1,2}")
WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
PATH = re.compile(r"(?<![\w/.*{<$-])((?:[\w.-]+/)*[\w-]+\.(?:py|pyi|rs|md|toml|yaml|sh|svg))(?![\w/*<{-])")
EXAMPLES = {
    "x.py": "tests/spark/cluster/test_processes.py",
    "chart.svg": "tests/benchmarks",
    "audit.yaml": "docs/spark-walkthrough.md",
}
"""Files that a reader or a test makes, by the text that names them."""
COMMANDS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]


@cache
def tracked() -> tuple[str, ...]:
    """Returns the paths of the files in the repository."""
    shown = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if shown.returncode:
        pytest.skip(f"needs a clone with its .git folder: {shown.stderr.strip()}")
    return tuple(path for path in shown.stdout.splitlines() if (ROOT / path).is_file())


COMMENT = {".py": "#", ".pyi": "#", ".rs": "//", ".md": None, ".svg": None}
"""What begins a comment; None: the whole file is prose. The other files count as code with `#`."""


@cache
def parts(path: str) -> tuple[str, str]:
    """Returns the prose of a file (its docstrings and comments) and its code.

    The parts are found by their delimiters: `#` in a string counts as prose, which can only hide a name of the code.
    """
    try:
        text = (ROOT / path).read_text()
    except UnicodeDecodeError:
        return "", ""
    suffix = Path(path).suffix
    begin = COMMENT.get(suffix, "#")
    if begin is None:
        return re.sub(r"```.*?```", "", text, flags=re.DOTALL), ""
    docstring = r'"""(.*?)"""|' if suffix in {".py", ".pyi"} else ""
    pattern = re.compile(rf"(?s:{docstring}{begin}[^\n]*)")
    prose = "\n".join(match[0] for match in pattern.finditer(text))
    return (prose if suffix in COMMENT else ""), pattern.sub(" ", text)


def prose(path: str) -> str:
    """Returns what a file says to readers. Blocks of code in documents are left out."""
    return parts(path)[0]


@cache
def names_of_the_code() -> frozenset[str]:
    """Returns each word of the repository's code and of its paths."""
    words = {word for path in tracked() for word in WORD.findall(f"{path} {parts(path)[1]}")}
    # `server_maxHandshakes` is the setting `tls.server.maxHandshakes`.
    return frozenset(words | {part for word in words for part in word.split("_") if not part.islower()})


FOLDERS = sorted({path.split("/")[0] for path in tracked()})


def texts(folder: str) -> list[str]:
    return [path for path in tracked() if path.split("/")[0] == folder and path != "tests/test_references.py"]


@pytest.mark.parametrize("folder", FOLDERS)
def test_names_between_backticks_are_in_the_code(folder: str) -> None:
    foreign = set().union(*FOREIGN.values())
    unknown = [
        f"{path} names `{name}`"
        for path in texts(folder)
        for name in NAME.findall(prose(path))
        if name not in foreign
        and not name.startswith("_")  # the rest of a metric's name
        and not name.endswith(("_", "..."))  # the beginning of several names
        and any(word and not word.isdigit() and word not in names_of_the_code() for word in name.split("."))
    ]
    assert unknown == [], "correct the name; if it belongs to another project, add it to FOREIGN"


@cache
def files_of_classes() -> dict[str, list[str]]:
    """Returns the Python files of the repository that define a class of each name. Parsing all of them takes long."""
    found: dict[str, list[str]] = {}
    for path in tracked():
        if path.endswith((".py", ".pyi")):
            for name in set(re.findall(r"^ *class (\w+)", (ROOT / path).read_text(), re.MULTILINE)):
                found.setdefault(name, []).append(path)
    return found


@cache
def classes(path: str) -> list[ast.ClassDef]:
    """Returns all classes of a file."""
    return [node for node in ast.walk(ast.parse((ROOT / path).read_text())) if isinstance(node, ast.ClassDef)]


@cache
def members(name: str) -> frozenset[str] | None:
    """Returns the members of a Python class of the repository; None if it or a base is not in it.

    Classes of one name count as one. An attribute counts if a method assigns it to `self`.
    """
    nodes = [node for path in files_of_classes().get(name, ()) for node in classes(path) if node.name == name]
    if not nodes:
        return None
    found = {member for node in nodes for member in _members_of(node)}
    bases = {ast.unparse(base).split("[")[0].split(".")[-1] for node in nodes for base in node.bases}
    for base in bases - {"ABC", "Protocol", "Generic", name}:
        above = members(base)
        if above is None:
            return None
        found |= above
    return frozenset(found)


def _members_of(node: ast.ClassDef) -> Iterator[str]:
    for each in ast.walk(node):
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield each.name
        elif isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store):
            yield each.id
        elif isinstance(each, ast.Attribute) and isinstance(each.value, ast.Name) and each.value.id == "self":
            yield each.attr


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_class_has_the_member_that_a_text_names(folder: str) -> None:
    """`Log.sync` is a reference to a member of the class `Log`, not only two words of the code."""
    foreign = set().union(*FOREIGN.values())
    wrong = [
        f"{path} names `{name}`"
        for path in texts(folder)
        for name in NAME.findall(prose(path))
        if name.count(".") == 1 and name not in foreign
        for owner, member in [name.split(".")]
        if member and (known := members(owner)) is not None and member not in known and member not in {"py", "rs"}
    ]
    assert wrong == []


def test_every_foreign_name_is_used() -> None:
    """The list does not keep names that no text has."""
    used = {name for path in tracked() for name in NAME.findall(prose(path))}
    assert [name for names in FOREIGN.values() for name in names if name not in used] == []


@pytest.mark.parametrize("folder", FOLDERS)
def test_paths_in_texts_exist(folder: str) -> None:
    paths = set(tracked())
    endings = {"/".join(path.split("/")[start:]) for path in paths for start in range(path.count("/") + 1)}
    wrong = [
        f"{path} names {found}"
        for path in texts(folder)
        if path != "CHANGELOG.md"  # it also tells of files that were removed
        for found in PATH.findall(prose(path))
        if found not in endings
        and found not in COMMANDS
        and not (ROOT / path).parent.joinpath(found).exists()
        and "shared/" not in found
        and found != "peer.sh"
        and not path.startswith(EXAMPLES.get(found, "-"))
    ]
    assert wrong == []


def headings(path: Path) -> set[str]:
    """Returns the anchors of a document's headings, as GitHub makes them."""
    found = re.findall(r"(?m)^#+ (.+)$", re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL))
    return {re.sub(r"[^\w\- ]", "", heading.replace("`", "")).strip().lower().replace(" ", "-") for heading in found}


@pytest.mark.parametrize("path", [path for path in tracked() if path.endswith(".md")])
def test_links_between_documents_resolve(path: str) -> None:
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]+))?[^)]*\)", (ROOT / path).read_text()):
        if "://" in target:
            continue
        file = (ROOT / path).parent / target if target else ROOT / path
        assert file.exists(), f"{path} links to {target}"
        if anchor and file.suffix == ".md":
            assert anchor in headings(file), f"{path} links to #{anchor}, which is no heading of {target or path}"


@pytest.mark.parametrize("folder", FOLDERS)
def test_targets_of_make_exist(folder: str) -> None:
    targets = set(re.findall(r"(?m)^([a-z0-9-]+):", (ROOT / "Makefile").read_text()))
    wrong = [
        f"{path} names make {target}"
        for path in texts(folder)
        for target in re.findall(r"`make ([a-z0-9-]+)", prose(path))
        if target not in targets
    ]
    assert wrong == []


def test_the_design_links_every_decision() -> None:
    text = (ROOT / "docs" / "design.md").read_text()
    assert [path for path in tracked() if path.startswith("docs/decisions/") and path[5:] not in text] == []


def test_the_design_names_every_thread() -> None:
    named = re.compile(r'\b(?:thread_name_prefix|Thread\([^)]*?name)=f?"([a-z-]+)')
    product = [
        path for path in tracked() if path.startswith(("node/", "operator/", "replication/", "spark/", "store/"))
    ]
    threads = {name for path in product for name in named.findall(parts(path)[1])}
    assert len(threads) > 5, "the threads are not found"
    text = (ROOT / "docs" / "design.md").read_text()
    assert [name for name in sorted(threads) if f"`{name}" not in text] == []
