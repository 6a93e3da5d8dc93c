"""`hexserve export-blocks`: the options as an `ExportArguments`; the compiler is imported when it runs."""

import importlib.util
import sys
from pathlib import Path
from typing import Annotated

import typer

from engine.compile.arguments import Quant, named_source
from engine.compile.block_export.arguments import Backend, ExportArguments
from engine.errors import CompileError
from server.commands.exit_codes import FAILED, INTERRUPTED, refuse
from server.signals import ending_in_order

_Quant = Annotated[Quant | None, typer.Option(help="cpu: fp32 (default), int8, int4; portable: fp32; npu: fp16, w4")]
_Shared = Annotated[bool, typer.Option("--shared-masks", help="one mask for all layers instead of one for each")]


def export_blocks_command(
    source: Annotated[str, typer.Argument(help="Hugging Face folder, .gguf file or 'demo-diffusion'")],
    output: Annotated[Path, typer.Argument(help="folder to make")],
    context: Annotated[int, typer.Option(help="columns of the cache: most tokens of a sequence")] = 2048,
    block: Annotated[int, typer.Option(help="tokens denoised together (as config.json says, else 4)")] = 0,
    batch: Annotated[int, typer.Option(help="sequences in a pass")] = 1,
    backend: Annotated[Backend, typer.Option(help="which operators the graph is made of")] = Backend.CPU,
    quant: _Quant = None,
    shared_masks: _Shared = False,
) -> None:
    """Export a block-diffusion graph: cache and masks in, logits and the updated cache out."""
    folder = named_source(source).folder
    raise typer.Exit(_export(ExportArguments(folder, output, context, block, batch, backend, quant, shared_masks)))


def _export(arguments: ExportArguments) -> int:
    if importlib.util.find_spec("onnx") is None:
        refuse("exporting needs more packages: pip install 'hexserve[compile]'")
    from rich.console import Console

    from engine.compile.block_export.export import export_blocks
    from engine.compile.progress import RichProgress

    try:
        with ending_in_order(), RichProgress(Console(stderr=True)) as progress:
            export_blocks(arguments, progress)
    except CompileError as error:
        refuse(error, FAILED)
    except KeyboardInterrupt:
        print("interrupted; nothing was written", file=sys.stderr)
        return INTERRUPTED
    return 0
