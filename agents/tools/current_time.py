"""The time in a time zone or city."""

from __future__ import annotations

from datetime import datetime
from functools import cache
from zoneinfo import ZoneInfo, available_timezones

from agents.tool import ToolError, tool

# Places that users ask for and that are not names of zones, by their zones.
PLACES = {
    "Africa/Johannesburg": "cape town",
    "America/Chicago": "houston",
    "America/Los_Angeles": "las vegas, san diego, san francisco, seattle",
    "America/New_York": "boston, miami, philadelphia, washington",
    "America/Sao_Paulo": "rio de janeiro",
    "America/Toronto": "montreal",
    "Asia/Ho_Chi_Minh": "hanoi",
    "Asia/Jerusalem": "tel aviv",
    "Asia/Kolkata": "delhi, india, mumbai, new delhi",
    "Asia/Shanghai": "beijing, china, shenzhen",
    "Asia/Tokyo": "osaka",
    "Europe/Berlin": "cologne, frankfurt, germany, hamburg, munich",
    "Europe/London": "edinburgh, uk, united kingdom",
    "Europe/Madrid": "barcelona, spain",
    "Europe/Moscow": "saint petersburg",
    "Europe/Paris": "france",
    "Europe/Rome": "italy, milan",
    "Europe/Zurich": "basel, geneva",
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
        if zone := _zones().get(wanted):
            return zone
    raise ToolError(f"unknown time zone '{name[:60]}', use an IANA name such as Europe/Berlin")


def _folded(name: str) -> str:
    return " ".join(name.replace("_", " ").lower().split())


@cache
def _zones() -> dict[str, str]:
    """Zones by their full name, by their last part, the city, and by places; names of regions win over old aliases."""
    by_place = {place: zone for zone, places in PLACES.items() for place in places.split(", ")}
    by_city: dict[str, str] = {}
    for zone in sorted(available_timezones(), key=lambda zone: ("/" in zone, zone)):
        by_city.setdefault(_folded(zone.rpartition("/")[2]), zone)
    return by_place | by_city | {_folded(zone): zone for zone in available_timezones()}
