"""Tables of the user's own."""

from pathlib import Path

import pytest

from engine.bundle.variant import StepShape
from engine.runtime.step_times import save_times
from tools.simulate.costs_file import parse_times


def test_what_the_engine_remembers_is_read(tmp_path: Path) -> None:
    times = {StepShape(1, 96): 3.5, StepShape(32, 96): 4.25}
    save_times(tmp_path / "costs.json", times)
    assert parse_times((tmp_path / "costs.json").read_bytes()) == times


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a list of"),
        (b'{"1": 2}', "not a list of"),
        (b"[[1, 2]]", "not a list of"),
        (b"[[1, 64, 0]]", "three numbers above 0"),
        (b"[[0, 64, 1.0], [8, 64, 2.0]]", "three numbers above 0"),
        (b"[[8, 64, 1e999]]", "not a list of|above 0"),
        (b"[]", "no variant of 2 rows or more"),
        (b"[[1, 64, 1.0]]", "no variant of 2 rows or more"),
    ],
)
def test_a_damaged_file_is_one_sentence(content: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        parse_times(content)
    assert "\n" not in str(caught.value)
