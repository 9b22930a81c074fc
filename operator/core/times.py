"""Times as the Kubernetes API writes them, and as seconds since 1970."""

from __future__ import annotations

from datetime import UTC, datetime


def timestamp(seconds: float) -> str:
    """Returns a time in the format of the API: UTC, in whole seconds."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds(text: str | None) -> float | None:
    """Returns a time of the API in seconds since 1970; None for an absent or invalid time."""
    if not text:
        return None
    try:
        return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
    except ValueError:
        return None
