"""Words in an SVG drawing."""

from xml.etree.ElementTree import Element, SubElement


def add_text(
    parent: Element,
    x: float,
    y: float,
    words: str,
    *,
    size: int = 12,
    anchor: str = "start",
    weight: str = "400",
    fill: str = "#1f2933",
) -> None:
    """A line of words; `x` and `y` are of its baseline, at the side that `anchor` names."""
    made = SubElement(parent, "text", {"x": f"{x:.1f}", "y": f"{y:.1f}", "font-size": str(size), "fill": fill})
    made.set("text-anchor", anchor)
    made.set("font-weight", weight)
    made.text = words
