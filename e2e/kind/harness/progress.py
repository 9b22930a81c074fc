"""A consumer group that has consumed half of a topic: after a disaster it must continue where it was."""

from __future__ import annotations

from dataclasses import dataclass

from harness.brokers import Brokers
from harness.pods import Shell

_TOPIC, _GROUP = "progress", "readers"


@dataclass(frozen=True, slots=True)
class ConsumerProgress:
    """The group, and the pod in which its consumer runs."""

    shell: Shell

    def begin(self, brokers: Brokers) -> None:
        """Creates the topic, consumes its first two messages, and sends two more. WaitError, ToolError."""
        brokers.topic(_TOPIC, 1)
        self.shell.tally("produce", _TOPIC, "old-1", "old-2", "--nameserver", brokers.name_server)
        assert "old-2" in self._consumed(brokers)
        self.shell.tally("produce", _TOPIC, "new-1", "new-2", "--nameserver", brokers.name_server)

    def continues(self, brokers: Brokers) -> None:
        """AssertionError: the group gets a message for the second time, or not at all. ToolError."""
        said = self._consumed(brokers)
        assert "new-1" in said and "new-2" in said and "old-" not in said, said

    def _consumed(self, brokers: Brokers) -> str:
        """What the group gets from its committed offsets on; it commits."""
        words = ["consume", _TOPIC, "--once", "--json", "--commit", "--group", _GROUP]
        return self.shell.tally(*words, "--nameserver", brokers.name_server)
