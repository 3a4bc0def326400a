"""Grammars of string formats: what they let through is valid, not only well-shaped (no 30th of February)."""

from __future__ import annotations

_YEAR = "[1-9] [0-9]{3}"
_LEAP = '([1-9] [0-9] ("0" [48] | [2468] [048] | [13579] [26]) | ([2468] [048] | [13579] [26]) "00")'
_DATE = (
    f'({_YEAR} "-" (("0" [13578] | "1" [02]) "-" ("0" [1-9] | [12] [0-9] | "3" [01])'
    ' | ("0" [469] | "11") "-" ("0" [1-9] | [12] [0-9] | "30")'
    ' | "02-" ("0" [1-9] | "1" [0-9] | "2" [0-8]))'
    f' | {_LEAP} "-02-29")'
)
_HOUR, _SIXTY = '([01] [0-9] | "2" [0-3])', "[0-5] [0-9]"
_TIME = f'{_HOUR} ":" {_SIXTY} ":" {_SIXTY} ("." [0-9]{{1,6}})? ("Z" | [-+] {_HOUR} ":" {_SIXTY})'
_HEX = "[0-9a-f]"
_LABEL = "[a-z0-9] [a-z0-9]{0,20}"

FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f'{_DATE} "T" {_TIME}',
    "uuid": f'{_HEX}{{8}} "-" {_HEX}{{4}} "-" "4" {_HEX}{{3}} "-" [89ab] {_HEX}{{3}} "-" {_HEX}{{12}}',
    "email": f'[a-z0-9]{{1,20}} ([._-] [a-z0-9]{{1,20}}){{0,3}} "@" ({_LABEL} "."){{1,3}} [a-z]{{2,10}}',
}
