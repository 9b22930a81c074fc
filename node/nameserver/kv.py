"""The name server's key-value configuration: texts by namespace and key, in one JSON file.

A change is on disk before it is answered and before readers see it. Source: apache/rocketmq,
namesrv/kvconfig/KVConfigManager.java; the file is `{"configTable":{"NAMESPACE":{"key":"value"}}}`.
"""

from __future__ import annotations

import asyncio

from tallystick.store.finding_log import FindingLog
from tallystick.store.table_opening import OpenedFile, open_table
from tallystick.store.tables import JsonTable

ORDER_TOPIC_CONFIG = "ORDER_TOPIC_CONFIG"
MAX_CHARACTERS = 16 << 20  # of all keys and values together
MAX_ENTRIES = 100_000  # of all namespaces together


class KvFullError(ValueError):
    """A value would make the configuration larger than `MAX_CHARACTERS`."""


class KvConfig:
    """The configuration. All methods are called on the event loop's thread; another thread writes the file."""

    def __init__(self, table: JsonTable) -> None:
        self._table = table
        self._config: dict[str, dict[str, str]] = {}
        self._changing = asyncio.Lock()

    def load(self, findings: FindingLog) -> None:
        """Reads the file. Without a file the configuration is empty. A damaged file is renamed, so that the name server
        can serve routes.

        TableError: the file cannot be read, and an operator has to decide. OSError.
        """
        self._config = open_table(self._table, _parse, findings, lost="the configuration is empty").table

    def get(self, namespace: str, key: str) -> str | None:
        """Returns one value; None: it does not exist."""
        return self._config.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> dict[str, str] | None:
        """Returns all values of a namespace; None: it does not exist."""
        values = self._config.get(namespace)
        return None if values is None else dict(values)

    async def put(self, namespace: str, key: str, value: str) -> None:
        """Sets a value. KvFullError, OSError: nothing changed."""
        async with self._changing:
            changed = {**self._config, namespace: {**self._config.get(namespace, {}), key: value}}
            size = sum(len(space) + len(k) + len(v) for space, values in changed.items() for k, v in values.items())
            if size > MAX_CHARACTERS:
                raise KvFullError(f"the configuration would have {size} characters; the limit is {MAX_CHARACTERS}")
            if (count := sum(map(len, changed.values()))) > MAX_ENTRIES:
                raise KvFullError(f"the configuration would have {count} entries; the limit is {MAX_ENTRIES}")
            await self._save(changed)

    async def delete(self, namespace: str, key: str) -> None:
        """Removes a value, if it exists. OSError: nothing changed."""
        async with self._changing:
            if self.get(namespace, key) is None:
                return
            values = {name: value for name, value in self._config[namespace].items() if name != key}
            await self._save({**self._config, namespace: values})

    async def _save(self, changed: dict[str, dict[str, str]]) -> None:
        await asyncio.to_thread(self._table.save, {"configTable": changed})
        self._config = changed


def _parse(file: OpenedFile) -> dict[str, dict[str, str]]:
    stored = (file.load() or {}).get("configTable") or {}
    if not isinstance(stored, dict) or not all(isinstance(values, dict) for values in stored.values()):
        raise ValueError("configTable does not have the form {namespace: {key: value}}")
    return {str(space): {str(key): str(value) for key, value in values.items()} for space, values in stored.items()}
