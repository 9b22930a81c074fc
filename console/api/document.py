"""The OpenAPI document as the source of the interface: its operations, and what their requests must be like.

`Document.load` reads `openapi.yaml` and compiles a validator for each body. Parameters are converted from text as
their schemas say. A request with a parameter that the document does not have is refused: `dryrun=true` must not make
the change that `dryRun=true` would only have planned.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import jsonschema_rs
import orjson
import yaml
from aiohttp import web

from tallystick.console.api.problems import BASE, ProblemError

METHODS = ("get", "put", "post", "delete", "patch")
_NUMBER = re.compile(r"-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,17})?")
_BOOLEANS = {"true": True, "false": False}
_MOST_ERRORS = 20


class InvalidValueError(ValueError):
    """A text that is not a value of its type."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a path, a query or the header."""

    name: str
    place: str
    """path, query or header."""
    required: bool
    type: str
    default: Any
    validator: Any

    def read(self, text: str) -> Any:
        """Returns the value of a text. InvalidValueError: it is not of the type."""
        if self.type == "boolean":
            if text not in _BOOLEANS:
                raise InvalidValueError(f"{text!r} is not true or false")
            return _BOOLEANS[text]
        if self.type in ("integer", "number"):
            if _NUMBER.fullmatch(text) is None:
                raise InvalidValueError(f"{text!r} is not a number")
            if "." not in text:
                return int(text)
            if self.type == "integer":
                raise InvalidValueError(f"{text!r} is not a whole number")
            return float(text)
        return text


@dataclass(frozen=True, slots=True)
class Operation:
    """A method of a path."""

    id: str
    method: str
    path: str
    """With the base, in the form that both OpenAPI and aiohttp have: `/api/v1/topics/{topic}`."""
    role: str
    parameters: tuple[Parameter, ...]
    body: Any | None
    """The validator of the body; None: the operation has no body."""

    async def arguments(self, request: web.Request) -> tuple[dict[str, Any], Any]:
        """Returns the parameters by name, and the body. ProblemError: the request is invalid; it lists all errors."""
        errors: list[dict[str, str]] = []
        values = {}
        for parameter in self.parameters:
            try:
                values[parameter.name] = self._value(parameter, request)
            except InvalidValueError as error:
                errors.append({"location": f"{parameter.place}.{parameter.name}", "message": str(error)})
        known = {parameter.name for parameter in self.parameters if parameter.place == "query"}
        for name in dict.fromkeys(request.query):
            if name not in known:
                errors.append({"location": f"query.{name[:100]}", "message": "there is no such parameter"})
        body = None
        if self.body is not None:
            body, wrong = await self._body(request, self.body)
            errors += wrong
        elif request.body_exists and await request.read():
            errors.append({"location": "body", "message": "the operation has no body"})
        if errors:
            detail = "; ".join(f"{each['location']}: {each['message']}" for each in errors)[:1000]
            raise ProblemError("invalid-request", detail, errors=errors[:_MOST_ERRORS])
        return values, body

    @staticmethod
    def _value(parameter: Parameter, request: web.Request) -> Any:
        if parameter.place == "path":
            given = [request.match_info[parameter.name]]
        elif parameter.place == "query":
            given = request.query.getall(parameter.name, [])
        else:
            given = request.headers.getall(parameter.name, [])
        if not given:
            if parameter.required:
                raise InvalidValueError("it is missing")
            return parameter.default
        if len(given) > 1:
            raise InvalidValueError("it is given more than once")
        value = parameter.read(_text(given[0]))
        for error in parameter.validator.iter_errors(value):
            raise InvalidValueError(_message(error))
        return value

    @staticmethod
    async def _body(request: web.Request, validator: Any) -> tuple[Any, list[dict[str, str]]]:
        data = await request.read()
        if not data:
            return None, [{"location": "body", "message": "it is missing"}]
        try:
            body = _whole_numbers(orjson.loads(data))
            return body, list(_body_errors(validator, body))
        except orjson.JSONDecodeError as error:
            return None, [{"location": "body", "message": f"it is not JSON: {error}"}]
        except (RecursionError, ValueError):
            return None, [{"location": "body", "message": "it is nested too deeply"}]


