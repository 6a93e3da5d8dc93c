"""Packages as three parts on disk."""

from pathlib import Path

import pytest

from engine.demo.english.corpus import PARTS, package_files, read_texts, write_parts
from engine.demo.english.packages import PACKAGES, Package
from engine.demo.english.split import Document, clean_documents, part_of

WORDS = "Every page of this manual has sentences of its own, and this is line {} of page {}."


@pytest.fixture
def unpacked(tmp_path: Path) -> Path:
    for page in range(400):
        lines = "".join(f"<p>{WORDS.format(line, page)}</p>" for line in range(6))
        path = tmp_path / "manual" / "usr" / f"page-{page}.html"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"<body>{lines}</body>")
    return tmp_path


def test_parts_have_whole_documents_and_nothing_in_common(unpacked: Path, tmp_path: Path) -> None:
    files = package_files(unpacked, [Package("manual", "MIT", ("usr/*.html",))])
    sizes = write_parts(clean_documents(files), tmp_path / "text")
    texts = {part: read_texts(tmp_path / "text" / f"{part}.jsonl") for part in PARTS}
    assert {part: sum(map(len, found)) for part, found in texts.items()} == sizes
    everything = [text for found in texts.values() for text in found]
    assert len(everything) == len(set(everything)) == 400
    assert all(texts.values())
    assert (tmp_path / "text" / "held_out.txt").read_text() == "\n\n".join(texts["held_out"])
    assert not (tmp_path / "text" / "training.txt").exists()
    pages = {part: {text.rsplit(" ", 1)[1] for text in found} for part, found in texts.items()}
    for part, numbers in pages.items():
        assert {part_of(f"manual/usr/page-{number[:-1]}.html") for number in numbers} == {part}


def test_a_package_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no document of manual lies under .*manual: is the package unpacked"):
        list(package_files(tmp_path, [Package("manual", "MIT", ("usr/*.html",))]))


def test_lines_of_any_kind_come_back(tmp_path: Path) -> None:
    text = "One\u2028two\x85three\nfour"
    names = (f"x/{number}" for number in range(10_000))
    write_parts(iter([Document(next(name for name in names if part_of(name) == "training"), text)]), tmp_path)
    assert read_texts(tmp_path / "training.jsonl") == [text]


def test_every_package_names_a_licence_and_files() -> None:
    assert all(each.licence and each.files for each in PACKAGES)
    assert len({each.name for each in PACKAGES}) == len(PACKAGES)
