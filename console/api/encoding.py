"""Answers as JSON."""

from __future__ import annotations

import json
from typing import Any

import orjson


def encoded(value: Any) -> bytes:
    """Returns a value as JSON. Bytes of names and properties that are not UTF-8 become escaped halves of surrogates,
    which the codec of the client makes of them and orjson refuses."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return json.dumps(value).encode()
