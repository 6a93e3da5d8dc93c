"""Which quality a compilation gets, what is refused, and the source that it reads. Pure."""

from dataclasses import replace

from engine.bundle.task import ModelTask
from engine.compile.arguments import CompileArguments, QualityLevel
from engine.compile.quantization.table import CHOOSABLE
from engine.compile.source import Source
from engine.compile.transforms.source import rotated
from engine.errors import CompileError
from engine.models.network import Network

SEED = 0  # of the rotations


def settle_quality(arguments: CompileArguments, network: Network) -> CompileArguments:
    """The arguments with the quality asked for, else the default. CompileError for one that cannot be had."""
    reason = _unfit(arguments, network)
    if arguments.quality is None:
        return replace(arguments, quality=QualityLevel.FAST if reason else QualityLevel.GOOD)
    if arguments.quality is QualityLevel.FAST:
        return arguments
    if reason:
        raise CompileError(f"--quality {arguments.quality} {reason}")
    if arguments.quality is QualityLevel.BEST:
        raise CompileError("--quality best is not there yet; take good")
    return arguments


def chosen_source(arguments: CompileArguments, source: Source, network: Network) -> Source:
    """The source rotated, unless adapters or nothing at all are to be fitted to it."""
    if arguments.quality is QualityLevel.FAST or arguments.lora:
        return source
    return rotated(source, network, SEED, stream=arguments.task is not ModelTask.EMBED)


def _unfit(arguments: CompileArguments, network: Network) -> str:
    """Why nothing but fast can be had; '' when more can."""
    if arguments.quant not in CHOOSABLE:
        return f"chooses codes of 4 bits: it is for --quant {', '.join(CHOOSABLE)}, not for {arguments.quant}"
    if network.details.diffusion is not None or arguments.whole_context:
        return "is for models that write one token after the other, not for blocks or --whole-context"
    return ""