class Document:
    """The document with its operations."""

    def __init__(self, text: str) -> None:
        self.text = text
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        self.content: dict[str, Any] = yaml.load(text, Loader=loader)
        self.operations = tuple(self._operations())

    @classmethod
    def load(cls) -> Document:
        """Reads the document of this package."""
        return cls(Path(__file__).with_name("openapi.yaml").read_text(encoding="utf-8"))

    @cached_property
    def as_json(self) -> bytes:
        """The document as JSON."""
        return orjson.dumps(self.content)

    def validator(self, schema: Mapping[str, Any]) -> Any:
        """Compiles a schema, which may refer to the components of the document."""
        whole = dict(schema)
        if "$ref" in repr(schema):
            whole["components"] = {"schemas": self.content["components"]["schemas"]}
        return jsonschema_rs.Draft202012Validator(whole, mask="the value")  # which can be a password

    def resolved(self, value: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns what a reference refers to; a value that is no reference, as it is."""
        while "$ref" in value:
            found: Any = self.content
            for part in value["$ref"].removeprefix("#/").split("/"):
                found = found[part]
            value = found
        return value

    def answer_schema(self, operation_id: str, status: int) -> tuple[str, Mapping[str, Any]] | None:
        """Returns the media type and the schema of an answer; None: it has no body. KeyError: it is not described."""
        for item in self.content["paths"].values():
            for method in METHODS:
                if method in item and item[method]["operationId"] == operation_id:
                    answers = item[method]["responses"]
                    answer = self.resolved(answers.get(str(status)) or (answers["default"] if status >= 400 else {}))
                    if not answer:
                        raise KeyError(f"{operation_id} has no answer {status}")
                    for media_type, media in answer.get("content", {}).items():
                        return media_type, media["schema"]
                    return None
        raise KeyError(operation_id)

    def _operations(self) -> Iterator[Operation]:
        for path, item in self.content["paths"].items():
            for method in METHODS:
                if method not in item:
                    continue
                content = item[method]
                parameters = [*item.get("parameters", ()), *content.get("parameters", ())]
                yield Operation(
                    id=content["operationId"],
                    method=method.upper(),
                    path=BASE + path,
                    role=content["x-role"],
                    parameters=tuple(self._parameter(self.resolved(each)) for each in parameters),
                    body=self._body(content),
                )

    def _parameter(self, content: Mapping[str, Any]) -> Parameter:
        schema = self.resolved(content["schema"])
        return Parameter(
            name=content["name"],
            place=content["in"],
            required=content.get("required", False),
            type=schema["type"],
            default=schema.get("default"),
            validator=self.validator(schema),
        )

    def _body(self, content: Mapping[str, Any]) -> Any | None:
        if "requestBody" not in content:
            return None
        return self.validator(content["requestBody"]["content"]["application/json"]["schema"])


def _body_errors(validator: Any, body: Any) -> Iterator[dict[str, str]]:
    if validator.is_valid(body):  # it is faster than to look for errors
        return
    for number, error in enumerate(validator.iter_errors(body)):
        if number == _MOST_ERRORS:
            return
        yield {"location": ".".join(("body", *map(str, error.instance_path))), "message": _message(error)}


def _message(error: Any) -> str:
    return str(error.message)[:300]


def _text(given: str) -> str:
    """A text of the URL or the header. InvalidValueError: it is not Unicode."""
    try:
        given.encode()
    except UnicodeEncodeError:
        raise InvalidValueError("it is not UTF-8") from None
    return given


def _whole_numbers(value: Any) -> Any:
    """JSON has one kind of numbers, and 1.0 is a valid integer: returns it as 1."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {name: _whole_numbers(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_whole_numbers(each) for each in value]
    return value
