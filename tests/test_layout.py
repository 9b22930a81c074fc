"""How the repository is laid out: what may import what, and what is packaged."""

import ast
import importlib.metadata
import inspect
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import scheduling
from scripts import loaded

from tallystick.store import _kernel

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
CLIENT = tomllib.loads((ROOT / "client" / "pyproject.toml").read_text())
"""The client is a separate wheel."""
CLIENT_PACKAGES: list[str] = CLIENT["tool"]["setuptools"]["packages"]
PACKAGES: list[str] = PROJECT["tool"]["setuptools"]["packages"] + CLIENT_PACKAGES
PARTS = sorted({name.split(".")[1] for name in PACKAGES})
# What a part may import of the others. Imports point one way: code for bytes does not import code for processes.
MAY_IMPORT: dict[str, set[str]] = {
    "client": set(),  # applications install it without the other parts
    "admin": {"client"},  # it asks brokers over the network, also those of RocketMQ
    "console": {"admin", "client"},
    "store": {"client"},  # the formats that both know, see below
    "replication": {"store"},
    "node": {"admin", "client", "console", "replication", "store"},
    "spark": {"node", "store"},  # it reads volumes; see SPARK_MAY_USE_THE_NODE
    "operator": set(),  # it knows manifests and the nodes' HTTP, never bytes
}
# What a folder of the operator may import of its others. Jobs and topics know a cluster by its resource alone.
OPERATOR_MAY_IMPORT: dict[str, set[str]] = {
    "core": set(),
    "backups": {"core"},
    "clusters": {"core", "security"},
    "jobs": {"core"},
    "schedules": {"backups", "core"},  # it creates Backups, and reads how they ended
    "security": {"core"},
    "topics": {"core"},
    "users": {"core"},
    "": {"backups", "clusters", "core", "jobs", "schedules", "topics", "users"},
}
RECONCILERS = ("backups", "clusters", "jobs", "schedules", "topics", "users")
STAGES = ("spec", "observed", "observe", "decide", "carry_out", "status", "reconcile")
"""The files of a reconciler, in the order in which a pass uses them."""
MODULES = sorted(path for part in PARTS for path in (ROOT / part).rglob("*.py"))


def imported(path: Path) -> Iterator[str]:
    """Full names of the modules that a file imports anywhere in it, also only for types."""
    package = ".".join(("tallystick", *path.relative_to(ROOT).parent.parts))
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package.rsplit(".", node.level - 1)[0] if node.level else ""
            yield ".".join(filter(None, (base, node.module)))


@pytest.mark.parametrize("part", PARTS)
def test_imports_point_one_way(part: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in MODULES
        if path.relative_to(ROOT).parts[0] == part
        for name in imported(path)
        if name.startswith("tallystick")
        and name.split(".")[1:2] != [part]
        and name.split(".")[1] not in MAY_IMPORT[part]
    ]
    assert wrong == []


def test_servers_use_only_the_formats_of_the_client() -> None:
    """`client/wire` has what both sides of a connection know, without I/O. Only the node's commands are clients."""
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in MODULES
        if path.relative_to(ROOT).parts[0] in ("node", "store")
        and path.relative_to(ROOT).parts[:2] != ("node", "commands")
        for name in imported(path)
        if name.startswith("tallystick.client") and not name.startswith("tallystick.client.wire")
    ]
    assert wrong == []


