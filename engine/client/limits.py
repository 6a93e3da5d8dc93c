"""How much an engine takes in."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from engine.grammar.compiler_pool import GrammarCompilerLimits
from engine.isolation.helper_pool import HelperLimits


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """Bounds on what is taken in.

    max_queued: unfinished requests at once, waiting and running. max_queued_tokens: prompt tokens whose request has no
    token yet, 0 = off. stream_buffer: deltas a reader may lag behind before its stream is dropped. grammars: how large
    and how slow the form of an answer may be. templates: how slow a chat template may be. denoising: what the caller
    gives requests that do not say how their blocks are denoised; for the fingerprint.
    """

    max_queued: int = 256
    max_queued_tokens: int = 0
    stream_buffer: int = 1024
    grammars: GrammarCompilerLimits = field(default_factory=GrammarCompilerLimits)
    templates: HelperLimits = field(default_factory=HelperLimits)
    denoising: Mapping[str, object] = field(default_factory=dict)
