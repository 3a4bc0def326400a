"""Physical units: every unit has a dimension and a conversion to its base unit."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from agents.tool import ToolError, tool

CACHE_S = 3600.0  # the value never changes; this only frees memory
SIGNIFICANT_DIGITS = 6


@dataclass(frozen=True, slots=True)
class Unit:
    """`value` units are `value * factor + offset` of the dimension's base unit."""

    dimension: str
    factor: float
    offset: float = 0.0


# Spellings, each with its factor to the base unit (the one with factor 1). Names also match in the plural; case counts
# only for those written with capitals here, where it distinguishes milli from mega.
_TABLE: dict[str, dict[str, float]] = {
    "length": {
        "m meter metre": 1,
        "km kilometer kilometre": 1e3,
        "cm centimeter centimetre": 1e-2,
        "mm millimeter millimetre": 1e-3,
        "um µm micrometer micrometre micron": 1e-6,
        "nm nanometer nanometre": 1e-9,
        "in inch inches": 0.0254,
        "ft foot feet": 0.3048,
        "yd yard": 0.9144,
        "mi mile": 1609.344,
        "nmi nautical_mile": 1852,
        "ly light_year": 9.4607304725808e15,
        "au astronomical_unit": 149597870700,
    },
    "mass": {
        "kg kilogram kilo": 1,
        "g gram gramme": 1e-3,
        "mg milligram": 1e-6,
        "t ton tonne metric_ton": 1e3,
        "lb lbs pound": 0.45359237,
        "oz ounce": 0.028349523125,
        "st stone stones": 6.35029318,
        "short_ton us_ton": 907.18474,
        "long_ton": 1016.0469088,
        "ct carat": 2e-4,
    },
    "time": {
        "s sec second": 1,
        "ms millisecond": 1e-3,
        "us µs microsecond": 1e-6,
        "ns nanosecond": 1e-9,
        "min minute": 60,
        "h hr hour": 3600,
        "d day": 86400,
        "wk week": 604800,
        "month": 2629746,  # a twelfth of the mean Gregorian year
        "yr year": 31556952,
    },
    "volume": {
        "l liter litre": 1,
        "ml milliliter millilitre cc": 1e-3,
        "cl centiliter centilitre": 1e-2,
        "dl deciliter decilitre": 0.1,
        "m3 m^3 m³ cubic_meter cubic_metre": 1e3,
        "cm3 cm^3 cm³ cubic_centimeter cubic_centimetre": 1e-3,
        "ft3 ft^3 ft³ cubic_foot cubic_feet": 28.316846592,
        "in3 in^3 in³ cubic_inch cubic_inches": 0.016387064,
        "gal gallon us_gallon": 3.785411784,
        "imperial_gallon uk_gallon": 4.54609,
        "qt quart": 0.946352946,
        "pt pint": 0.473176473,
        "cup": 0.2365882365,
        "fl_oz fluid_ounce": 0.0295735295625,
        "tbsp tablespoon": 0.01478676478125,
        "tsp teaspoon": 0.00492892159375,
        "bbl barrel": 158.987294928,
    },
    "area": {
        "m2 m^2 m² sqm square_meter square_metre": 1,
        "km2 km^2 km² square_kilometer square_kilometre": 1e6,
        "cm2 cm^2 cm² square_centimeter square_centimetre": 1e-4,
        "ha hectare": 1e4,
        "ac acre": 4046.8564224,
        "ft2 ft^2 ft² sqft square_foot square_feet": 0.09290304,
        "in2 in^2 in² square_inch square_inches": 6.4516e-4,
        "yd2 yd^2 yd² square_yard": 0.83612736,
        "mi2 mi^2 mi² square_mile": 2589988.110336,
    },
    "speed": {
        "m/s mps meter_per_second metre_per_second meters_per_second metres_per_second": 1,
        "km/h kmh kph kilometer_per_hour kilometre_per_hour kilometers_per_hour kilometres_per_hour": 1 / 3.6,
        "mph mi/h mile_per_hour miles_per_hour": 0.44704,
        "ft/s fps feet_per_second foot_per_second": 0.3048,
        "kn kt knot": 1852 / 3600,
    },
    "energy": {
        "j joule": 1,
        "kj kilojoule": 1e3,
        "MJ megajoule": 1e6,
        "mJ millijoule": 1e-3,
        "cal calorie": 4.184,
        "kcal kilocalorie": 4184,
        "wh watt_hour": 3600,
        "kwh kilowatt_hour": 3.6e6,
        "ev electronvolt": 1.602176634e-19,
        "btu": 1055.05585262,
    },
    "power": {
        "w watt": 1,
        "kw kilowatt": 1e3,
        "MW megawatt": 1e6,
        "mW milliwatt": 1e-3,
        "hp horsepower": 745.69987158227,
    },
    "force": {"n newton": 1, "kilonewton": 1e3, "lbf pound_force": 4.4482216152605},
    "pressure": {
        "pa pascal": 1,
        "hpa hectopascal": 100,
        "kpa kilopascal": 1e3,
        "MPa megapascal": 1e6,
        "mPa millipascal": 1e-3,
        "bar": 1e5,
        "mbar millibar": 100,
        "atm atmosphere": 101325,
        "psi": 6894.757293168,
        "mmhg torr": 133.322387415,
    },
    "data": {
        "b byte": 1,
        "bit": 0.125,
        "kb kilobyte": 1e3,
        "mb megabyte": 1e6,
        "gb gigabyte": 1e9,
        "tb terabyte": 1e12,
        "pb petabyte": 1e15,
        "kib kibibyte": 2**10,
        "mib mebibyte": 2**20,
        "gib gibibyte": 2**30,
        "tib tebibyte": 2**40,
    },
    "angle": {"rad radian": 1, "deg degree °": math.pi / 180, "turn revolution": 2 * math.pi},
    "frequency": {"hz hertz": 1, "khz kilohertz": 1e3, "mhz megahertz": 1e6, "ghz gigahertz": 1e9, "rpm": 1 / 60},
}
_TEMPERATURES = {
    "k kelvin": Unit("temperature", 1),
    "c °c celsius centigrade degree_celsius": Unit("temperature", 1, 273.15),
    "f °f fahrenheit degree_fahrenheit": Unit("temperature", 5 / 9, 459.67 * 5 / 9),
}


