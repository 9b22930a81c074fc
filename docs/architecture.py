"""Draws architecture.svg: the folders of the product and what imports what.

`python docs/architecture.py` writes docs/architecture.svg. A test compares the drawing with the import graph.

A folder stands above the folders that it imports, each part in separate columns. Only those imports are drawn that
do not follow from others: if `node/http` imports `node/core` and that imports `store`, an import of `store` by
`node/http` has no line.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parent.parent
DRAWING = ROOT / "docs" / "architecture.svg"
KERNEL = "store/kernel"
PARTS = {
    "operator": "#326ce5",
    "spark": "#c2571a",
    "node": "#1a7f5a",
    "console": "#0e7490",
    "admin": "#4d7c0f",
    "replication": "#7a3fa0",
    "store": "#8a6d00",
    "client": "#a03a5e",
    "testing": "#64748b",
}
"""The parts from left to right, with the colour of each."""
BOX_WIDTH, BOX_HEIGHT, GAP_X, GAP_Y, MARGIN = 164, 42, 16, 44, 20

Graph = dict[str, set[str]]
"""The folders that each folder imports when its modules are loaded."""


def modules() -> dict[str, Path]:
    """Returns the product's modules by full name, with their paths from the root."""
    found = {f"tallystick.{KERNEL.replace('/kernel', '._kernel')}": Path(KERNEL, "lib.rs")}
    for part in PARTS:
        for path in sorted((ROOT / part).rglob("*.py")):
            relative = path.relative_to(ROOT)
            name = ".".join(("tallystick", *relative.with_suffix("").parts))
            found[name.removesuffix(".__init__")] = relative
    return found


def _only_for_types(tree: ast.AST) -> set[ast.AST]:
    """Returns what stands below `if TYPE_CHECKING`: it is not imported when the module is loaded."""
    blocks = (
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    )
    return {node for block in blocks for node in ast.walk(block)}


def imported(path: Path) -> Iterator[str]:
    """Yields the names that a module imports when it is loaded: of modules, or of what they contain."""
    tree = ast.parse(path.read_text())
    skipped = _only_for_types(tree)
    for node in ast.walk(tree):
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def graph() -> Graph:
    """Returns what each folder imports of the others."""
    known = modules()
    found: Graph = {path.parent.as_posix(): set() for path in known.values()}
    for path in known.values():
        if path.suffix == ".py":
            folders = {known[name].parent.as_posix() for name in imported(ROOT / path) if name in known}
            found[path.parent.as_posix()] |= folders - {path.parent.as_posix()}
    return found


def cycle(graph: Graph) -> list[str]:
    """Returns folders that import each other in a circle; empty if there is no such circle."""
    done: set[str] = set()

    def visit(folder: str, way: list[str]) -> list[str]:
        if folder in way:
            return [*way[way.index(folder) :], folder]
        if folder not in done:
            for other in sorted(graph[folder]):
                if found := visit(other, [*way, folder]):
                    return found
            done.add(folder)
        return []

    return next((found for folder in sorted(graph) if (found := visit(folder, []))), [])


def reduced(graph: Graph) -> Graph:
    """Returns the imports that do not follow from others."""
    reached: Graph = {}

    def below(folder: str) -> set[str]:
        if folder not in reached:
            reached[folder] = graph[folder].union(*(below(other) for other in graph[folder]))
        return reached[folder]

    return {
        folder: {other for other in others if not any(other in below(third) for third in others - {other})}
        for folder, others in graph.items()
    }


def rows(graph: Graph) -> list[list[str]]:
    """Returns the folders from the top row to the bottom one, each directly below the lowest one that imports it."""
    importers: Graph = {folder: {other for other in graph if folder in graph[other]} for folder in graph}
    depth: dict[str, int] = {}

    def of(folder: str) -> int:
        if folder not in depth:
            depth[folder] = 1 + max((of(other) for other in importers[folder]), default=-1)
        return depth[folder]

    found: dict[int, list[str]] = defaultdict(list)
    for folder in graph:
        found[of(folder)].append(folder)
    order = list(PARTS)
    return [sorted(found[row], key=lambda name: (order.index(_part(name)), name)) for row in sorted(found)]


def _part(folder: str) -> str:
    return folder.split("/")[0]


def draw() -> str:
    """Returns the drawing as SVG."""
    imports = graph()
    levels = rows(imports)
    counts: dict[str, int] = defaultdict(int)
    for path in modules().values():
        counts[path.parent.as_posix()] += path.suffix == ".py"
    counts[KERNEL] = len(list((ROOT / KERNEL / "src").rglob("*.rs")))
    columns = {part: max(sum(_part(name) == part for name in level) for level in levels) for part in PARTS}
    width = 2 * MARGIN + sum(columns.values()) * (BOX_WIDTH + GAP_X) - GAP_X
    height = 2 * MARGIN + len(levels) * (BOX_HEIGHT + GAP_Y) - GAP_Y
    places: dict[str, tuple[int, int]] = {}
    for row, level in enumerate(levels):
        left = MARGIN
        for part, slots in columns.items():
            mine = [name for name in level if _part(name) == part]
            inset = (slots - len(mine)) * (BOX_WIDTH + GAP_X) // 2
            for column, name in enumerate(mine):
                x = left + inset + column * (BOX_WIDTH + GAP_X)
                places[name] = x, MARGIN + row * (BOX_HEIGHT + GAP_Y)
            left += slots * (BOX_WIDTH + GAP_X)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        ' font-family="system-ui, sans-serif" role="img">',
        "<title>Folders of tallystick: each one stands above those that it imports</title>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for name, others in sorted(reduced(imports).items()):
        for other in sorted(others):
            lines.append(_line(places[name], places[other], PARTS[_part(name)]))
    lines += [_box(name, places[name], counts[name]) for name in sorted(places)]
    return "\n".join((*lines, "</svg>", ""))


def _line(upper: tuple[int, int], lower: tuple[int, int], colour: str) -> str:
    begin_x, begin_y = upper[0] + BOX_WIDTH // 2, upper[1] + BOX_HEIGHT
    end_x, end_y = lower[0] + BOX_WIDTH // 2, lower[1]
    middle = (begin_y + end_y) // 2
    path = f"M{begin_x} {begin_y} C{begin_x} {middle} {end_x} {middle} {end_x} {end_y}"
    return f'<path d="{path}" fill="none" stroke="{colour}" stroke-opacity="0.55" stroke-width="1.5"/>'


def _box(name: str, place: tuple[int, int], count: int) -> str:
    colour = PARTS[_part(name)]
    kind = "Rust files" if name == KERNEL else "modules" if count != 1 else "module"
    x, y = place
    return (
        f'<rect x="{x}" y="{y}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="6" fill="#ffffff" stroke="{colour}"'
        f' stroke-width="1.5"/><text x="{x + BOX_WIDTH // 2}" y="{y + 19}" font-size="13" text-anchor="middle"'
        f' fill="#1b1b1b">{escape(name)}</text><text x="{x + BOX_WIDTH // 2}" y="{y + 35}" font-size="11"'
        f' text-anchor="middle" fill="#5c5c5c">{count} {kind}</text>'
    )


if __name__ == "__main__":
    DRAWING.write_text(draw())
