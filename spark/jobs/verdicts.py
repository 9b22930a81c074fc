"""What a job's summary comes to, in a word.

An audit ends `Clean` or `DifferencesFound`, and so does a rebuild, if there was no damage; other jobs end `Done`, or
`DamageFound` if they met any.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

CLEAN, DIFFERENCES, DAMAGE, DONE = "Clean", "DifferencesFound", "DamageFound", "Done"

Summary = Mapping[str, Any]


def verdict_of(summary: Summary) -> str:
    if summary["job"] == "audit":
        return CLEAN if summary["clean"] else DIFFERENCES
    if summary["job"] == "rebuild":
        if any(each["stopped"] or each["skipped"] for each in summary["volumes"]):
            return DAMAGE
        return DIFFERENCES if any(each["differing"] or each["missing"] for each in summary["volumes"]) else CLEAN
    return DAMAGE if summary.get("damaged") else DONE


def is_wrong(summary: Summary) -> bool:
    """Whether it should trouble who ran the job. A rebuild that is kept was made because the store's files differ."""
    verdict = verdict_of(summary)
    kept = summary["job"] == "rebuild" and summary["out"] is not None
    return verdict == DAMAGE or (verdict == DIFFERENCES and not kept)
