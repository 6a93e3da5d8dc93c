"""Log lines of the server process: one format, on stderr."""

import logging


def set_up_logging(level: str) -> None:
    """Configure the root logger; `level` is one of settings.LOG_LEVELS."""
    logging.basicConfig(level=level.upper(), format="%(asctime)s %(levelname)-7s %(name)s: %(message)s", force=True)
    logging.getLogger("uvicorn").setLevel(max(logging.WARNING, logging.getLevelNamesMapping()[level.upper()]))
    logging.getLogger("asyncio").setLevel(logging.WARNING)
    logging.getLogger("sse_starlette").setLevel(logging.WARNING)  # at debug it writes out every chunk