def test_the_formats_of_the_client_load_nothing_else() -> None:
    """A broker that imports a codec does not load connections, producers and consumers."""
    code = (
        "import sys, tallystick.client.wire.codec, tallystick.client.wire.signatures\n"
        "print([name for name in sys.modules if name.startswith('tallystick.client.') "
        "and not name.startswith('tallystick.client.wire')], 'asyncio' in sys.modules)"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert shown.stdout == "[] False\n", shown.stderr


# The reader and the jobs read files. These modules of Spark's part use parts of the node.
SPARK_MAY_USE_THE_NODE = {
    "spark/backup_store.py": ("node.backup",),
    "spark/outputs_s3.py": ("node.backup.s3",),
    "spark/name_server.py": ("node.core.client", "node.remoting"),
    "spark/producer.py": ("node.core.client", "node.remoting"),
    "spark/protocol_access.py": ("node.access", "node.remoting"),
}


def test_spark_uses_the_node_only_for_backups_and_the_protocol_of_brokers() -> None:
    wrong = [
        f"{module} imports {name}"
        for path in MODULES
        if (module := path.relative_to(ROOT).as_posix()).startswith("spark/")
        for name in imported(path)
        if name.startswith("tallystick.node")
        and not name.removeprefix("tallystick.").startswith(SPARK_MAY_USE_THE_NODE.get(module, ()) or ("-",))
    ]
    assert wrong == []


def folder_of_operator(name: str) -> str:
    """Returns the folder of a module of the operator, such as `jobs`; empty: its root."""
    found = name.split(".")[2:3]
    return found[0] if found and found[0] in OPERATOR_MAY_IMPORT else ""


@pytest.mark.parametrize("folder", sorted(OPERATOR_MAY_IMPORT))
def test_imports_in_the_operator_point_one_way(folder: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in sorted((ROOT / "operator" / folder).glob("*.py"))
        for name in imported(path)
        if name.startswith("tallystick.operator")
        and folder_of_operator(name) not in {folder, *OPERATOR_MAY_IMPORT[folder]}
    ]
    assert wrong == []


def test_every_folder_of_the_operator_has_a_rule() -> None:
    folders = {path.parent.relative_to(ROOT / "operator").as_posix() for path in (ROOT / "operator").rglob("*.py")}
    assert {folder.removeprefix(".") for folder in folders} == set(OPERATOR_MAY_IMPORT)


@pytest.mark.parametrize("folder", RECONCILERS)
def test_reconcilers_have_the_same_files(folder: str) -> None:
    assert [stage for stage in STAGES if not (ROOT / "operator" / folder / f"{stage}.py").is_file()] == []


def test_folders_do_not_import_each_other_in_a_circle() -> None:
    architecture = loaded(ROOT / "docs" / "architecture.py")
    assert architecture.cycle(architecture.graph()) == []
    assert architecture.cycle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]


def test_the_drawing_is_of_this_import_graph() -> None:
    architecture = loaded(ROOT / "docs" / "architecture.py")
    assert architecture.DRAWING.read_text() == architecture.draw(), "run `make architecture`"


LOGGERS = {
    "store": ("tallystick.store",),
    "replication": ("tallystick.replication",),
    "node": (
        "tallystick",
        "tallystick.broker",
        "tallystick.http",
        "tallystick.nameserver",
        "tallystick.access",
        "tallystick.tls",
    ),
}
"""The loggers of a part. A name may have one more component for a service: `tallystick.broker.pull`."""


@pytest.mark.parametrize("part", LOGGERS)
def test_loggers_have_the_names_of_their_part(part: str) -> None:
    found = {
        (path.relative_to(ROOT).as_posix(), name)
        for path in MODULES
        if path.relative_to(ROOT).parts[0] == part
        for name in re.findall(r'getLogger\("([^"]+)"\)', path.read_text())
    }
    assert found, "the loggers are not found"
    allowed = re.compile("|".join(rf"{name}(\.[a-z]+)?" if "." in name else name for name in LOGGERS[part]))
    wrong = [each for each in found if not allowed.fullmatch(each[1])]
    assert wrong == []


def test_the_wall_clock_is_read_in_one_place() -> None:
    """`store/clock.py` has it: a test and the simulation can then set it."""
    wrong = [
        path.relative_to(ROOT).as_posix()
        for path in MODULES
        if path.relative_to(ROOT).parts[0] in LOGGERS and re.search(r"\btime\.time(_ns)?\(", path.read_text())
    ]
    assert wrong == ["store/clock.py"]


