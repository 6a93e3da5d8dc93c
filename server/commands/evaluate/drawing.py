"""Error against size on disk as an SVG of any size. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from engine.evaluation.statistics import Interval
from server.commands.svg_text import add_text

WIDTH, HEIGHT = 720, 420
LEFT, RIGHT, TOP, BOTTOM = 84, 200, 56, 60  # margins; words stand right of a point
TICKS = 4
INK, LINE, MARK = "#1f2933", "#d5dbe1", "#2f6fde"


@dataclass(frozen=True, slots=True)
class Point:
    """One model. size: bytes on disk. error: the less, the nearer to the float model."""

    name: str
    size: int
    error: Interval


def error_drawing(title: str, points: Sequence[Point]) -> str:
    """An SVG document with a point for each model and its confidence interval; both axes begin at 0."""
    widest = 1.1 * max(point.size for point in points)
    highest = 1.1 * max(max(point.error.value, point.error.high) for point in points) or 1.0
    root = Element("svg", xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {WIDTH} {HEIGHT}", width=str(WIDTH))
    root.set("font-family", "system-ui, sans-serif")
    SubElement(root, "rect", width=str(WIDTH), height=str(HEIGHT), fill="#ffffff")
    add_text(root, 24, 28, f"{title}, against size on disk", size=15, weight="600")
    _axes(root, widest, highest)
    for point in points:
        _draw(root, point, _x(point.size, widest), highest)
    indent(root)
    return tostring(root, encoding="unicode") + "\n"


def _axes(root: Element, widest: float, highest: float) -> None:
    for tick in range(TICKS + 1):
        part = tick / TICKS
        y, x = _y(part * highest, highest), _x(part * widest, widest)
        _line(root, LEFT, y, WIDTH - RIGHT, y, LINE)
        add_text(root, LEFT - 8, y + 4, f"{part * highest:.3g}", anchor="end", size=11)
        add_text(root, x, HEIGHT - BOTTOM + 18, f"{part * widest / 1e6:.3g}", anchor="middle", size=11)
    add_text(root, (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 18, "size on disk, MB", anchor="middle")


def _draw(root: Element, point: Point, x: float, highest: float) -> None:
    y = _y(point.error.value, highest)
    _line(root, x, _y(point.error.low, highest), x, _y(point.error.high, highest), MARK)
    SubElement(root, "circle", cx=f"{x:.1f}", cy=f"{y:.1f}", r="5", fill=MARK)
    add_text(root, x + 10, y + 4, point.name, fill=INK)


def _line(root: Element, x1: float, y1: float, x2: float, y2: float, colour: str) -> None:
    places = {"x1": f"{x1:.1f}", "y1": f"{y1:.1f}", "x2": f"{x2:.1f}", "y2": f"{y2:.1f}"}
    SubElement(root, "line", {**places, "stroke": colour})


def _x(size: float, widest: float) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * size / widest


def _y(error: float, highest: float) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * error / highest
