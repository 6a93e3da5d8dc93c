"""Stages of a start, with a clock in hand."""

import logging

import pytest

from engine.worker.assembly import Stages

LOG = logging.getLogger("hexserve.test.stages")


def test_times_in_order(caplog: pytest.LogCaptureFixture) -> None:
    ticks = iter([0.0, 1.5, 2.0, 2.25])
    stages = Stages(LOG, lambda: next(ticks))
    with caplog.at_level(logging.DEBUG, LOG.name):
        for name in ("graphs", "step times"):
            with stages.stage(name):
                pass
        stages.finish()
    assert [record.message for record in caplog.records] == [
        "start: graphs",
        "start: step times",
        "started in 1.75 s: graphs 1.50, step times 0.25",
    ]


def test_a_stage_that_fails_is_the_last(caplog: pytest.LogCaptureFixture) -> None:
    stages = Stages(LOG, lambda: 0.0)
    with caplog.at_level(logging.DEBUG, LOG.name), pytest.raises(OSError, match="gone"), stages.stage("graphs"):
        raise OSError("gone")
    assert [record.message for record in caplog.records] == ["start: graphs"]
