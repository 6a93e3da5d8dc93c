"""Tables of the user's own."""

from pathlib import Path

import pytest

from engine.bundle.stored_times import StoredTimes, rows_of, save
from engine.bundle.variant import StepShape
from tools.simulate.prices import parse_times


def test_what_the_engine_remembers_is_read(tmp_path: Path) -> None:
    times = {StepShape(1, 96): 3.5, StepShape(32, 96): 4.25}
    save(tmp_path / "costs.json", StoredTimes(rows_of(times)))
    assert parse_times((tmp_path / "costs.json").read_bytes()) == times


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not hold times as lists"),
        (b'{"1": 2}', "not hold times as lists"),
        (b'{"times": [[1, 2]]}', "not hold times as lists"),
        (b'{"times": [[1, 64, 0]]}', "not hold times as lists"),
        (b'{"times": [[0, 64, 1.0], [8, 64, 2.0]]}', "three numbers above 0"),
        (b'{"times": [[8, 64, 1e999]]}', "not hold times as lists|above 0"),
        (b'{"times": []}', "no variant of 2 rows or more"),
        (b'{"times": [[1, 64, 1.0]]}', "no variant of 2 rows or more"),
    ],
)
def test_a_damaged_file_is_one_sentence(content: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        parse_times(content)
    assert "\n" not in str(caught.value)
