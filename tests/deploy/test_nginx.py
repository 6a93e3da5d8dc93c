"""deploy/nginx.conf takes what a server behind it takes."""

import re
from pathlib import Path

from server.api.openai.audio_forms import LARGEST_FILE, PART_BYTES

CONFIGURATION = Path(__file__).parents[2] / "deploy" / "nginx.conf"


def test_the_largest_sound_file_passes() -> None:
    limit = re.search(r"client_max_body_size (\d+)m;", CONFIGURATION.read_text())
    assert limit is not None and int(limit[1]) << 20 >= LARGEST_FILE + PART_BYTES
