"""`hexserve compile` and `hexserve export-blocks`: their options; the compiler is imported when it runs."""

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from engine.bundle.specs import ModelTask
from engine.compile import arguments as options
from engine.compile.arguments import Backend, KvType, KvUpdate, Layout, QualityLevel, Quant, Split, Target
from engine.errors import CompileError
from engine.processes import install_command
from server.commands.exit_codes import FAILED, INTERRUPTED, refuse
from server.signals import ending_in_order

if TYPE_CHECKING:
    from engine.sources.resolve import NamedSource

QUANT = "cpu: int8, or int4 where memory is short; of a .gguf file keep, of an encoder fp32; NPU: w4, fp16"
NUMBERS = ("rows", "context", "same_past", "whole_context")


def _one_of(choices: tuple[int, ...]) -> Callable[[str], int]:
    known = {str(choice): choice for choice in choices}

    def parsed(text: str) -> int:
        if str(text) not in known:
            raise typer.BadParameter(f"{text!r} is not one of {', '.join(known)}.")
        return known[str(text)]

    return parsed


def _option(*names: str, help: str = "", **more: Any) -> Any:
    return typer.Option(*names, help=help, show_default=False, **more)


BLOCK = typer.Option(parser=_one_of(options.BLOCKS), metavar="[32|128]", help="int4: inputs that share a scale")
EMBEDDING = _option(
    "--embedding", parser=_one_of(options.EMBEDDING_BITS), metavar="[32|16|8|4]", help="bits of the table"
)


def compile_command(
    source: Annotated[
        str, typer.Argument(help="a folder, a .gguf file, ORG/NAME of the hub, a name of `models`, or 'demo'")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="bundle folder to make")],
    task: Annotated[ModelTask | None, _option(help="what it is for (see docs/how-to/embeddings.md)")] = None,
    target: Annotated[Target, typer.Option()] = Target.CPU,
    quant: Annotated[Quant | None, _option(help=QUANT)] = None,
    quality: Annotated[
        QualityLevel | None, _option(help="4-bit codes: rounded, chosen on text (default), on more of it")
    ] = None,
    layout: Annotated[Layout | None, _option(help="what a step is made of (see docs/explanation/fused.md)")] = None,
    split: Annotated[Split | None, _option(help="pool: graphs of their own (lmhead)")] = None,
    kv: Annotated[KvType | None, _option(help="segments: keys and values (measured on the model)")] = None,
    decode_slots: Annotated[int, _option(help="fused: sequences decoded beside a prompt")] = 1,
    kv_update: Annotated[KvUpdate | None, _option(help="fused: who writes the caches (cpu: graph, NPU: host)")] = None,
    lora: Annotated[bool, typer.Option("--lora", help="segments: graphs that take low-rank adapters")] = False,
    block: Annotated[int, BLOCK] = options.BLOCKS[0],
    asymmetric: Annotated[bool, typer.Option("--asymmetric", help="int4: a zero point for each block")] = False,
    embedding_bits: Annotated[int | None, EMBEDDING] = None,
    head: Annotated[Quant | None, typer.Option(help="how the LM head is stored (as --quant)")] = None,
    rows: Annotated[str, typer.Option(help="fixed variants: rows, such as 1,8,32,128")] = "",
    context: Annotated[str, typer.Option(help="fixed variants: KV slots, 256,1024")] = "",
    same_past: Annotated[str, typer.Option(help="instead of --context: past KV slots")] = "",
    whole_context: Annotated[str, typer.Option(help="instead: rows of graphs without caches")] = "",
    max_context: Annotated[int, _option(help="most tokens of one sequence")] = 0,
    parity_tokens: Annotated[int, _option(help="length of the final check")] = 0,
    name: Annotated[str, typer.Option(help="name of the model (the source folder's)")] = "",
    share_weights: Annotated[
        bool, typer.Option("--share-weights", help="NPU: one binary for all variants (default)")
    ] = False,
    one_graph_per_binary: Annotated[
        bool, typer.Option("--one-graph-per-binary", help="NPU: a binary for each variant, as the emulator needs")
    ] = False,
    part_mb: Annotated[
        int, typer.Option(help="NPU: cut the layers into binaries of at most so much")
    ] = options.DEFAULT_PART_MB,
    calibration: Annotated[
        Path | None, typer.Option(help="text or JSON lines to measure on (see docs/explanation/quantisation.md)")
    ] = None,
    amx: Annotated[
        bool | None, typer.Option("--amx/--no-amx", help="cpu: 8 bits as Intel's AMX multiplies them (as this CPU)")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="replace an existing bundle")] = False,
) -> None:
    """Compile a Hugging Face folder or a GGUF file, perhaps of the hub, into a bundle."""
    given: dict[str, Any] = dict(locals())  # options have the names of what they become
    if given.pop("one_graph_per_binary") and share_weights:
        raise typer.BadParameter("not allowed with --share-weights", param_hint="'--one-graph-per-binary'")
    given |= {key: _numbers(given[key], key) for key in NUMBERS}
    need_compiler("compiling")  # before anything is fetched
    named = source_here(source)
    given |= {"source": named.folder, "name": name or named.name, "embedding_bits": embedding_bits or 0}
    given |= {"quant": quant or options.default_quant(target, named.folder), "share_weights": not one_graph_per_binary}
    given["parity_tokens"] = parity_tokens or named.parity_tokens
    from engine.compile.__main__ import run_compiler

    with ending_in_order():
        raise typer.Exit(run_compiler(options.CompileArguments(**given)))


