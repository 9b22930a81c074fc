"""When a schedule's time is: cron's five fields in a time zone. Pure: now is an argument.

Fields, lists, steps, names, `L` and what days mean when both are given are those of Debian's cron, and so is what
happens when clocks are changed: what runs at a fixed hour runs once, what runs every so often runs on. Kubernetes' own
CronJob leaves out a fixed time that is skipped, and runs one that comes twice twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

SHORTHANDS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
MOST_MISSED = 100
"""So many are counted; a CronJob warns about more, too."""


class ScheduleError(ValueError):
    """It is no schedule, or there is no such time zone. The message names the field."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """Times are seconds since 1970, whole minutes."""

    expression: str
    zone: tzinfo

    @classmethod
    def parse(cls, text: str, zone: str) -> Schedule:
        """ScheduleError: one of them cannot be, or there never is such a time (February 30)."""
        try:
            found = UTC if zone == "UTC" else ZoneInfo(zone)
        except (KeyError, ValueError, OSError) as error:  # what ZoneInfo raises for a name that leads nowhere
            raise ScheduleError(f"spec.timeZone: there is no time zone {zone!r}") from error
        expression = SHORTHANDS.get(text, text)
        schedule = cls(expression, found)
        try:
            there_is = schedule.after(0.0) is not None
        except CronSimError as error:
            raise ScheduleError(f"spec.schedule {text!r}: {error}") from error
        if not there_is:
            raise ScheduleError(f"spec.schedule {text!r}: there is no such time")
        return schedule

    def after(self, now: float) -> float | None:
        """The first time after `now`; None: none in the next fifty years."""
        found = next(CronSim(self.expression, datetime.fromtimestamp(now, self.zone)), None)
        return None if found is None else found.timestamp()

    def last(self, now: float) -> float | None:
        """The last time up to `now`, itself included; None: none in the fifty years before."""
        begin = datetime.fromtimestamp(now // 60 * 60 + 60, self.zone)
        for found in CronSim(self.expression, begin, reverse=True):
            if found.timestamp() <= now:
                return found.timestamp()
        return None

    def missed(self, since: float, now: float) -> tuple[float | None, int]:
        """The last time after `since` and up to `now`, and how many there were, counted to a little over
        MOST_MISSED."""
        last = self.last(now)
        if last is None or last <= since:
            return None, 0
        count, at = 0, since
        while count <= MOST_MISSED and (following := self.after(at)) is not None and following <= now:
            count, at = count + 1, following
        return last, count
