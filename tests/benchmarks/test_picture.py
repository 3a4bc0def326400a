"""The picture of the batch curve."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from benchmarks.engine.curve import Point, drawn

NAMESPACE = "{http://www.w3.org/2000/svg}"
POINTS = [
    Point(side, streams, 30.0 * streams**0.7 * speed, 33.0 * streams**0.3 / speed)
    for side, speed in (("firsttoken", 1.0), ("a <server>", 8.0))
    for streams in (1, 4, 64)
]


def test_each_side_has_a_line_in_both_panels() -> None:
    root = ElementTree.fromstring(drawn(POINTS, "0.1B"))
    lines = root.findall(f"{NAMESPACE}polyline")
    assert len(lines) == 2 * 2
    assert sum("stroke-dasharray" in line.attrib for line in lines) == 2
    texts = {text.text for text in root.iter(f"{NAMESPACE}text")}
    assert {"firsttoken", "a <server>", "1", "4", "64"} <= texts


def test_more_is_higher_and_everything_is_inside() -> None:
    root = ElementTree.fromstring(drawn(POINTS, "0.1B"))
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    for line in root.findall(f"{NAMESPACE}polyline"):
        corners = [tuple(map(float, corner.split(","))) for corner in line.attrib["points"].split()]
        assert all(0 < x < width and 0 < y < height for x, y in corners)
        assert [y for _, y in corners] == sorted((y for _, y in corners), reverse=True)  # both grow with the streams


def test_one_point_is_drawn_and_none_is_refused() -> None:
    assert "polyline" in drawn(POINTS[:1], "0.1B")
    with pytest.raises(ValueError, match="nothing"):
        drawn([], "0.1B")
