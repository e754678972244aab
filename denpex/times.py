"""Times as Slurm's commands take them: 2026-12-01T11:52, 12/01, 11:52, today, now-2hours."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

from denpex.errors import UsageError

_UNITS = {"second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 604800}
_NOW = re.compile(r"now(?:([+-])([0-9]{1,9})(second|minute|hour|day|week)?s?)?")
_CLOCK = re.compile(r"([0-9]{1,2}):([0-9]{2})(?::([0-9]{2}))?\s*(am|pm)?")
_DAYS = (
    re.compile(r"(?P<year>[0-9]{4})-(?P<month>[0-9]{1,2})-(?P<day>[0-9]{1,2})"),
    re.compile(r"(?P<month>[0-9]{1,2})[/.](?P<day>[0-9]{1,2})(?:[/.](?P<year>[0-9]{4}|[0-9]{2}))?"),
    re.compile(r"(?P<month>[0-9]{2})(?P<day>[0-9]{2})(?P<year>[0-9]{2})?"),
)


def parse(text: str, now: float) -> float:
    """Return seconds since 1970 of a time in the local zone; ``now`` is the present. Raises UsageError."""
    word = text.strip().lower()
    match = _NOW.fullmatch(word)
    if match:
        amount = int(match[2] or 0) * _UNITS[match[3] or "second"]
        return now - amount if match[1] == "-" else now + amount
    today = datetime.fromtimestamp(now).replace(hour=0, minute=0, second=0, microsecond=0)  # noqa: DTZ006 - local
    named = {
        "today": today,
        "midnight": today,
        "noon": today + timedelta(hours=12),
        "fika": today + timedelta(hours=15),
        "teatime": today + timedelta(hours=16),
        "tomorrow": today + timedelta(days=1),
    }
    try:
        moment = named[word] if word in named else _moment(word, today)
        if moment is not None:
            # A wall clock's words become a moment by the zone's rules of that day, not of this.
            return moment.timestamp()
    except (ValueError, OverflowError):
        pass  # the 31st of June, 25 o'clock
    raise UsageError(
        f"{text[:40]!r} is not a time; 2026-12-01T11:52, 12/01, 11:52, today, midnight, noon and now-2hours are"
    )


def _moment(word: str, today: datetime) -> datetime | None:
    """Read a day, a time of day, or both (joined by T or -); raises ValueError where there is no such moment."""
    for day_form in _DAYS:
        day = day_form.match(word)
        if day is None:
            continue
        rest = word[day.end() :]
        if rest and (rest[0] not in "t- " or not _CLOCK.fullmatch(rest[1:])):
            continue
        digits = day["year"] or str(today.year)
        year = int(digits) + (2000 if len(digits) == 2 else 0)
        date = datetime(year, int(day["month"]), int(day["day"]))  # noqa: DTZ001 - local
        return _at(date, rest[1:]) if rest else date
    return _at(today, word) if _CLOCK.fullmatch(word) else None


def _at(day: datetime, clock: str) -> datetime:
    match = _CLOCK.fullmatch(clock)
    assert match is not None
    hour = int(match[1])
    if match[4]:
        if not 1 <= hour <= 12:
            raise ValueError(clock)
        hour = hour % 12 + (12 if match[4] == "pm" else 0)
    return day.replace(hour=hour, minute=int(match[2]), second=int(match[3] or 0))
