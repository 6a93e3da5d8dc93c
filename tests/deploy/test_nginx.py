"""deploy/nginx.conf takes what a server behind it takes."""

import re
from pathlib import Path

from engine.config import EngineConfig
from server.api.openai.audio_forms import LARGEST_FILE, PART_BYTES
from server.settings import Settings

CONFIGURATION = Path(__file__).parents[2] / "deploy" / "nginx.conf"


def test_the_largest_sound_file_passes() -> None:
    limit = re.search(r"client_max_body_size (\d+)m;", CONFIGURATION.read_text())
    assert limit is not None and int(limit[1]) << 20 >= LARGEST_FILE + PART_BYTES


def test_a_silent_answer_is_not_asked_for_again() -> None:
    """Streams have comment lines; a whole answer has nothing before its end, and the server sets it no limit."""
    days = re.search(r"proxy_read_timeout (\d+)d;", CONFIGURATION.read_text())
    assert days is not None and Settings(EngineConfig("demo")).request_timeout_s == 0 < int(days[1])
