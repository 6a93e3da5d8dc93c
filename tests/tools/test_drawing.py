"""The head that the drawings of the benchmarks share."""

from xml.etree import ElementTree

from tools import drawing

SVG = "{http://www.w3.org/2000/svg}"


def test_rows_begin_below_a_caption_of_any_length() -> None:
    for words in (1, 100):
        made, first = drawing.headed("title", "caption " * words, "note", rows_height=50)
        root = ElementTree.fromstring(drawing.document(made))
        lowest = max(float(each.attrib["y"]) for each in root.iter(f"{SVG}text"))
        assert lowest < first
        assert root.attrib["viewBox"] == f"0 0 760 {first + 50 + 20}"


def test_the_head_has_every_word() -> None:
    made, _ = drawing.headed("title", "word " * 100, "note", rows_height=0)
    texts = [each.text or "" for each in ElementTree.fromstring(drawing.document(made)).iter(f"{SVG}text")]
    assert (texts[0], texts[-1]) == ("title", "note")
    assert " ".join(texts[1:-1]).split() == ["word"] * 100
    assert max(len(text) for text in texts) <= 115


def test_text_has_its_place_and_its_anchor() -> None:
    root = ElementTree.Element("svg")
    drawing.add_text(root, 10, 20, "a < b", size=11, anchor="end")
    said = {"x": "10.0", "y": "20.0", "font-size": "11", "text-anchor": "end"}
    assert said.items() <= root[0].attrib.items()
    assert "a &lt; b" in drawing.document(root)
