"""The OpenAPI document: it describes every route and every model, and no others."""

from __future__ import annotations

import dataclasses
import enum
import typing
from types import UnionType
from typing import Any

import jsonschema
import pytest
from console_lab import DOCUMENT

from tallystick.admin import models
from tallystick.console.api.problems import BASE
from tallystick.console.app import HANDLERS
from tallystick.node.core.settings import HttpSettings
from tallystick.node.http.console import ConsoleView
from tallystick.node.http.server import Probes, application

SCHEMAS = DOCUMENT.content["components"]["schemas"]
OTHERS = {"DeadLetters", "OffsetKind", "OffsetTarget", "Page"}
"""Models that have other forms here: pages by the type of their items, and those that requests have."""
MODELS = [
    each
    for name, each in vars(models).items()
    if isinstance(each, type) and each.__module__ == models.__name__ and name not in OTHERS
]


def routes() -> set[tuple[str, str]]:
    view = ConsoleView(lambda: "", lambda: None, lambda: None, lambda: None)
    app = application(Probes(lambda: None, lambda: None, lambda form: iter(())), settings=HttpSettings(), console=view)
    return {
        (route.method, route.resource.canonical)
        for route in app.router.routes()
        if route.resource is not None and route.resource.canonical.startswith(BASE)
    }


def test_each_route_has_an_entry_and_each_entry_a_route() -> None:
    described = {(operation.method, operation.path) for operation in DOCUMENT.operations}
    assert routes() - described == set(), "routes without an entry"
    assert described - routes() == set(), "entries without a route"


def test_each_operation_has_one_handler() -> None:
    ids = [operation.id for operation in DOCUMENT.operations]
    assert sorted(ids) == sorted(set(ids))
    assert set(HANDLERS) == set(ids)


def test_each_operation_has_a_role_a_tag_and_a_problem() -> None:
    tags = {each["name"] for each in DOCUMENT.content["tags"]}
    for path, item in DOCUMENT.content["paths"].items():
        for method in ("get", "put", "post", "delete", "patch"):
            if method in item:
                found = item[method]
                assert found["x-role"] in ("none", "viewer", "operator", "admin"), path
                assert set(found["tags"]) <= tags and "default" in found["responses"], path
                assert (found.get("security") == []) == (found["x-role"] == "none"), path
                if method != "get" and found["x-role"] != "none" and found["operationId"] not in WITHOUT_DRY_RUN:
                    assert any(each.get("$ref", "").endswith("/dryRun") for each in found["parameters"]), path
                if method != "get":
                    assert found["x-role"] != "viewer", path


WITHOUT_DRY_RUN = {"receiveMessages", "acknowledgeMessages"}


def test_the_schemas_are_valid() -> None:
    for schema in SCHEMAS.values():
        jsonschema.Draft202012Validator.check_schema(schema)


def test_the_examples_are_valid() -> None:
    seen = 0
    for item in DOCUMENT.content["paths"].values():
        for operation in item.values():
            if isinstance(operation, dict) and "requestBody" in operation:
                media = operation["requestBody"]["content"]["application/json"]
                if "example" in media:
                    DOCUMENT.validator(media["schema"]).validate(media["example"])
                    seen += 1
    assert seen > 10


def example(kind: Any) -> Any:
    """A value of a type, with something in each container."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, UnionType):
        return example(arguments[0])
    if origin is list:
        return [example(arguments[0])]
    if origin is dict:
        return {"key": example(arguments[1])}
    if kind is Any:
        return {"any": 1}
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return next(iter(kind))
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        made: Any = kind
        return made(**{each.name: example(hints[each.name]) for each in dataclasses.fields(kind)})
    return {str: "text", int: 1, float: 1.5, bool: True}[kind]


def with_null(model: Any) -> Any:
    """The same model with None wherever it may be."""
    hints = typing.get_type_hints(type(model))
    nothing = {
        each.name: None
        for each in dataclasses.fields(model)
        if type(None) in typing.get_args(hints[each.name]) or hints[each.name] is Any
    }
    return dataclasses.replace(model, **nothing)


@pytest.mark.parametrize("kind", MODELS, ids=lambda kind: str(kind.__name__))
def test_each_model_of_the_admin_core_has_its_schema(kind: Any) -> None:
    schema = SCHEMAS[kind.__name__]
    if issubclass(kind, enum.Enum):
        assert schema["enum"] == [each.value for each in kind]
        return
    fields = [models.camel_case(each.name) for each in dataclasses.fields(kind)]
    assert list(schema["properties"]) == fields
    assert schema["required"] == fields
    validator = DOCUMENT.validator(schema)
    model = example(kind)
    validator.validate(models.json_of(model))
    validator.validate(models.json_of(with_null(model)))
    values = models.json_of(model)
    wrong = {name: "text" if isinstance(value, list) else ["a", "list"] for name, value in values.items()}
    typed = [name for name, value in schema["properties"].items() if set(value) - {"description"}]
    found = {str(error.instance_path[0]) for error in validator.iter_errors(wrong)}
    assert found == set(typed), "each field has the type of its model"
