"""The drawing: a point for each model where its size and its error put it."""

from itertools import pairwise
from xml.etree.ElementTree import fromstring

from engine.compile.calibration.statistics import Interval
from tools.evaluate.drawing import Point, error_drawing

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


def test_a_second_panel_where_speeds_are_known() -> None:
    exact = Interval(0.0, 0.0, 0.0)
    points = [
        Point("slow", 5, Interval(0.02, 0.01, 0.03), 10.0),
        Point("fast", 5, exact, 40.0),
        Point("none", 5, exact),
    ]
    root = fromstring(error_drawing("Mean KL", points))
    assert root.get("viewBox") == "0 0 720 840"
    by_size, by_speed = root.findall(f"{SVG}g")
    assert by_speed.get("transform") == "translate(0 420)"
    assert next(each.text for each in by_speed.iter(f"{SVG}text")) == "Mean KL, against decode speed"
    slow, fast = [float(each.get("cx", 0)) for each in by_speed.iter(f"{SVG}circle")]
    assert (fast - 84) / (slow - 84) == 4
    assert len(list(by_size.iter(f"{SVG}circle"))) == 3


def test_words_of_points_that_lie_together_do_not_cover_each_other() -> None:
    points = [Point(f"model {number}", 5, Interval(0.1 + number * 1e-4, 0.1, 0.2)) for number in range(5)]
    root = fromstring(error_drawing("Mean KL", points))
    places = sorted(float(each.get("y", 0)) for each in root.iter(f"{SVG}text") if "model" in (each.text or ""))
    assert min(after - before for before, after in pairwise(places)) >= 14
