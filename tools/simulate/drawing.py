"""The rates of all policies as bars in one SVG of any size. Pure."""

from collections.abc import Sequence
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from tools.simulate.figures import Figures

COLOURS = ("#9aa5b1", "#d9a441", "#2f6fde", "#3d9a6a", "#a355b3", "#c4573f")
PANEL_HEIGHT, PLOT_TOP, PLOT_HEIGHT = 300, 64, 180
BAR_WIDTH, BAR_GAP, GROUP_GAP, MARGIN = 44, 4, 44, 40
TITLE = "Simulated output tokens per second"


def drawing(panels: Sequence[tuple[str, str, Sequence[Figures]]]) -> str:
    """An SVG document with a panel for each (name, source of its step times, figures); ValueError without any."""
    if not panels:
        raise ValueError("nothing to draw")
    width = max(_width(found) for _, _, found in panels)
    height = PANEL_HEIGHT * len(panels)
    root = Element("svg", xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {width} {height}", width=str(width))
    root.set("font-family", "system-ui, sans-serif")
    SubElement(root, "rect", width=str(width), height=str(height), fill="#ffffff")
    for index, (name, source, found) in enumerate(panels):
        panel = SubElement(root, "g", transform=f"translate(0 {index * PANEL_HEIGHT})")
        _draw_panel(panel, name, found)
        _text(panel, MARGIN, PLOT_TOP + PLOT_HEIGHT + 42, f"Step times: {source}.", size=11, fill="#52606d")
    indent(root)
    return tostring(root, encoding="unicode") + "\n"


def _draw_panel(panel: Element, title: str, found: Sequence[Figures]) -> None:
    policies = list(dict.fromkeys(each.policy for each in found))
    highest = max(each.tokens_per_second for each in found)
    _text(panel, MARGIN, 24, f"{TITLE}: {title}", size=15, weight="600")
    _legend(panel, policies)
    bottom = PLOT_TOP + PLOT_HEIGHT
    x = MARGIN
    for clients in dict.fromkeys(each.clients for each in found):
        group = [each for each in found if each.clients == clients]
        for each in group:
            high = PLOT_HEIGHT * each.tokens_per_second / highest
            colour = COLOURS[policies.index(each.policy) % len(COLOURS)]
            place = {"x": str(x), "y": f"{bottom - high:.1f}", "width": str(BAR_WIDTH), "height": f"{high:.1f}"}
            SubElement(panel, "rect", {**place, "fill": colour, "rx": "2"})
            _text(panel, x + BAR_WIDTH / 2, bottom - high - 5, f"{each.tokens_per_second:.0f}", anchor="middle")
            x += BAR_WIDTH + BAR_GAP
        middle = x - len(group) * (BAR_WIDTH + BAR_GAP) / 2 - BAR_GAP / 2
        _text(panel, middle, bottom + 18, f"{clients} client{'s' * (clients > 1)}", anchor="middle", size=13)
        x += GROUP_GAP


def _legend(panel: Element, policies: Sequence[str]) -> None:
    x = float(MARGIN)
    for index, policy in enumerate(policies):
        SubElement(panel, "rect", x=f"{x:.0f}", y="36", width="12", height="12", fill=COLOURS[index % len(COLOURS)])
        _text(panel, x + 18, 46, policy)
        x += 40 + 8 * len(policy)


def _width(found: Sequence[Figures]) -> int:
    groups = len({each.clients for each in found})
    bars = len(found) * (BAR_WIDTH + BAR_GAP) + (groups - 1) * GROUP_GAP
    return max(640, 2 * MARGIN + bars)


def _text(parent: Element, x: float, y: float, words: str, size: int = 12, **look: str) -> None:
    """A line of words; `x` and `y` are of its baseline, at the side that `anchor` names."""
    look = {"anchor": "start", "weight": "400", "fill": "#1f2933"} | look
    made = SubElement(parent, "text", {"x": f"{x:.1f}", "y": f"{y:.1f}", "font-size": str(size), "fill": look["fill"]})
    made.set("text-anchor", look["anchor"])
    made.set("font-weight", look["weight"])
    made.text = words