def _spelled() -> Iterator[tuple[str, Unit]]:
    for dimension, units in _TABLE.items():
        for spellings, factor in units.items():
            for name in spellings.split():
                yield name, Unit(dimension, factor)
    for spellings, unit in _TEMPERATURES.items():
        for name in spellings.split():
            yield name, unit


UNITS: dict[str, Unit] = dict(_spelled())


@tool(cache_s=CACHE_S)
def convert_units(value: float, from_unit: str, to_unit: str) -> dict[str, float | str]:
    """Convert a value from one unit to another.

    Args:
        value: The value to convert
        from_unit: Unit to convert from
        to_unit: Unit to convert to
    """
    source, target = find_unit(from_unit), find_unit(to_unit)
    if source.dimension != target.dimension:
        raise ToolError(f"{from_unit} is a unit of {source.dimension}, {to_unit} one of {target.dimension}")
    result = (value * source.factor + source.offset - target.offset) / target.factor
    if not math.isfinite(result):
        raise ToolError("the value is too large")
    return {"value": _whole(value), "from_unit": from_unit, "to_unit": to_unit, "result": _rounded(result)}


def find_unit(name: str) -> Unit:
    """A unit by symbol or name, singular or plural, however it is written. Raises ToolError."""
    wanted = "_".join(name.strip().rstrip(".").lower().replace("-", " ").replace("_", " ").split())
    wanted = wanted.replace("degrees_", "degree_")
    for spelling in (name.strip(), wanted, wanted.removesuffix("s"), wanted.removesuffix("es")):
        if spelling in UNITS:
            return UNITS[spelling]
    raise ToolError(f"unknown unit '{name[:60]}'")


def _rounded(value: float) -> float:
    """To significant digits, but never to less than a thousandth of a unit above one."""
    digits = max(SIGNIFICANT_DIGITS, len(str(int(abs(value)))) + 3)
    return _whole(float(f"{value:.{digits}g}"))


def _whole(value: float) -> float:
    return round(value) if value == round(value) and abs(value) < 1e15 else value
