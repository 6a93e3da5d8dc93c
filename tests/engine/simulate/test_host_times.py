"""What the host adds to a pass: from a file of `bench --paced`, from one number, or as measured once."""

import json

import pytest

from engine.simulate.host_times import MEASURED, HostTimes, parse_host_times


def document(*cases: tuple[str, float, float]) -> bytes:
    return json.dumps(
        {"host": [{"case": n, "rows_per_pass": r, "host_ms": h, "share": 1} for n, r, h in cases]}
    ).encode()


def test_linear_between_the_measured_rows_and_flat_outside() -> None:
    times = HostTimes(((2.0, 1.0), (10.0, 5.0), (20.0, 5.5)), "")
    found = [times.milliseconds(rows) for rows in (0, 2, 4, 10, 15, 20, 128)]
    assert found == pytest.approx([1.0, 1.0, 2.0, 5.0, 5.25, 5.5, 5.5])
    assert HostTimes.constant(2.0).milliseconds(77) == 2.0
    assert MEASURED.milliseconds(1) < MEASURED.milliseconds(16)


def test_the_greedy_cases_of_a_file_count() -> None:
    times = parse_host_times(document(("greedy", 16.5, 3.0), ("top-p", 16.0, 9.0), ("greedy", 2.0, 1.0)), "host.json")
    assert (times.points, times.source) == (((2.0, 1.0), (16.5, 3.0)), "host.json")
    assert times.text() == "1.0 ms at 2 rows, 3.0 ms at 16.5 rows"


@pytest.mark.parametrize(
    ("content", "told"),
    [(b"[1]", "it is not what bench --paced writes"), (document(("top-p", 1, 1)), "it holds no greedy case")],
)
def test_other_files_are_refused(content: bytes, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        parse_host_times(content, "host.json")
