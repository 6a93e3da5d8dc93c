"""The file of blocks: what was written comes back, and nothing else does."""

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.files import FileRefused
from engine.worker.kv_file import MAGIC, BlockFacts, KvFile, NotAKvFile, Page

FACTS = BlockFacts("0f" * 16, "int8", 16, 64)
BLOCKS = [(bytes([number]) * 16, bytes([number + 100]) * 64) for number in range(5)]
HEAD = len(MAGIC) + 4 + len(msgspec.json.encode(FACTS))
RECORD = 16 + 16 + 64


@pytest.fixture
def file(tmp_path: Path) -> KvFile:
    made = KvFile(tmp_path / "blocks.kv", FACTS, 1 << 20)
    assert made.write(iter(BLOCKS)) == 5
    return made


def test_blocks_come_back_in_their_order(file: KvFile) -> None:
    assert list(file.read(99)) == BLOCKS
    assert list(file.read(2)) == BLOCKS[3:]
    assert list(file.read(0)) == []


def test_no_file_is_no_block(tmp_path: Path) -> None:
    assert list(KvFile(tmp_path / "none", FACTS, 0).read(9)) == []


def test_how_many_blocks_may_be_written(tmp_path: Path) -> None:
    assert [KvFile(tmp_path / "x", FACTS, size).most_blocks for size in (0, RECORD - 1, 3 * RECORD)] == [0, 0, 3]


def test_only_its_owner_may_read_it_and_no_draft_is_left(file: KvFile, tmp_path: Path) -> None:
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["blocks.kv"]


def test_a_write_that_fails_leaves_the_file_as_it_was(file: KvFile, tmp_path: Path) -> None:
    def breaking() -> Iterator[Page]:
        yield BLOCKS[0]
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        file.write(breaking())
    assert list(file.read(9)) == BLOCKS
    assert [path.name for path in tmp_path.iterdir()] == ["blocks.kv"]


def test_a_draft_of_an_earlier_process_of_our_id_is_in_nobodys_way(file: KvFile, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(b"precious")
    (tmp_path / f"blocks.kv.partial-{os.getpid()}").symlink_to(elsewhere)
    assert file.write(iter(BLOCKS[:1])) == 1
    assert elsewhere.read_bytes() == b"precious" and list(file.read(9)) == BLOCKS[:1]


def test_drafts_of_processes_that_are_gone_are_removed(file: KvFile, tmp_path: Path) -> None:
    (tmp_path / f"blocks.kv.partial-{2**22 + 1}").touch()  # beyond the largest id there can be
    (tmp_path / f"blocks.kv.partial-{os.getppid()}").touch()
    (tmp_path / "blocks.kv.partial-old").touch()
    file.write(iter(BLOCKS))
    left = {"blocks.kv", f"blocks.kv.partial-{os.getppid()}", "blocks.kv.partial-old"}
    assert {path.name for path in tmp_path.iterdir()} == left


DAMAGE: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "a bit of a block": (
        lambda given: given[: HEAD + 40] + b"x" + given[HEAD + 41 :],
        "block 0 is not what was written",
    ),
    "a bit of a key": (lambda given: given[:HEAD] + b"x" + given[HEAD + 1 :], "block 0 is not what was written"),
    "blocks that changed places": (
        lambda given: given[: HEAD + 16] + given[HEAD + RECORD + 16 : HEAD + 2 * RECORD] + given[HEAD + RECORD :],
        "block 0 is not what was written",
    ),
    "cut off": (lambda given: given[:-1], r"479 bytes are no whole number of blocks of 96"),
    "more behind": (lambda given: given + b"x", r"481 bytes are no whole number of blocks of 96"),
    "no head": (lambda given: given[:8], "its head cannot have 0 bytes"),
    "a head of gigabytes": (
        lambda given: given[:8] + b"\xff" * 4 + given[12:],
        "its head cannot have 4294967295 bytes",
    ),
    "a head that is no JSON": (lambda given: given[:12] + b"[" * (HEAD - 12) + given[HEAD:], "it is damaged: Expected"),
    "another key in the head": (lambda given: given.replace(b'"identity"', b'"identitY"'), "it is damaged: Object"),
    "another bundle": (lambda given: given.replace(b"0f0f", b"0e0f", 1), "was written for another bundle"),
    "blocks of another size": (lambda given: given.replace(b'":64}', b'":63}'), "was written for another bundle"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_what_is_not_as_it_was_written_is_refused(file: KvFile, case: str) -> None:
    change, message = DAMAGE[case]
    before = file.path.read_bytes()
    file.path.write_bytes(change(before))
    assert file.path.read_bytes() != before
    with pytest.raises(FileRefused, match=message) as caught:
        list(file.read(9))
    assert not isinstance(caught.value, NotAKvFile)


def test_blocks_before_a_damaged_one_are_sound(file: KvFile) -> None:
    content = bytearray(file.path.read_bytes())
    content[HEAD + 2 * RECORD + 50] ^= 1
    file.path.write_bytes(content)
    found = []
    with pytest.raises(FileRefused, match="block 2"):
        for block in file.read(9):
            found.append(block)
    assert found == BLOCKS[:2]


def test_what_is_something_else_is_told_apart(tmp_path: Path) -> None:
    text = tmp_path / "thesis.txt"
    text.write_text("Chapter 1")
    os.mkfifo(tmp_path / "pipe")
    for path, message in (
        (text, "no file of cached blocks"),
        (tmp_path, "it is a folder"),
        (tmp_path / "pipe", "it is a named pipe"),
    ):
        with pytest.raises(NotAKvFile, match=message):
            list(KvFile(path, FACTS, 9).read(9))


def test_other_facts_are_another_file(file: KvFile) -> None:
    for other in (
        msgspec.structs.replace(FACTS, cache="uint8"),
        msgspec.structs.replace(FACTS, block_size=32),
        msgspec.structs.replace(FACTS, identity="00"),
    ):
        with pytest.raises(FileRefused, match="another bundle, other weights or another type of cache"):
            list(replace(file, facts=other).read(9))


@settings(max_examples=300)
@given(data=st.data())
def test_any_damage_gives_only_blocks_that_were_written(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    file = KvFile(tmp_path_factory.mktemp("kv") / "blocks.kv", FACTS, 1 << 20)
    file.write(iter(BLOCKS))
    content = bytearray(file.path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        kind = data.draw(st.sampled_from(["flip", "cut", "insert"]))
        place = data.draw(st.integers(0, len(content) - 1)) if content else 0
        if kind == "flip" and content:
            content[place] ^= data.draw(st.integers(1, 255))
        elif kind == "cut":
            del content[place : place + data.draw(st.sampled_from([1, 96, 1000]))]
        else:
            content[place:place] = data.draw(st.binary(min_size=1, max_size=96))
    file.path.write_bytes(content)
    found = []
    with suppress(FileRefused):
        for block in file.read(9):
            found.append(block)
    assert all(block in BLOCKS for block in found)
