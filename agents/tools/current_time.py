"""The time in a time zone or city."""

from __future__ import annotations

from datetime import datetime
from functools import cache
from zoneinfo import ZoneInfo, available_timezones

from agents.tool import ToolError, tool

# Places that users ask for and that are not names of zones.
PLACES = {
    "barcelona": "Europe/Madrid",
    "basel": "Europe/Zurich",
    "beijing": "Asia/Shanghai",
    "boston": "America/New_York",
    "cape town": "Africa/Johannesburg",
    "china": "Asia/Shanghai",
    "cologne": "Europe/Berlin",
    "delhi": "Asia/Kolkata",
    "edinburgh": "Europe/London",
    "france": "Europe/Paris",
    "frankfurt": "Europe/Berlin",
    "geneva": "Europe/Zurich",
    "germany": "Europe/Berlin",
    "hamburg": "Europe/Berlin",
    "hanoi": "Asia/Ho_Chi_Minh",
    "houston": "America/Chicago",
    "india": "Asia/Kolkata",
    "italy": "Europe/Rome",
    "las vegas": "America/Los_Angeles",
    "miami": "America/New_York",
    "milan": "Europe/Rome",
    "montreal": "America/Toronto",
    "mumbai": "Asia/Kolkata",
    "munich": "Europe/Berlin",
    "new delhi": "Asia/Kolkata",
    "osaka": "Asia/Tokyo",
    "philadelphia": "America/New_York",
    "rio de janeiro": "America/Sao_Paulo",
    "saint petersburg": "Europe/Moscow",
    "san diego": "America/Los_Angeles",
    "san francisco": "America/Los_Angeles",
    "seattle": "America/Los_Angeles",
    "shenzhen": "Asia/Shanghai",
    "spain": "Europe/Madrid",
    "tel aviv": "Asia/Jerusalem",
    "uk": "Europe/London",
    "united kingdom": "Europe/London",
    "washington": "America/New_York",
}
REGIONS = ("Africa", "America", "Antarctica", "Arctic", "Asia", "Atlantic", "Australia", "Europe", "Indian", "Pacific")


@tool(idempotent=True)
def current_time(timezone: str) -> dict[str, str]:
    """Get the current date and time in a time zone.

    Args:
        timezone: IANA time zone, e.g. Europe/Berlin
    """
    name = find_zone(timezone)
    now = datetime.now(ZoneInfo(name))
    return {"timezone": name, "date": now.strftime("%Y-%m-%d"), "time": now.strftime("%H:%M")}


def find_zone(name: str) -> str:
    """The IANA name of a zone or place in any spelling; a city is found even under a wrong region.

    Raises ToolError.
    """
    region, _, city = name.partition("/")
    for wanted in (_folded(name), _folded(city if region in REGIONS else name.split(",")[0])):
        if zone := _zones().get(wanted) or PLACES.get(wanted):
            return zone
    raise ToolError(f"unknown time zone '{name[:60]}', use an IANA name such as Europe/Berlin")


def _folded(name: str) -> str:
    return " ".join(name.replace("_", " ").lower().split())


@cache
def _zones() -> dict[str, str]:
    """Zones by their full name and by their last part, the city; names of regions win over old aliases."""
    by_name: dict[str, str] = {}
    for zone in sorted(available_timezones(), key=lambda zone: ("/" in zone, zone)):
        by_name.setdefault(_folded(zone.rpartition("/")[2]), zone)
    return by_name | {_folded(zone): zone for zone in available_timezones()}
