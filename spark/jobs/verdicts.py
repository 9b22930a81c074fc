"""The verdict of a job in one word.

An audit ends with `Clean` or `DifferencesFound`, and so does a rebuild without damage. Other jobs end with `Done`, or
with `DamageFound` if they found damage.
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
    """Returns whether the summary reports a problem. A rebuild whose output is kept may differ from the store."""
    verdict = verdict_of(summary)
    kept = summary["job"] == "rebuild" and summary["out"] is not None
    return verdict == DAMAGE or (verdict == DIFFERENCES and not kept)
