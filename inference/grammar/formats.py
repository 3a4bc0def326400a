"""Regular expressions of string formats: what they match is valid, not only well-formed (no 30th of February).

Every text is bounded and of a common form: models would write others only by accident.
"""

from __future__ import annotations

_YEAR = "[1-9][0-9]{3}"
_LEAP = "(?:[1-9][0-9](?:0[48]|[2468][048]|[13579][26])|(?:[2468][048]|[13579][26])00)"
_DATE = (
    f"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    "|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    "|02-(?:0[1-9]|1[0-9]|2[0-8]))"
    f"|{_LEAP}-02-29)"
)
_HOUR, _SIXTY = "(?:[01][0-9]|2[0-3])", "[0-5][0-9]"
_TIME = rf"{_HOUR}:{_SIXTY}:{_SIXTY}(?:\.[0-9]{{1,6}})?(?:Z|[-+]{_HOUR}:{_SIXTY})"
_HEX = "[0-9a-f]"
_UUID = f"{_HEX}{{{{8}}}}-{_HEX}{{{{4}}}}-{{version}}{_HEX}{{{{3}}}}-[89ab]{_HEX}{{{{3}}}}-{_HEX}{{{{12}}}}"
_LABEL = "[a-z0-9](?:[a-z0-9-]{0,20}[a-z0-9])?"
_HOST = rf"{_LABEL}(?:\.{_LABEL}){{0,3}}"
_BYTE = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_GROUP = "[0-9a-f]{1,4}"
_CLOCK = "T(?:[0-9]{1,4}H(?:[0-9]{1,4}M)?(?:[0-9]{1,4}S)?|[0-9]{1,4}M(?:[0-9]{1,4}S)?|[0-9]{1,4}S)"
_DAYS = "(?:[0-9]{1,4}Y(?:[0-9]{1,4}M)?(?:[0-9]{1,4}D)?|[0-9]{1,4}M(?:[0-9]{1,4}D)?|[0-9]{1,4}D)"
_PATH = "(?:[A-Za-z0-9._~!$&'()*+,;=:@/-]|%[0-9A-F]{2})*"
_QUERY = "(?:[A-Za-z0-9._~!$&'()*+,;=:@/?-]|%[0-9A-F]{2})*"

FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "duration": f"P(?:{_DAYS}(?:{_CLOCK})?|{_CLOCK}|[0-9]{{1,4}}W)",
    "uuid": _UUID.format(version="[1-8]"),
    **{f"uuid{version}": _UUID.format(version=version) for version in range(1, 9)},  # the names that pydantic uses
    "email": rf"[a-z0-9]{{1,20}}(?:[._-][a-z0-9]{{1,20}}){{0,3}}@(?:{_LABEL}\.){{1,3}}[a-z]{{2,10}}",
    "hostname": _HOST,
    "ipv4": rf"(?:{_BYTE}\.){{3}}{_BYTE}",
    "ipv6": f"(?:{_GROUP}:){{7}}{_GROUP}|(?:{_GROUP}:){{1,6}}:(?:{_GROUP})?|::(?:{_GROUP})?",
    "uri": f"[a-z][a-z0-9+]{{1,10}}://{_HOST}(?::[1-9][0-9]{{1,3}})?(?:/{_PATH})?(?:[?]{_QUERY})?(?:#{_QUERY})?",
}
