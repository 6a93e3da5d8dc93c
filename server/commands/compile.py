"""`hexserve compile`: the options as a `CompileArguments`; the compiler is imported when it runs."""

import importlib.util
from pathlib import Path
from typing import Annotated

import typer

from engine.bundle.task import ModelTask
from engine.compile.arguments import (
    BLOCKS,
    DEFAULT_PART_MB,
    EMBEDDING_BITS,
    CompileArguments,
    KvType,
    KvUpdate,
    Layout,
    QualityLevel,
    Quant,
    Split,
    Target,
    default_quant,
    named_source,
)
from server.commands.exit_codes import refuse
from server.signals import ending_in_order


def _block(text: str) -> int:
    return _one_of(text, BLOCKS)


def _embedding(text: str) -> int:
    return _one_of(text, EMBEDDING_BITS)


def _one_of(text: str, choices: tuple[int, ...]) -> int:
    known = {str(choice): choice for choice in choices}
    if str(text) not in known:
        raise typer.BadParameter(f"{text!r} is not one of {', '.join(known)}.")
    return known[str(text)]


# Options that take more than a line.
_Layout = Annotated[
    Layout | None,
    typer.Option(help="what a pass is made of (see docs/fused.md, docs/decisions.md)", show_default=False),
]
_Quant = Annotated[
    Quant | None,
    typer.Option(help="cpu: int4, of a .gguf file keep, of an encoder int8; NPU: w4, of an encoder fp16"),
]
_Kv = Annotated[
    KvType | None, typer.Option(help="segments: keys and values (int8 for int4, else float32)", show_default=False)
]
_DecodeSlots = Annotated[int, typer.Option(help="fused: sequences decoded beside a prompt", show_default=False)]
_KvUpdate = Annotated[
    KvUpdate | None, typer.Option(help="fused: who writes the caches (cpu: graph, NPU: host)", show_default=False)
]
_Block = Annotated[int, typer.Option(parser=_block, metavar="[32|128]", help="int4: inputs that share a scale")]
_Embedding = Annotated[int | None, typer.Option(parser=_embedding, metavar="[32|16|8|4]", help="bits of the table")]
_ShareWeights = Annotated[bool, typer.Option("--share-weights", help="NPU: one binary for all variants (default)")]
_OneGraphPerBinary = Annotated[
    bool, typer.Option("--one-graph-per-binary", help="NPU: a binary for each variant, as the emulator needs")
]
_Lora = Annotated[bool, typer.Option("--lora", help="segments: graphs that take low-rank adapters")]
_Quality = Annotated[
    QualityLevel | None,
    typer.Option(help="4-bit codes: rounded, chosen on text (default), learned", show_default=False),
]
_Task = Annotated[ModelTask | None, typer.Option(help="what it is for (see docs/embeddings.md)", show_default=False)]
_PartMb = Annotated[int, typer.Option(help="NPU: cut the layers into binaries of at most so much")]


def compile_command(
    source: Annotated[str, typer.Argument(help="Hugging Face folder, .gguf file, 'demo' or 'demo-diffusion'")],
    output: Annotated[Path, typer.Option("--output", "-o", help="bundle folder to make")],
    task: _Task = None,
    target: Annotated[Target, typer.Option()] = Target.CPU,
    quant: _Quant = None,
    quality: _Quality = None,
    layout: _Layout = None,
    split: Annotated[Split | None, typer.Option(help="pool: graphs of their own (lmhead)", show_default=False)] = None,
    kv: _Kv = None,
    decode_slots: _DecodeSlots = 1,
    kv_update: _KvUpdate = None,
    lora: _Lora = False,
    block: _Block = BLOCKS[0],
    asymmetric: Annotated[bool, typer.Option("--asymmetric", help="int4: a zero point for each block")] = False,
    embedding: _Embedding = None,
    head: Annotated[Quant | None, typer.Option(help="how the LM head is stored (as --quant)")] = None,
    rows: Annotated[str, typer.Option(help="fixed variants: rows, such as 1,8,32,128")] = "",
    context: Annotated[str, typer.Option(help="fixed variants: key axis widths, 256,1024")] = "",
    same_past: Annotated[str, typer.Option(help="instead of --context: past columns")] = "",
    whole_context: Annotated[str, typer.Option(help="instead: rows of graphs without caches")] = "",
    max_context: Annotated[int, typer.Option(help="most tokens of one sequence", show_default=False)] = 0,
    parity_tokens: Annotated[int, typer.Option(help="length of the final check", show_default=False)] = 0,
    name: Annotated[str, typer.Option(help="name of the model (the source folder's)")] = "",
    share_weights: _ShareWeights = False,
    one_graph_per_binary: _OneGraphPerBinary = False,
    part_mb: _PartMb = DEFAULT_PART_MB,
    calibration: Annotated[
        Path | None, typer.Option(help="text or JSON lines to measure on (see docs/quality.md)")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="replace an existing bundle")] = False,
) -> None:
    """Compile a Hugging Face folder or a GGUF file into a bundle."""
    named = named_source(source)
    arguments = CompileArguments(
        source=named.folder,
        output=output,
        target=target,
        quant=quant or default_quant(target, named.folder),
        layout=layout,
        split=split,
        kv=kv,
        block=block,
        asymmetric=asymmetric,
        embedding_bits=embedding or 0,
        head=head,
        rows=_numbers(rows, "--rows"),
        context=_numbers(context, "--context"),
        same_past=_numbers(same_past, "--same-past"),
        whole_context=_numbers(whole_context, "--whole-context"),
        max_context=max_context,
        parity_tokens=parity_tokens or named.parity_tokens,
        force=force,
        name=name or named.name,
        share_weights=_shares(share_weights, one_graph_per_binary),
        part_mb=part_mb,
        calibration=calibration,
        decode_slots=decode_slots,
        kv_update=kv_update,
        lora=lora,
        task=task,
        quality=quality,
    )
    raise typer.Exit(compile_here(arguments))


def compile_here(arguments: CompileArguments) -> int:
    """Compile in this process; the exit code."""
    if importlib.util.find_spec("onnx") is None:
        refuse("compiling needs more packages: pip install 'hexserve[compile]'")
    from engine.compile.console import run_compiler

    with ending_in_order():
        return run_compiler(arguments)


def _shares(share_weights: bool, one_graph_per_binary: bool) -> bool:
    """Two options that say the opposite of each other: the first is the default."""
    if share_weights and one_graph_per_binary:
        raise typer.BadParameter("not allowed with --share-weights", param_hint="'--one-graph-per-binary'")
    return not one_graph_per_binary


def _numbers(text: str, option: str) -> tuple[int, ...]:
    """'1,8,32' as a sorted tuple without repeats."""
    try:
        return tuple(sorted({int(part) for part in text.split(",") if part.strip()}))
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is not a list of numbers such as 1,8,32", param_hint=f"'{option}'"
        ) from None
