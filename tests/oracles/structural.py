"""What Kubernetes asks of the schema of a custom resource, as far as it can be told without an API server.

`problems(schema)` lists what breaks the rules of structural schemas, lists and defaults, and our own: every field is
described, and everything in `spec` is bounded, so that the cost of CEL rules is. `defaulted(schema, value)` and
`violations(schema, value)` do what the API server does with an object before it looks at CEL rules.

Source: Kubernetes documentation, "Extend the Kubernetes API with CustomResourceDefinitions" (structural schemas,
defaulting, merge strategies).
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from jsonschema import Draft202012Validator, FormatChecker

Schema = dict[str, Any]

_TYPES = {"object", "array", "string", "integer", "number", "boolean"}
_SCALARS = _TYPES - {"object", "array"}
_KEYWORDS = {
    *("type", "description", "default", "enum", "format", "minimum", "maximum", "minLength", "maxLength", "pattern"),
    *("items", "minItems", "maxItems", "properties", "required", "additionalProperties", "maxProperties", "anyOf"),
    *("x-kubernetes-validations", "x-kubernetes-list-type", "x-kubernetes-list-map-keys"),
    *("x-kubernetes-int-or-string", "x-kubernetes-preserve-unknown-fields"),
}
_OF_OBJECTS = {"properties", "required", "additionalProperties", "maxProperties"}
_OF_LISTS = {"items", "minItems", "maxItems", "x-kubernetes-list-type", "x-kubernetes-list-map-keys"}
_INT_OR_STRING = [{"type": "integer"}, {"type": "string"}]


def children(schema: Schema, path: str) -> Iterator[tuple[str, Schema]]:
    """The schemas directly below one, with where they stand."""
    for name, field in schema.get("properties", {}).items():
        yield f"{path}.{name}", field
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield f"{path}[]", schema[key]


def every(schema: Schema, path: str = "") -> Iterator[tuple[str, Schema]]:
    """A schema and all below it."""
    yield path, schema
    for where, field in children(schema, path):
        yield from every(field, where)


def problems(root: Schema) -> list[str]:
    """What is wrong with the schema of a kind."""
    return [f"{path or '(root)'}: {reason}" for path, schema in every(root) for reason in _problems(path, schema)]


def _problems(path: str, schema: Schema) -> Iterator[str]:
    if unknown := set(schema) - _KEYWORDS:
        yield f"keywords that are not used here: {sorted(unknown)}"
    if path == ".metadata":
        if schema != {"type": "object"}:
            yield "the API server knows what metadata is: only its type may stand here"
        return
    if not schema.get("description", "").strip():
        yield "no description"
    mixed = schema.get("x-kubernetes-int-or-string", False)
    if mixed and ("type" in schema or schema.get("anyOf") != _INT_OR_STRING):
        yield "an int-or-string has no type but anyOf of both"
    if not mixed and "anyOf" in schema:
        yield "anyOf is for int-or-string"
    if not mixed and schema.get("type") not in _TYPES:
        yield f"no type: {schema.get('type')!r}"
    kind = schema.get("type")
    if kind != "object" and (misplaced := _OF_OBJECTS & set(schema)):
        yield f"of objects only: {sorted(misplaced)}"
    if kind != "array" and (misplaced := _OF_LISTS & set(schema)):
        yield f"of lists only: {sorted(misplaced)}"
    if "properties" in schema and "additionalProperties" in schema:
        yield "properties and additionalProperties exclude each other"
    if missing := set(schema.get("required", ())) - set(schema.get("properties", {})):
        yield f"required, but no property: {sorted(missing)}"
    if kind == "array":
        yield from _list_problems(schema)
    if "default" in schema:
        yield from (f"default: {reason}" for reason in violations(schema, defaulted(schema, schema["default"])))
    if path.startswith(".spec."):
        yield from _unbounded(schema)


def _list_problems(schema: Schema) -> Iterator[str]:
    kind, items = schema.get("x-kubernetes-list-type"), schema.get("items", {})
    if kind not in ("atomic", "set", "map"):
        yield f"a list says how it is merged, not {kind!r}"
    if kind == "set" and items.get("type") not in _SCALARS:
        yield "a set has scalars"
    keys = schema.get("x-kubernetes-list-map-keys", [])
    if (kind == "map") != bool(keys):
        yield "a map has keys, and nothing else has"
    for key in keys:
        field = items.get("properties", {}).get(key, {})
        if field.get("type") not in _SCALARS or (key not in items.get("required", ()) and "default" not in field):
            yield f"key {key} is no scalar that is always there"


def _unbounded(schema: Schema) -> Iterator[str]:
    kind = schema.get("type")
    if kind == "string" and "enum" not in schema and "maxLength" not in schema:
        yield "a text without maxLength"
    if kind == "array" and "maxItems" not in schema:
        yield "a list without maxItems"
    if "additionalProperties" in schema and "maxProperties" not in schema:
        yield "a map without maxProperties"


def defaulted(schema: Schema, value: Any) -> Any:
    """A copy of `value` with the defaults of absent fields."""
    value = copy.deepcopy(value)
    if isinstance(value, dict):
        for name, field in schema.get("properties", {}).items():
            if name not in value and "default" in field:
                value[name] = field["default"]
            if name in value:
                value[name] = defaulted(field, value[name])
    elif isinstance(value, list) and "items" in schema:
        value = [defaulted(schema["items"], item) for item in value]
    return value


def violations(schema: Schema, value: Any) -> list[str]:
    """Places where `value` is not as the schema says, each `path: reason`; unknown fields too. CEL is not looked at."""
    validator = Draft202012Validator(_strict(schema), format_checker=FormatChecker())
    found = []
    for error in validator.iter_errors(value):
        path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.absolute_path)
        if error.validator == "required":  # told of the field that lacks, as the API server does
            path += "." + next(name for name in error.validator_value if name not in error.instance)
        found.append(f"{path.lstrip('.')}: {error.message}")
    return found


def _strict(schema: Schema) -> Schema:
    """The schema as JSON Schema, in which fields that are not named are refused and a set is one."""
    strict = {key: value for key, value in schema.items() if not key.startswith("x-")}
    strict.pop("default", None)
    if strict.get("format") != "date-time":
        strict.pop("format", None)
    if "properties" in schema:
        strict["properties"] = {name: _strict(field) for name, field in schema["properties"].items()}
        strict["additionalProperties"] = False
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            strict[key] = _strict(schema[key])
    if schema.get("x-kubernetes-list-type") == "set":
        strict["uniqueItems"] = True
    return strict
