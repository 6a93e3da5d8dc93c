"""Error of several models against their size on disk and their speed, as an SVG document. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from engine.compile.calibration.statistics import Interval
from tools.drawing import add_text

WIDTH, HEIGHT = 720, 420  # of a panel
LEFT, RIGHT, TOP, BOTTOM = 84, 200, 56, 60  # margins; words stand right of a point
TICKS = 4
WORDS_APART = 15
INK, LINE, MARK = "#1f2933", "#d5dbe1", "#2f6fde"


@dataclass(frozen=True, slots=True)
class Point:
    """One model. size: bytes on disk. error: the less, the nearer to the float model. speed: tokens/s of decoding."""

    name: str
    size: int
    error: Interval
    speed: float | None = None


@dataclass(frozen=True, slots=True)
class _Mark:
    """A point of one panel."""

    name: str
    x: float
    error: Interval


def error_drawing(title: str, points: Sequence[Point]) -> str:
    """An SVG document with a point for each model and its confidence interval; all axes begin at 0.

    The second panel is there when a speed is known.
    """
    panels = [("size on disk", "size on disk, MB", [_Mark(each.name, each.size / 1e6, each.error) for each in points])]
    timed = [_Mark(each.name, each.speed, each.error) for each in points if each.speed is not None]
    if timed:
        panels.append(("decode speed", "decode speed, tokens/s (one client)", timed))
    height = HEIGHT * len(panels)
    root = Element("svg", xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {WIDTH} {height}", width=str(WIDTH))
    root.set("font-family", "system-ui, sans-serif")
    SubElement(root, "rect", width=str(WIDTH), height=str(height), fill="#ffffff")
    for number, (against, axis, marks) in enumerate(panels):
        panel = SubElement(root, "g", transform=f"translate(0 {number * HEIGHT})")
        add_text(panel, 24, 28, f"{title}, against {against}", size=15, weight="600")
        _draw(panel, axis, marks)
    indent(root)
    return tostring(root, encoding="unicode") + "\n"


def _draw(panel: Element, axis: str, marks: Sequence[_Mark]) -> None:
    widest = 1.1 * max(mark.x for mark in marks)
    highest = 1.1 * max(max(mark.error.value, mark.error.high) for mark in marks) or 1.0
    for tick in range(TICKS + 1):
        part = tick / TICKS
        y, x = _y(part * highest, highest), _x(part * widest, widest)
        _line(panel, LEFT, y, WIDTH - RIGHT, y, LINE)
        add_text(panel, LEFT - 8, y + 4, f"{part * highest:.3g}", anchor="end", size=11)
        add_text(panel, x, HEIGHT - BOTTOM + 18, f"{part * widest:.3g}", anchor="middle", size=11)
    add_text(panel, (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 18, axis, anchor="middle")
    free = 0.0  # words of points that lie close together go below each other
    for mark in sorted(marks, key=lambda each: -each.error.value):
        x, y = _x(mark.x, widest), _y(mark.error.value, highest)
        _line(panel, x, _y(mark.error.low, highest), x, _y(mark.error.high, highest), MARK)
        SubElement(panel, "circle", cx=f"{x:.1f}", cy=f"{y:.1f}", r="5", fill=MARK)
        at = max(y + 4, free)
        add_text(panel, x + 10, at, mark.name, fill=INK)
        free = at + WORDS_APART


def _line(root: Element, x1: float, y1: float, x2: float, y2: float, colour: str) -> None:
    places = {"x1": f"{x1:.1f}", "y1": f"{y1:.1f}", "x2": f"{x2:.1f}", "y2": f"{y2:.1f}"}
    SubElement(root, "line", {**places, "stroke": colour})


def _x(value: float, widest: float) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * value / widest


def _y(error: float, highest: float) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * error / highest
