"""Scheduled times: five cron fields in a time zone. Pure: the current time is an argument.

StoreJobs and ScheduledBackups use it. `Schedule.due` decides which time has no run yet; the caller creates the run and
records its time.

The syntax (fields, lists, steps, names, `L`, days of month and week together) is that of Debian's cron. So is the
behavior when clocks change: a fixed time runs once, an interval follows the clock. A CronJob of Kubernetes omits a
fixed time that the clock skips, and runs twice at one that occurs twice.

`CronSim` computes local times without a time zone. This module converts them to points in time, with one rule for both
directions, so that searching backward finds the same times as searching forward:

- fixed time (neither minute nor hour starts with a star): the first occurrence, or when the clock skips it;
- interval: every occurrence, so twice when the clock is set back over it, and never when the clock skips it.

CronSim supports time zones as well, but it does not distinguish the two occurrences of a repeated hour, and it skips
times where clocks change by half an hour.
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
"""Limit of counted missed times. A CronJob warns above the same limit."""
CLOCK_SECONDS = 300.0
"""If the last run is scheduled for a time further in the future, the clock was set back since."""
_MINUTE = timedelta(minutes=1)


class ScheduleError(ValueError):
    """The schedule or the time zone is invalid. The message names the field."""


@dataclass(frozen=True, slots=True)
class Due:
    """Which scheduled time needs a run. Times are seconds since 1970."""

    time: float | None = None
    """The last scheduled time that has no run yet; None: no run is due."""
    missed: int = 0
    """Number of scheduled times without a run, including `time`; at most MOST_MISSED + 1."""
    expired: float | None = None
    """The last scheduled time, if it has no run and its starting deadline is over."""
    last: float | None = None
    """Scheduled time of the last run. Other than before if the clock was set back."""
    is_set_back: bool = False
    """Whether the clock was set back: `last` is now the last scheduled time up to the current time."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule in a time zone. Times are seconds since 1970, in whole minutes."""

    expression: str
    zone: tzinfo

    @classmethod
    def parse(cls, text: str, zone: str) -> Schedule:
        """Parses a schedule. ScheduleError: a text is invalid, or no time matches (February 30)."""
        try:
            found = UTC if zone == "UTC" else ZoneInfo(zone)
        except (KeyError, ValueError, OSError) as error:  # what ZoneInfo raises for an unknown name
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
        """Returns the first time after `now`; None: no time in the next fifty years."""
        found: list[float] = []
        for wall in CronSim(self.expression, min(self._walls(now))):
            times = self._times(wall)
            found += [time for time in times if time > now]
            if times and times[0] > now:  # no later reading has an earlier time than this one's first
                break
        return min(found, default=None)

    def last(self, now: float) -> float | None:
        """Returns the last time up to and including `now`; None: no time in the previous fifty years."""
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
        """Returns the local time at `now`, in a repeated hour with both offsets from UTC.

        Local times up to the earlier one are past in both occurrences; those after the later one are in the future in
        both.
        """
        local = datetime.fromtimestamp(now, self.zone)
        naive = local.astimezone(UTC).replace(tzinfo=None)
        return [naive + (local.replace(fold=fold).utcoffset() or timedelta()) for fold in (0, 1)]

    def _times(self, wall: datetime) -> list[float]:
        """Returns the times of a local time in ascending order: zero, one or two. See the module."""
        first, second = (self._reads(wall, fold) for fold in (0, 1))
        if not self._fixed:
            return sorted({time for time in (first, second) if time is not None})
        while first is None:
            wall += _MINUTE
            first = self._reads(wall, 0)
        return [first]

    def _reads(self, wall: datetime, fold: int) -> float | None:
        """Returns the first or second occurrence of a local time; None: the clock skips it."""
        time = wall.replace(tzinfo=self.zone, fold=fold).timestamp()
        return time if datetime.fromtimestamp(time, self.zone).replace(tzinfo=None) == wall else None

    def missed(self, since: float, now: float) -> tuple[float | None, int]:
        """Returns the last time after `since` and up to `now`, and the number of such times, at most
        MOST_MISSED + 1."""
        last = self.last(now)
        if last is None or last <= since:
            return None, 0
        count, at = 0, since
        while count <= MOST_MISSED and (following := self.after(at)) is not None and following <= now:
            count, at = count + 1, following
        return last, count

    def due(self, last: float | None, created: float, now: float, starting_deadline: float | None = None) -> Due:
        """Returns what is due. `last`: scheduled time of the last run; None: there was none since `created`.

        Of several times without a run only the last one is due, and only until `starting_deadline` seconds after it.
        When the clock was set back, the times up to now count as done. Otherwise no run would be due until the clock
        passes `last` again.
        """
        is_set_back = last is not None and last > now + CLOCK_SECONDS
        if is_set_back:
            last = self.last(now) or now // 60 * 60
        since = created if last is None else last
        startable = since if starting_deadline is None else max(since, now - starting_deadline)
        time, missed = self.missed(startable, now)
        expired = None if time is not None else self.missed(since, now)[0]
        return Due(time, missed, expired, last, is_set_back)
