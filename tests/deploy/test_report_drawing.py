"""The head that the drawings of the benchmarks share."""

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

DEPLOY = Path(__file__).parents[2] / "deploy"
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def drawing() -> Iterator[ModuleType]:
    sys.path.insert(0, str(DEPLOY))
    yield import_module("report_drawing")
    sys.path.remove(str(DEPLOY))


def test_rows_begin_below_a_caption_of_any_length(drawing: ModuleType) -> None:
    for words in (1, 100):
        made, first = drawing.headed("title", "caption " * words, "note", rows_height=50)
        root = ElementTree.fromstring(drawing.document(made))
        lowest = max(float(each.attrib["y"]) for each in root.iter(f"{SVG}text"))
        assert lowest < first
        assert root.attrib["viewBox"] == f"0 0 760 {first + 50 + 20}"


def test_the_head_has_every_word(drawing: ModuleType) -> None:
    made, _ = drawing.headed("title", "word " * 100, "note", rows_height=0)
    texts = [each.text or "" for each in ElementTree.fromstring(drawing.document(made)).iter(f"{SVG}text")]
    assert (texts[0], texts[-1]) == ("title", "note")
    assert " ".join(texts[1:-1]).split() == ["word"] * 100
    assert max(len(text) for text in texts) <= 115


def test_text_has_its_place_and_its_anchor(drawing: ModuleType) -> None:
    root = ElementTree.Element("svg")
    drawing.put_text(root, 10, 20, "a < b", size=11, anchor="end")
    assert root[0].attrib | {"fill": ""} == {"x": "10", "y": "20", "font-size": "11", "text-anchor": "end", "fill": ""}
    assert "a &lt; b" in drawing.document(root)
