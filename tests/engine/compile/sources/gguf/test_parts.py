"""A model in several GGUF files, as the `gguf` package splits it, is the model in one."""

from pathlib import Path

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType

from engine.compile.sources.gguf.file import GgufSource
from engine.compile.sources.gguf.header import read_header
from engine.errors import CompileError
from engine.files import model_name, model_parts
from tests.engine.compile.sources.gguf.gguf_files import write_gguf

PART_TENSORS = 10


@pytest.fixture(scope="module")
def parts(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first of several files; beside it `whole.gguf`."""
    folder = tmp_path_factory.mktemp("parts")
    write_gguf(tiny_checkpoint, folder / "whole.gguf", GGMLQuantizationType.Q8_0)
    write_gguf(tiny_checkpoint, folder / "m.gguf", GGMLQuantizationType.Q8_0, part_tensors=PART_TENSORS)
    (first,) = folder.glob("m-00001-of-*.gguf")
    return first


def test_every_tensor_is_read_from_its_part(parts: Path) -> None:
    whole = parts.with_name("whole.gguf")
    assert len(model_parts(parts)) > 1 and all(path.is_file() for path in model_parts(parts))
    assert (model_name(parts), model_name(whole), model_parts(whole)) == ("m", "whole", [whole])
    one, several = GgufSource(whole), GgufSource(parts)
    assert several.config == one.config
    with one.tensors() as expected, several.tensors() as found:
        for name in (
            "model.embed_tokens.weight",
            "model.layers.0.mlp.up_proj.weight",
            "model.layers.1.mlp.down_proj.weight",
        ):
            shape = expected.shape(name)
            assert np.array_equal(found.tensor(name, shape), expected.tensor(name, shape))
    assert {read_header(parts).tensors[name].path for name in read_header(whole).tensors} == set(model_parts(parts))


def test_a_part_that_is_missing_or_another_one_is_named(parts: Path, tmp_path: Path) -> None:
    copies = [tmp_path / path.name for path in model_parts(parts)]
    for path in model_parts(parts):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    with pytest.raises(
        CompileError, match=rf"^{copies[1].name} is one of {len(copies)} files of a model; name the first"
    ):
        read_header(copies[1])
    copies[1].write_bytes(copies[0].read_bytes())
    with pytest.raises(CompileError, match=r"00002-of-\d+.gguf does not say that it is part 2 of"):
        read_header(copies[0])
    copies[1].unlink()
    with pytest.raises(CompileError, match=r"00002-of-\d+.gguf cannot be read: No such file"):
        read_header(copies[0])
