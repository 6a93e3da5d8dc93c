"""The rolling record of request timings."""

from engine.client.token_stream import TimingsRecord
from engine.request import RequestTimings


def test_means_last_values_and_counts() -> None:
    record = TimingsRecord()
    record.add(RequestTimings(0.0, 100.0, 1000.0, 50, 0, 11, drafted_tokens=10, accepted_tokens=5))
    record.add(RequestTimings(0.0, 300.0, 1000.0, 100, 40, 21))
    summary = record.summary()
    assert (summary.prompt_ms.mean, summary.prompt_ms.last, summary.prompt_ms.samples) == (200.0, 300.0, 2)
    assert (summary.prompt_tps.mean, summary.prompt_tps.last) == ((500.0 + 200.0) / 2, 200.0)
    assert (summary.generate_tps.mean, summary.generate_tps.last) == (15.0, 20.0)
    assert (summary.acceptance.mean, summary.acceptance.samples) == (0.5, 1)
    assert summary.line() == (
        "requests:2 prompt:200.0ms generate:1000.0ms tps:prompt=350.0 generate=15.0 rows/step=0.0 acceptance=0.50"
    )


def test_a_request_without_a_rate_is_left_out_of_it() -> None:
    record = TimingsRecord()
    record.add(RequestTimings(0.0, 0.0, 0.0, 8, 8, 1))
    assert record.summary().generate_tps.samples == record.summary().prompt_tps.samples == 0
    assert record.summary().prompt_ms.samples == 1


def test_the_record_forgets_the_oldest() -> None:
    record = TimingsRecord(kept=2)
    for milliseconds in (1.0, 2.0, 3.0):
        record.add(RequestTimings(0.0, milliseconds, 1.0, 1, 0, 1))
    assert record.summary().prompt_ms.mean == 2.5
    assert TimingsRecord().summary().line().startswith("requests:0")
