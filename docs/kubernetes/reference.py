"""Generates crd-reference.md from the schemas in `crds/`: the fields, types, defaults and rules of each kind.

python docs/kubernetes/reference.py            writes docs/kubernetes/crd-reference.md
python docs/kubernetes/reference.py --check    exits with status 1 if the page differs from the schemas
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

ROOT = Path(__file__).resolve().parents[2]
PAGE = Path(__file__).with_name("crd-reference.md")
KINDS = ("brokercluster", "brokernode", "topic", "consumergroup", "user", "storejob", "backup", "scheduledbackup")
_CONDITION = {"type", "status", "reason", "message", "lastTransitionTime"}

Schema = dict[str, Any]


class Row(NamedTuple):
    """One field: its path (`storage.size`, `groups[].name`) and the other columns of the table."""

    path: str
    kind: str
    default: str
    text: str


def rows(schema: Schema, path: str = "") -> Iterator[Row]:
    """Yields the fields below a schema in the order of the file, parents first."""
    required = set(schema.get("required", ()))
    for name, field in schema.get("properties", {}).items():
        here = f"{path}{name}"
        text = _one_line(field["description"])
        default = "required" if name in required and "default" not in field else _default(field)
        yield Row(here, _type(field), default, text)
        yield from _inside(field, here)


def _inside(field: Schema, path: str) -> Iterator[Row]:
    if "items" not in field:
        yield from rows(field, f"{path}.")
    elif not _CONDITION.issubset(field["items"].get("properties", {})):  # conditions have the standard structure
        yield from rows(field["items"], f"{path}[].")


def _default(field: Schema) -> str:
    if "default" not in field or field["default"] in ({}, ""):
        return ""
    value = field["default"]
    return f"`{value}`" if isinstance(value, str) else f"`{json.dumps(value)}`"


def _type(field: Schema) -> str:
    """Returns the type with its bounds, such as `integer, 1 to 5`."""
    if "enum" in field:
        return "one of " + ", ".join(f"`{value}`" for value in field["enum"])
    if field.get("x-kubernetes-int-or-string"):
        return "quantity"
    if "items" in field:
        return f"list of {_plural(_type(field['items']))}"
    if "additionalProperties" in field:
        return f"map to {_type(field['additionalProperties'])}"
    kind: str = field["type"]
    if kind == "integer":
        low, high = field.get("minimum"), field.get("maximum")
        if low is not None and high is not None:
            return f"integer, {low} to {high}"
        return f"integer, from {low}" if low is not None else "integer"
    if kind == "string":
        longest = field.get("maxLength")
        return "time" if field.get("format") == "date-time" else f"string, up to {longest}" if longest else "string"
    return kind


def _plural(kind: str) -> str:
    head, comma, rest = kind.partition(",")
    return f"{head}s{comma}{rest}" if head in ("object", "string", "integer") else kind


def rules(schema: Schema, path: str = "") -> Iterator[tuple[str, str]]:
    """Yields path and message of every CEL rule in a schema and below it."""
    for rule in schema.get("x-kubernetes-validations", ()):
        yield path or "the object", rule["message"]
    for name, field in schema.get("properties", {}).items():
        yield from rules(field, f"{path}.{name}" if path else name)
    for key in ("items", "additionalProperties"):
        if key in schema:
            yield from rules(schema[key], f"{path}[]")


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _escaped(text: str) -> str:
    """Escapes text for a cell of a Markdown table."""
    return text.replace("<", "&lt;").replace("|", r"\|")


def _table(found: list[Row]) -> Iterator[str]:
    yield "| field | type | default | meaning |"
    yield "| --- | --- | --- | --- |"
    for row in found:
        yield f"| `{row.path}` | {row.kind} | {row.default} | {_escaped(row.text)} |"


def section(definition: Schema) -> Iterator[str]:
    """Yields the lines of the section of one kind."""
    names = definition["spec"]["names"]
    (version,) = definition["spec"]["versions"]
    schema = version["schema"]["openAPIV3Schema"]
    yield f"## {names['kind']}"
    yield ""
    yield _escaped(_one_line(schema["description"]))
    yield ""
    also = ", ".join(f"`{name}`" for name in names["shortNames"])
    columns = [column["name"].upper() for column in version["additionalPrinterColumns"]]
    wide = {column["name"].upper() for column in version["additionalPrinterColumns"] if column.get("priority")}
    yield f"- `kubectl get {names['plural']}`, short {also}; in the categories {', '.join(names['categories'])}"
    shown = ", ".join(name for name in columns if name not in wide)
    yield f"- columns: {shown}; with `-o wide` also {', '.join(name for name in columns if name in wide)}"
    if "scale" in version["subresources"]:
        path = version["subresources"]["scale"]["specReplicasPath"]
        yield f"- `kubectl scale {names['singular']} NAME --replicas=N` sets `{path}`"
    for part in ("spec", "status"):
        yield ""
        yield f"### {names['kind']}.{part}"
        yield ""
        yield _escaped(_one_line(schema["properties"][part]["description"]))
        yield ""
        yield from _table(list(rows(schema["properties"][part])))
    yield ""
    yield f"### {names['kind']} validation rules"
    yield ""
    yield "The API server rejects values of a wrong type or out of range, and reports these errors:"
    yield ""
    yield from (f"- {_escaped(message)}" for _, message in rules(schema))
    yield ""


def page() -> str:
    """Returns the content of the page."""
    definitions = [yaml.safe_load((ROOT / "crds" / f"{kind}.yaml").read_text()) for kind in KINDS]
    lines = [
        "# API reference",
        "",
        "<!-- generated by docs/kubernetes/reference.py (`make crd-reference`) from crds/*.yaml: edit those files -->",
        "",
        "API group `tallystick.dev`, version `v1beta1`. All kinds are namespaced. `kubectl explain",
        "brokercluster.spec.storage` prints the same text. Examples are in [crds/examples](../../crds/examples).",
        "",
        'Users set these annotations: `tallystick.dev/paused: "true"` on a BrokerCluster, `tallystick.dev/replace:',
        '"true"` on a BrokerNode, and `tallystick.dev/adopt: "true"` on a Topic or ConsumerGroup. The sections of',
        "these kinds describe the effect.",
        "`conditions` have the standard Kubernetes structure.",
        "",
    ]
    for definition in definitions:
        lines += section(definition)
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description="generate the API reference from the schemas in crds/")
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit with status 1 if the page is out of date"
    )
    wanted = page()
    if parser.parse_args().check:
        return int(not PAGE.exists() or PAGE.read_text() != wanted)
    PAGE.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
