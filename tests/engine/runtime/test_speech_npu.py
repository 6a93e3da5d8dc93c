"""Graphs cut as AI Hub cuts them, run by the CPU: texts share steps, and each is what transformers writes alone."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from engine.bundle.manifest import Manifest, NpuSpec, load_manifest, save_manifest
from engine.bundle.speech import check_speech
from engine.bundle.variant import ShapeTable
from engine.compile.arguments import CompileArguments, Quant, Target
from engine.compile.graphs import speech as graphs_of_speech
from engine.compile.progress import SilentProgress
from engine.compile.quantisation.packer import WeightPacker
from engine.compile.quantisation.weight_file import WeightFile
from engine.compile.sources.speech.source import open_speech
from engine.compile.targets import speech
from engine.config import EngineConfig
from engine.errors import BundleError
from engine.runtime.interface import Runtime
from engine.runtime.sessions import cpu_provider
from engine.runtime.speech import NpuSpeechRuntime
from engine.worker.assembly import assemble
from engine.worker.step import EngineLoop
from tests.tiny_whisper import by_transformers, request, run, tokens_of, write_folder

CONTEXT = 200
TOKENS = 24


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle whose graphs are the sources of an NPU's binaries."""
    made = tmp_path_factory.mktemp("whisper")
    arguments = CompileArguments(
        write_folder(made / "source", CONTEXT), made / "bundle", quant=Quant.FP32, target=Target.CPU
    )
    manifest = speech.compile_speech(arguments, SilentProgress())
    with (
        pytest.MonkeyPatch.context() as patch,
        open_speech(made / "source") as source,
        WeightFile(made / "bundle", "weights.bin") as file,
    ):
        patch.setattr(graphs_of_speech, "HALF", "float32")  # so that tokens are transformers' to the last one
        packer = WeightPacker(source.checkpoint, source.network.decoder, arguments, lambda size: None)
        packed = speech.SpeechPacker(source.network, packer, file).pack()
        graphs = (
            graphs_of_speech.write_npu_encoder(packed, source.network, made / "bundle"),
            graphs_of_speech.write_npu_decoder(packed, source.network, CONTEXT - 1, made / "bundle"),
        )
    assert manifest.speech is not None
    npu = msgspec.structs.replace(
        manifest,
        graphs=graphs,
        files={},
        speech=msgspec.structs.replace(manifest.speech, alignment=()),
        npu=NpuSpec(60, 73, {}),
    )
    check_speech(npu)
    save_manifest(made / "bundle", npu)
    return made / "bundle"


def open_loop(folder: Path, slots: int = 3) -> EngineLoop:
    def opened(folder: Path, manifest: Manifest, shapes: ShapeTable, config: EngineConfig) -> Runtime:
        return NpuSpeechRuntime(folder, manifest, shapes, config.max_running, cpu_provider(1))

    return assemble(EngineConfig(bundle=str(folder), max_running=slots), opened).loop


def test_each_as_alone(folder: Path) -> None:
    """Seven texts in three slots: each is joined and left by others, two of them hear the same."""
    loop = open_loop(folder)
    for number in range(6):
        loop.add(request(number, TOKENS), (), 0, 0.0)
    loop.add(replace(request(1, TOKENS), id="again"), (), 0, 0.0)
    found = {name: tokens_of(events) for name, events in run(loop).items()}
    wanted = {f"text-{number}": by_transformers(number, TOKENS, CONTEXT) for number in range(6)}
    assert found == wanted | {"again": wanted["text-1"]}
    assert len({tuple(tokens) for tokens in wanted.values()}) > 3


def test_goes_on_behind_an_earlier_worker(folder: Path) -> None:
    wanted = by_transformers(1, TOKENS, CONTEXT)
    loop = open_loop(folder)
    loop.add(request(1, TOKENS), tuple(wanted[:5]), 0, 0.0)
    assert tokens_of(run(loop)["text-1"]) == wanted[5:]


def test_a_text_fills_all_places(folder: Path) -> None:
    loop = open_loop(folder, slots=1)
    loop.add(replace(request(2, CONTEXT), params=replace(request(2, CONTEXT).params, stop_token_ids=())), (), 0, 0.0)
    assert len(tokens_of(run(loop)["text-2"])) == CONTEXT - 4


Change = Callable[[Manifest], Manifest]


def encoder_alone(manifest: Manifest) -> Manifest:
    return msgspec.structs.replace(manifest, graphs=manifest.graphs[:1])


def shorter(manifest: Manifest) -> Manifest:
    return msgspec.structs.replace(manifest, max_context=100)


def other_numbers(manifest: Manifest) -> Manifest:
    """Caches that come out in another type than they go in."""
    encoder, decoder = manifest.graphs
    outputs = tuple(
        msgspec.structs.replace(tensor, dtype="float16") if tensor.name == "k_cache_self_1_out" else tensor
        for tensor in decoder.outputs
    )
    return msgspec.structs.replace(manifest, graphs=(encoder, msgspec.structs.replace(decoder, outputs=outputs)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (encoder_alone, "one graph of each kind"),
        (shorter, r"attention_mask is float32 .* want numbers \[100\]"),
        (other_numbers, "k_cache_self_1_in and k_cache_self_1_out hold other numbers"),
    ],
)
def test_graphs_that_do_not_fit_are_refused(change: Change, message: str, folder: Path) -> None:
    with pytest.raises(BundleError, match=message):
        check_speech(change(load_manifest(folder)))