def test_the_kernel_knows_no_other_part() -> None:
    """It is handed buffers and paths: it imports no module of Python's side, starts no thread, opens no socket."""
    for path in (ROOT / "store" / "kernel" / "src").rglob("*.rs"):
        code = re.sub(r"(?m)^#\[cfg\(test\)\].*", "", path.read_text(), flags=re.DOTALL)
        if path.name == "tests.rs":
            continue
        for word in (
            "py.import",
            "PyModule::import",
            "tallystick.node",
            "std::net",
            "thread::spawn",
            "thread::Builder",
        ):
            assert word not in code, f"{path.relative_to(ROOT)}: {word}"


def test_every_folder_with_modules_is_packaged() -> None:
    folders = {".".join(("tallystick", *path.relative_to(ROOT).parent.parts)) for path in MODULES}
    assert sorted(folders) == sorted(PACKAGES)
    mine = PROJECT["tool"]["setuptools"]["package-dir"]
    assert mine == {f"tallystick.{part}": part for part in PARTS if part != "client"}
    assert CLIENT["tool"]["setuptools"]["package-dir"] == {"tallystick.client": "."}
    assert sorted(MAY_IMPORT) == PARTS


def test_few_parts_have_an_init_module() -> None:
    """With one, a part named like a standard module would shadow it for every Python started in the root."""
    with_code = sorted(path.parent.name for path in ROOT.glob("*/__init__.py"))
    assert with_code == ["admin", "client"], "no standard module has these names"
    assert [path for part in PARTS for path in (ROOT / part).rglob("test_*.py")] == [], "tests live under tests/"


def test_standard_modules_are_the_standard_ones() -> None:
    """Seen from the root with -c and -m, which put it first on the path, where a folder `operator` is to stand."""
    code = "import operator, collections; operator.itemgetter; print(operator.__file__)"
    shown = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert shown.returncode == 0, shown.stderr
    assert str(ROOT) not in shown.stdout
    pytest_itself = [sys.executable, "-m", "pytest", "--version"]
    assert subprocess.run(pytest_itself, cwd=ROOT, capture_output=True, timeout=60).returncode == 0


def test_the_kernel_is_built_with_optimisation() -> None:
    """Unless it is told, an editable install builds for debugging, and benchmarks would measure that."""
    (extension,) = PROJECT["tool"]["setuptools-rust"]["ext-modules"]
    assert extension["target"] == "tallystick.store._kernel"
    assert extension["debug"] is False
    assert not extension.get("optional", False)
    cargo = tomllib.loads((ROOT / "store" / "kernel" / "Cargo.toml").read_text())
    assert cargo["profile"]["release"].get("opt-level", 3) == 3


def test_every_module_begins_with_its_theory() -> None:
    assert [str(path.relative_to(ROOT)) for path in MODULES if not ast.get_docstring(ast.parse(path.read_text()))] == []


METHODS_MOST = 40
LINES_MOST = 70
LARGE_CLASSES = ("Raft",)  # one machine, which is read as a whole


