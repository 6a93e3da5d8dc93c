"""What stands before a log line: whose it is, and of which model where a server has several."""

import logging

SERVER, WORKER = "hexserve", "hexserve.worker"


def labelled(logger: str, model: str) -> str:
    """`hexserve[qwen3]`; the logger alone for the only model of a server, which has no label."""
    return f"{logger}[{model}]" if model else logger


def server_log(model: str) -> logging.Logger:
    """Of the server process."""
    return logging.getLogger(labelled(SERVER, model))


def worker_format(model: str) -> str:
    """Of a worker process, which has one model: every logger in it gets the label."""
    return f"%(asctime)s %(levelname)s {labelled('%(name)s', model.replace('%', '%%'))}: %(message)s"
