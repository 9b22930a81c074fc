"""Java properties: the text of RocketMQ's configuration files, and the body of a request that changes settings.

Lines are `key=value`, `key: value` or `key value`; `#` and `!` begin a comment; a backslash escapes a character or
continues a line. Of a key that is there twice the last value counts. Source: java.util.Properties.load.
"""

from __future__ import annotations

import javaproperties


def parse_properties(data: bytes | str) -> dict[str, str]:
    """Returns the values by key, without white space around them.

    ValueError: bytes are not UTF-8, or a `\\u` escape is broken.
    """
    try:
        pairs = javaproperties.loads(data.decode("utf-8") if isinstance(data, bytes) else data)
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 text: {error.reason} at byte {error.start}") from error
    except javaproperties.InvalidUEscapeError as error:
        raise ValueError(str(error)) from error
    return {key.strip(): value.strip() for key, value in pairs.items()}