def too_large(tree: ast.Module) -> Iterator[str]:
    """Classes with too many methods and functions with too many lines, except the named classes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name not in LARGE_CLASSES:
            methods = sum(isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) for each in node.body)
            if methods > METHODS_MOST:
                yield f"{node.name} has {methods} methods"
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > LINES_MOST:
                yield f"{node.name} has {lines} lines"


def test_classes_and_functions_are_small() -> None:
    found = [f"{path.relative_to(ROOT)}: {each}" for path in MODULES for each in too_large(ast.parse(path.read_text()))]
    assert found == []


def test_a_large_class_and_a_large_function_are_found() -> None:
    methods = "".join(f"    def f{number}(self): ...\n" for number in range(METHODS_MOST))
    lines = "def g():\n" + "    pass\n" * (LINES_MOST - 1)
    assert list(too_large(ast.parse(f"class A:\n{methods}{lines}"))) == []
    assert list(too_large(ast.parse(f"class A:\n{methods}    async def g(self): ...\n"))) == ["A has 41 methods"]
    assert list(too_large(ast.parse(f"{lines}    pass\n"))) == ["g has 71 lines"]


def test_the_readme_names_folders_that_exist() -> None:
    text = (ROOT / "README.md").read_text()
    for folder in re.findall(r"^\| `([a-z/]+)/` \|", text, re.MULTILINE):
        assert (ROOT / folder).is_dir(), folder


# -- the typed surface of the kernel -----------------------------------------------------------------------------------


def stub() -> dict[str, ast.stmt]:
    """The classes and functions of the stub. A class that is only a type counts as a part of its base: the kernel has
    one class for both."""
    tree = ast.parse((ROOT / "store" / "_kernel.pyi").read_text())
    found = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    for name, node in list(found.items()):
        if "type_check_only" in map(ast.unparse, node.decorator_list):
            assert isinstance(node, ast.ClassDef)
            base = found[ast.unparse(node.bases[0])]
            assert isinstance(base, ast.ClassDef)
            base.body += node.body
            del found[name]
    return dict(found)


def exported() -> dict[str, object]:
    return {name: value for name, value in vars(_kernel).items() if not name.startswith("_")}


def parameters(node: ast.FunctionDef) -> list[tuple[str, bool]]:
    """Names of the parameters without self, and whether they are given by name only."""
    arguments = node.args
    positional = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args)]
    by_name = [(argument.arg, True) for argument in arguments.kwonlyargs]
    return [(name, False) for name in positional if name != "self"] + by_name


def runtime_parameters(function: object) -> list[tuple[str, bool]]:
    found = inspect.signature(function).parameters.values()  # type: ignore[arg-type]
    return [(item.name, item.kind is item.KEYWORD_ONLY) for item in found if item.name != "self"]


def test_the_kernel_and_its_stub_name_the_same_things() -> None:
    assert set(exported()) == set(stub())


PROTOCOLS = {"__len__", "__getitem__", "__iter__"}
"""What a sequence has: the runtime gives these methods no signature."""


@pytest.mark.parametrize("name", sorted(stub()))
def test_the_stub_is_true(name: str) -> None:
    node, value = stub()[name], exported()[name]
    if isinstance(node, ast.FunctionDef):
        assert parameters(node) == runtime_parameters(value)
        return
    assert isinstance(node, ast.ClassDef) and isinstance(value, type)
    methods = {
        item.name: item for item in node.body if isinstance(item, ast.FunctionDef) and item.name not in PROTOCOLS
    }
    fields = {
        item.target.id for item in node.body if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
    }
    if issubclass(value, tuple):
        targets = [ast.unparse(item.target) for item in node.body if isinstance(item, ast.AnnAssign)]
        assert targets == list(value.__match_args__)  # type: ignore[attr-defined]
    elif not issubclass(value, Exception):  # what an exception carries is set on each one
        assert set(methods) - {"__init__"} | fields == {each for each in vars(value) if not each.startswith("__")}
    for method, definition in methods.items():
        if any(isinstance(mark, ast.Name) and mark.id == "property" for mark in definition.decorator_list):
            assert not callable(vars(value)[method]), f"{name}.{method} is a method"
        else:
            real = value if method == "__init__" else getattr(value, method)
            assert parameters(definition) == runtime_parameters(real), f"{name}.{method}"


def test_the_installed_package_is_this_one() -> None:
    assert importlib.metadata.version("tallystick") == PROJECT["project"]["version"]
    assert _kernel.__file__ is not None and Path(_kernel.__file__).parent == ROOT / "store"


def test_the_slow_files_exist() -> None:
    assert len(scheduling.SLOW) > 20
    assert [name for name in sorted(scheduling.SLOW) if not (ROOT / name).is_file()] == []
