"""When a schedule's time is: cron's five fields in a time zone. Pure: now is an argument.

Fields, lists, steps, names, `L` and what days mean when both are given are those of Debian's cron, and so is what
happens when clocks are changed: what runs at a fixed hour runs once, what runs every so often runs on. Kubernetes' own
CronJob leaves out a fixed time that is skipped, and runs one that comes twice twice.

`CronSim` says which readings of a clock on the wall a schedule names, and is told of no time zone. When the clock reads
that is said here, once for both directions, so that looking back finds what looking ahead had found:

- fixed (neither minute nor hour begins with a star): when the clock first reads it; if it never does, when it is put
  forward past it;
- every so often: whenever the clock reads it, so twice when it is put back over it, and never when it is put forward
  past it.

CronSim knows zones too, but forgets which of two passes through an hour it began in, and steps over times where clocks
are changed by half an hour.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
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
_MINUTE = timedelta(minutes=1)


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
            raise ScheduleError(f"spec.timeZone: unknown time zone {zone!r}") from error
        expression = SHORTHANDS.get(text, text)
        schedule = cls(expression, found)
        try:
            there_is = schedule.after(0.0) is not None
        except CronSimError as error:
            raise ScheduleError(f"spec.schedule {text!r}: {error}") from error
        if not there_is:
            raise ScheduleError(f"spec.schedule {text!r}: the schedule has no matching time")
        return schedule

    def after(self, now: float) -> float | None:
        """The first time after `now`; None: none in the next fifty years."""
        found: list[float] = []
        for wall in CronSim(self.expression, min(self._walls(now))):
            times = self._times(wall)
            found += [time for time in times if time > now]
            if times and times[0] > now:  # no later reading has an earlier time than this one's first
                break
        return min(found, default=None)

    def last(self, now: float) -> float | None:
        """The last time up to `now`, itself included; None: none in the fifty years before."""
        found: list[float] = []
        for wall in CronSim(self.expression, max(self._walls(now // 60 * 60)) + _MINUTE, reverse=True):
            times = self._times(wall)
            found += [time for time in times if time <= now]
            if times and times[-1] <= now:  # no earlier reading has a later time than this one's last
                break
        return max(found, default=None)

    @property
    def _fixed(self) -> bool:
        return not any(field.startswith("*") for field in self.expression.split()[:2])

    def _walls(self, now: float) -> list[datetime]:
        """What the clock reads at `now`; within an hour that comes twice, by either pass's offset from UTC.

        Whatever reads no later than the earlier one is over, in both passes; what reads later than the later one is
        still to come, in both.
        """
        local = datetime.fromtimestamp(now, self.zone)
        naive = local.astimezone(UTC).replace(tzinfo=None)
        return [naive + (local.replace(fold=fold).utcoffset() or timedelta()) for fold in (0, 1)]

    def _times(self, wall: datetime) -> list[float]:
        """Times of a reading of the clock, ascending: one, two, or none. See the module."""
        first, second = (self._reads(wall, fold) for fold in (0, 1))
        if not self._fixed:
            return sorted({time for time in (first, second) if time is not None})
        while first is None:
            wall += _MINUTE
            first = self._reads(wall, 0)
        return [first]

    def _reads(self, wall: datetime, fold: int) -> float | None:
        """When the clock reads `wall` in the first or second pass; None: it is put forward past it."""
        time = wall.replace(tzinfo=self.zone, fold=fold).timestamp()
        return time if datetime.fromtimestamp(time, self.zone).replace(tzinfo=None) == wall else None

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
