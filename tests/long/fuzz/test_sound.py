"""Sound in every container, changed at random: heard or told of, through the real process that decodes."""

from collections.abc import AsyncIterator

import numpy as np
import pytest

from engine.errors import InvalidRequest
from engine.speech.live import AudioPool
from tests.engine.speech.test_audio_pool import FORMS, written

MUTATIONS = 40  # of each form


@pytest.fixture
async def pool() -> AsyncIterator[AudioPool]:
    made = AudioPool()
    yield made
    await made.close()


def mutated(content: bytes, random: np.random.Generator) -> bytes:
    """Some bytes changed, mostly of the head, which decoders trust; one in three is cut as well."""
    changed = bytearray(content)
    reach = min(len(changed), 512) if random.random() < 0.7 else len(changed)
    for place in random.integers(0, reach, random.integers(1, 12)):
        changed[place] = random.integers(0, 256)
    return bytes(changed[: random.integers(1, len(changed))] if random.random() < 1 / 3 else changed)


@pytest.mark.parametrize(("container", "codec", "rate"), FORMS)
async def test_mutated_files_are_heard_or_told_of(
    container: str, codec: str, rate: int, pool: AudioPool, capfd: pytest.CaptureFixture[str]
) -> None:
    """440 of them in all, and the next one is heard."""
    whole, random = written(container, codec, rate, 0.25), np.random.default_rng(7)
    heard = 0
    for _ in range(MUTATIONS):
        try:
            samples = (await pool.hear(mutated(whole, random), finds_speech=False)).samples
            assert samples.size and np.abs(samples).max() <= 1
            heard += 1
        except InvalidRequest as refused:
            assert refused.param == "file" and "'file' cannot be " in str(refused)
    assert heard < MUTATIONS  # some are told of; of containers with checksums all are
    assert (await pool.hear(whole, finds_speech=False)).samples.size
    told = capfd.readouterr()
    assert "Traceback" not in told.out + told.err