def source_here(source: str) -> "NamedSource":
    """The files of a source, fetched if need be; ends the command when that fails."""
    from engine.sources.resolve import named_source
    from server.commands.own_server import settings_cache

    try:
        return named_source(source, settings_cache())
    except OSError as error:
        refuse(error)


def need_compiler(work: str) -> None:
    """End the command where the extra `compile` is not installed. work: what needs it, as a subject."""
    if importlib.util.find_spec("onnx") is None:
        refuse(f"{work} needs more packages: {install_command('compile')}")


def _numbers(text: str, key: str) -> tuple[int, ...]:
    try:
        return tuple(sorted({int(part) for part in text.split(",") if part.strip()}))
    except ValueError:
        hint = f"'--{key.replace('_', '-')}'"
        raise typer.BadParameter(f"{text!r} is not a list of numbers such as 1,8,32", param_hint=hint) from None


def export_blocks_command(
    source: Annotated[str, typer.Argument(help="a folder, a .gguf file, ORG/NAME of the hub or 'demo-diffusion'")],
    output: Annotated[Path, typer.Argument(help="folder to make")],
    context: Annotated[int, typer.Option(help="tokens of the cache")] = 2048,
    block: Annotated[int, typer.Option(help="tokens denoised together (as config.json says, else 4)")] = 0,
    batch: Annotated[int, typer.Option(help="sequences in a step")] = 1,
    backend: Annotated[Backend, typer.Option(help="which operators the graph is made of")] = Backend.CPU,
    quant: Annotated[
        Quant | None, typer.Option(help="cpu: fp32 (default), int8, int4; portable: fp32; npu: fp16, w4")
    ] = None,
    shared_masks: Annotated[
        bool, typer.Option("--shared-masks", help="one mask for all layers instead of one for each")
    ] = False,
) -> None:
    """Export a block-diffusion graph: cache and masks in, logits and the updated cache out."""
    need_compiler("exporting")
    folder = source_here(source).folder
    arguments = options.ExportArguments(folder, output, context, block, batch, backend, quant, shared_masks)
    from rich.console import Console

    from engine.compile.graphs.block_export import export_blocks
    from engine.compile.progress import RichProgress

    try:
        with ending_in_order(), RichProgress(Console(stderr=True)) as progress:
            export_blocks(arguments, progress)
    except CompileError as error:
        refuse(error, FAILED)
    except KeyboardInterrupt:
        print("interrupted; nothing was written", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
