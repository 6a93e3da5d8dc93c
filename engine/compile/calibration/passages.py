"""What integer graphs are observed on: texts, and where images are read also texts with rows of images in them."""

import shutil
from collections.abc import Iterator

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine.bundle.manifest import GraphKind, GraphSpec
from engine.bundle.weight_files import EMBEDDING_FILE
from engine.compile.arguments import Split
from engine.compile.calibration.observe import Passage
from engine.compile.check.parity import plain_cpu
from engine.compile.compilation import Compilation, describe
from engine.compile.graphs.vision import vision_graph, vision_network
from engine.compile.quantisation.weight_file import WeightFile
from engine.compile.sources.checkpoint import Float32
from engine.models.vision_network import VISION_DATA
from engine.runtime.vision import FixedVisionGraph

SQUARES = (1, 2, 4, 8, 16, 32, 64, 128)  # of a side of each picture


def passages_of(work: Compilation, texts: list[list[int]]) -> list[Passage]:
    """Token ids, or rows of the table that the host looks tokens up in; it has been written by then."""
    if work.arguments.split is not Split.HOST_LMHEAD:
        return [np.array(text, np.int32) for text in texts]
    table = np.memmap(work.folder / EMBEDDING_FILE, "<f4", "r").reshape(work.network.spec.vocab, -1)
    rows = [np.array(table[text], np.float32) for text in texts]
    images = _images(work) if work.network.reads_images else []
    return [*rows, *(with_image(text, image) for text, image in zip(rows, images, strict=False))]


def with_image(text: Float32, image: Float32) -> Float32:
    """Rows [tokens, H] of a text whose middle half is an image's [T, H], or as many of these, spread over all."""
    count, place = min(len(image), len(text) // 2), len(text) // 4
    found = text.copy()
    found[place : place + count] = image[np.arange(count) * len(image) // count]
    return found


def pictures(height: int, width: int) -> Iterator[NDArray[np.uint8]]:
    """Squares of any colours [3, height, width], from one of all to nearly noise."""
    random = np.random.default_rng(0)
    for count in SQUARES:
        colours = random.integers(0, 256, (3, count, count), np.uint8)
        yield colours[:, np.arange(height)[:, None] * count // height, np.arange(width) * count // width]


def _images(work: Compilation) -> list[Float32]:
    """Rows [T, H] of every picture, as the encoder gives them in float32 on the CPU."""
    network, folder = vision_network(work), work.graph_folder / "float_vision"
    fixed = network.spec.fixed
    assert fixed is not None, "an NPU has images of one size"
    folder.mkdir()
    with WeightFile(folder, VISION_DATA) as file:
        graph = vision_graph(network, work.original, file, work.network.spec.hidden, "float32", lambda _: None)
    (folder / network.spec.file).write_bytes(graph.model("vision").SerializeToString())
    tensors = tuple(graph.inputs), tuple(graph.outputs)
    spec = GraphSpec("vision", network.spec.file, GraphKind.IMAGE_ENCODER, 1, 1, *tensors)
    manifest = msgspec.structs.replace(describe(work), vision=network.spec, image_graph=spec)
    reader = FixedVisionGraph(folder, manifest, plain_cpu())
    found = [reader.read(pixels) for pixels in pictures(fixed.height, fixed.width)]
    del reader  # it maps the weights
    shutil.rmtree(folder)
    return found
