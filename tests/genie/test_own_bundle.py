"""An own NPU bundle of two parts is a Genie bundle: libGenie loads it and gives the tokens of our own loop."""

from pathlib import Path

import msgspec
import pytest

from engine.bundle.manifest import describe_file, load_manifest, save_manifest
from engine.compile.arguments import CompileArguments, Quant, Split, Target
from engine.compile.pipeline import compile_bundle
from engine.compile.progress import SilentProgress
from engine.compile.random_checkpoint import write_checkpoint
from engine.genie.write import write_genie_files
from tests.genie.emulator import EMULATOR, emulated_greedy
from tests.genie.oracle import genie_greedy
from tests.genie.test_oracle import CONTEXT, COUNT, SMALL, prompts


@pytest.mark.skipif(not EMULATOR, reason="the HTP emulator comes with onnxruntime-qnn for x86-64 Linux")
def test_libgenie_runs_it(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "checkpoint", SMALL)
    bundle = tmp_path / "bundle"
    compile_bundle(
        CompileArguments(
            source=tmp_path / "checkpoint",
            output=bundle,
            target=Target.X_ELITE,
            quant=Quant.FP16,
            split=Split.LMHEAD,
            rows=(1, 8),
            context=(CONTEXT,),
            share_weights=False,
            parity_tokens=2,
        ),
        SilentProgress(),
    )
    manifest = write_genie_files(bundle, load_manifest(bundle))
    files = {path.name: describe_file(path) for path in bundle.iterdir() if path.name in manifest.files}
    save_manifest(bundle, msgspec.structs.replace(manifest, files=files))
    queries = prompts(5)
    ours = emulated_greedy(bundle, [(prompt, COUNT, 8) for prompt in queries], tmp_path)
    assert genie_greedy(bundle, [(prompt, COUNT) for prompt in queries], tmp_path) == ours
