"""The bars: as many as figures, as high as their rates, every word in place."""

from xml.etree.ElementTree import fromstring

import pytest

from tools.simulate.drawing import PLOT_HEIGHT, drawing
from tools.simulate.figures import Figures

SVG = "{http://www.w3.org/2000/svg}"


def figure(clients: int, policy: str, rate: float) -> Figures:
    return Figures(clients, policy, 1, 1.0, rate, 1.0, 0.1, 0.1, None, None, 1, 1.0, 1.0, 0)


FOUND = [figure(1, "serial", 10.0), figure(1, "hexserve", 11.0), figure(8, "serial", 10.0), figure(8, "hexserve", 80.0)]


def test_a_bar_for_each_figure_as_high_as_its_rate() -> None:
    root = fromstring(drawing([("a model <fast>", "your file", FOUND), ("another", "published", FOUND[:2])]))
    first, second = root.findall(f"{SVG}g")
    bars = [float(rect.attrib["height"]) for rect in first.findall(f"{SVG}rect") if "rx" in rect.attrib]
    assert bars == pytest.approx([PLOT_HEIGHT * rate / 80 for rate in (10, 11, 10, 80)], abs=0.1)
    words = [text.text for text in first.findall(f"{SVG}text")]
    assert words[0] == "Simulated output tokens per second: a model <fast>"
    for word in ("serial", "hexserve", "1 client", "8 clients", "10", "11", "80"):
        assert word in words
    assert words[-1] == "Step times: your file."
    assert len([rect for rect in second.findall(f"{SVG}rect") if "rx" in rect.attrib]) == 2
    width, height = (float(number) for number in root.attrib["viewBox"].split()[2:])
    for rect in root.iter(f"{SVG}rect"):
        assert float(rect.attrib.get("x", 0)) + float(rect.attrib["width"]) <= width
    assert height == 600


def test_nothing_to_draw() -> None:
    with pytest.raises(ValueError, match="nothing to draw"):
        drawing([])
