"""An empty sheet, the head of a drawn report, and its words: what all drawings share. Pure."""

import textwrap
from xml.etree.ElementTree import Element, SubElement, indent, tostring

WIDTH, HEAD, LINE = 760, 74, 16
CAPTION_CHARACTERS = 115


def sheet(width: int, height: int) -> Element:
    """A white SVG of so many pixels."""
    root = Element("svg", xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {width} {height}", width=str(width))
    root.set("font-family", "system-ui, sans-serif")
    SubElement(root, "rect", width=str(width), height=str(height), fill="#ffffff")
    return root


def headed(title: str, caption: str, note: str, rows_height: int) -> tuple[Element, int]:
    """A white SVG with a title, a caption in as many lines as it takes, and a note; and the y of its first row.

    rows_height: pixels that follow below the head.
    """
    said = textwrap.wrap(caption, CAPTION_CHARACTERS)
    head = HEAD + LINE * (len(said) - 1)
    root = sheet(WIDTH, head + rows_height + 20)
    add_text(root, 20, 24, title, size=15)
    for index, line in enumerate(said):
        add_text(root, 20, 42 + LINE * index, line, size=11)
    add_text(root, 20, head - 16, note, size=11)
    return root, head


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


def document(root: Element) -> str:
    """The drawing as a file has it."""
    indent(root)
    return tostring(root, encoding="unicode") + "\n"
