"""Whose log line it is, and of which model."""

import logging

import pytest

from engine.logs.handler import server_log, worker_format


@pytest.mark.parametrize(
    ("model", "server", "worker"),
    [
        ("", "hexserve", "hexserve.worker: started"),
        ("qwen3-0.6b", "hexserve[qwen3-0.6b]", "hexserve.worker[qwen3-0.6b]: started"),
        ("100%s", "hexserve[100%s]", "hexserve.worker[100%s]: started"),
    ],
)
def test_the_model_stands_behind_the_logger(model: str, server: str, worker: str) -> None:
    assert server_log(model).name == server
    record = logging.LogRecord("hexserve.worker", logging.INFO, "", 0, "started", (), None)
    assert logging.Formatter(worker_format(model)).format(record).endswith(f" INFO {worker}")
