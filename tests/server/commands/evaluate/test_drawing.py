"""The drawing: a point for each model where its size and its error put it."""

from xml.etree.ElementTree import fromstring

from engine.evaluation.statistics import Interval
from server.commands.evaluate.drawing import Point, error_drawing

SVG = "{http://www.w3.org/2000/svg}"


def test_places_follow_size_and_error() -> None:
    points = [
        Point("small <1>", 1_000_000, Interval(0.04, 0.03, 0.05)),
        Point("large", 2_000_000, Interval(0.02, 0.01, 0.03)),
    ]
    root = fromstring(error_drawing("Mean KL", points))
    small, large = [(float(each.get("cx", 0)), float(each.get("cy", 0))) for each in root.iter(f"{SVG}circle")]
    bottom = 360.0
    assert (large[0] - 84) / (small[0] - 84) == 2  # twice as large lies twice as far from the axis
    assert abs((bottom - small[1]) / (bottom - large[1]) - 2) < 0.01
    words = [each.text for each in root.iter(f"{SVG}text")]
    assert words[0] == "Mean KL, against size on disk"
    assert {"small <1>", "large", "size on disk, MB"} <= set(words)


def test_no_error_at_all_is_drawn() -> None:
    assert "exact" in error_drawing("Mean KL", [Point("exact", 5, Interval(0.0, 0.0, 0.0))])
