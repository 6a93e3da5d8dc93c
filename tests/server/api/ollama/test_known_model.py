"""Models in Ollama's words, of every task and before anything is known of them."""

from typing import Any

import msgspec
import pytest

from engine.bundle.answer_format import Markers
from engine.bundle.manifest import Manifest, TextSpec
from engine.bundle.specs import EncoderSpec, ModelTask
from server.api.ollama.models import KnownModel
from tests.server.scripted_engine import manifest


def described(**fields: Any) -> Manifest:
    return msgspec.structs.replace(manifest(), **fields)


def thinking() -> TextSpec:
    """A template that marks reasoning."""
    text = manifest().text
    marks = Markers("<think>", "</think>")
    return msgspec.structs.replace(text, answer=msgspec.structs.replace(text.writes, reasoning=marks))


@pytest.mark.parametrize(
    ("fields", "capabilities"),
    [
        ({}, ["completion", "tools"]),
        ({"text": thinking()}, ["completion", "tools", "thinking"]),
        ({"task": ModelTask.EMBED}, ["embedding"]),
        ({"task": ModelTask.RERANK}, ["completion", "tools"]),
        ({"task": ModelTask.RERANK, "encoder": EncoderSpec(2)}, []),
    ],
    ids=["chat", "thinks", "embeds", "a chat model that judges", "a cross-encoder"],
)
def test_what_may_be_asked_of_a_model(fields: dict[str, Any], capabilities: list[str]) -> None:
    assert KnownModel("m", "", described(**fields), 100).shown(None).capabilities == capabilities


def test_a_checkpoint_that_was_never_compiled() -> None:
    model = KnownModel("m:latest", "", None, None)
    assert (model.listed().size, model.listed().modified_at) == (0, "1970-01-01T00:00:00.000000000Z")
    assert model.listed().details.families == []
    assert model.shown(None).model_info == {"general.basename": "m:latest"}


@pytest.mark.parametrize(
    ("parameters", "shown"), [(999, "999"), (1_234, "1.2K"), (3_700_000, "3.7M"), (4_022_000_000, "4.0B")]
)
def test_sizes_are_short(parameters: int, shown: str) -> None:
    model = msgspec.structs.replace(manifest().model, parameters=parameters)
    assert KnownModel("m", "", described(model=model), 1).listed().details.parameter_size == shown


@pytest.mark.parametrize(
    ("device", "memory", "sizes"), [("CPU", 0, (0, 0)), ("CPU", 40, (40, 0)), ("NPU", 40, (40, 40))]
)
def test_what_lies_in_the_memory_of_an_accelerator(device: str, memory: int, sizes: tuple[int, int]) -> None:
    loaded = KnownModel("m", "", manifest(), 1).loaded(device, memory, "then")
    assert (loaded.size, loaded.size_vram, loaded.expires_at) == (*sizes, "then")


def test_the_digest_is_of_the_files() -> None:
    digests = [KnownModel("m", "", described(name=name), 1).listed().digest for name in ("a", "b")]
    assert digests[0] == digests[1] and len(digests[0]) == 64
