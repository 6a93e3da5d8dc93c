"""Parts are whole documents, and have nothing in common."""

from hypothesis import given
from hypothesis import strategies as st

from engine.demo.english.split import Document, clean_documents, is_prose, part_of, shuffled_pieces

SENTENCE = "This sentence has a number of plain words in it, and is number {} of its kind."


def test_prose() -> None:
    assert is_prose(SENTENCE.format(1))
    assert not is_prose("Too short.")
    assert not is_prose("0x00 0x01 0x02 0x03 0x04 0x05 0x06 0x07 0x08 0x09 0x0a 0x0b")
    assert not is_prose("Это предложение на другом языке и потому здесь не нужно никому.")


def test_a_document_keeps_its_prose_in_order_and_a_short_one_is_left_out() -> None:
    long = [SENTENCE.format(number) for number in range(8)]
    found = list(clean_documents([("a", [*long[:4], "Next", *long[4:]]), ("b", long[:1])]))
    assert found == [Document("a", "\n".join(long))]


@given(
    st.lists(
        st.tuples(st.text("abc", min_size=1, max_size=4), st.lists(st.integers(0, 40), min_size=4, max_size=12)),
        max_size=30,
        unique_by=lambda file: file[0],
    )
)
def test_no_paragraph_is_in_two_documents_and_so_in_two_parts(files: list[tuple[str, list[int]]]) -> None:
    sentences = [(name, [SENTENCE.format(number) for number in numbers]) for name, numbers in files]
    found = list(clean_documents(sentences))
    paragraphs = [paragraph for document in found for paragraph in document.text.split("\n")]
    assert len(paragraphs) == len({each.lower() for each in paragraphs})
    assert [document.name for document in found] == [name for name, _ in files if name in {each.name for each in found}]


def test_the_name_alone_decides_and_every_part_gets_its_share() -> None:
    parts = [part_of(f"package/page-{number}.html") for number in range(20_000)]
    assert parts == [part_of(f"package/page-{number}.html") for number in range(20_000)]
    assert 120 < parts.count("held_out") < 280
    assert 120 < parts.count("calibration") < 280
    assert parts.count("training") == 20_000 - parts.count("held_out") - parts.count("calibration")


def test_pieces_are_whole_paragraphs_of_all_documents_in_another_order() -> None:
    documents = [
        Document(f"manual/{page}", "\n".join(f"{page} {line} " + "x" * 700 for line in range(9))) for page in "abc"
    ]
    pieces = shuffled_pieces(documents)
    assert sorted(line for piece in pieces for line in piece.text.split("\n")) == sorted(
        line for document in documents for line in document.text.split("\n")
    )
    assert {len(piece.text.split("\n")) for piece in pieces} == {5, 4}
    order = [piece.name for piece in pieces]
    assert order != sorted(order)
    assert order == [piece.name for piece in shuffled_pieces(reversed(documents))]
