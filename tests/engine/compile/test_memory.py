"""What a compilation took."""

from engine.compile.progress import peak_memory, peak_text


def test_the_peak_is_told_in_one_line() -> None:
    assert peak_text(1_730_000_000, 40_000_000) == "peak memory 1.7 GB"
    assert peak_text(1_000_000_000, 13_500_000_000) == "peak memory 1.0 GB, its largest process beside it 13.5 GB"
    assert peak_text(0, 0) == ""
    assert peak_text(*peak_memory()).startswith(("peak memory ", ""))
