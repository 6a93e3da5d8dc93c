"""Grammars are compiled in processes of their own: a spec that takes too long fails its own request and no other.
Compilers start when they are first needed. What they answered is remembered, what became of them never."""

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from engine.bundle.manifest import Manifest
from engine.errors import Busy, BusyReason, EngineFailure, InvalidRequest
from engine.grammar.spec import Compiled, CompilerOpening, GrammarSpec, decode_compiled, encode
from engine.isolation.helper_pool import Answer, Failure, HelperLimits, HelperPool
from engine.processes import module_command

REMEMBERED = 128
REMEMBERED_BYTES = 64 * 1024 * 1024
LARGEST_BYTES = 1024 * 1024  # of one form
START_S = 60.0
WAITING_PER_COMPILER = 32
LIMITS = HelperLimits()


def compiler_command(folder: Path, manifest: Manifest) -> list[str]:
    """The command line that starts a process which compiles grammars for a bundle."""
    ends = (str(end) for end in manifest.text.stop_ids)
    tokenizer = str(folder / manifest.text.tokenizer)
    return module_command("engine.grammar.compiler", tokenizer, str(manifest.model.vocab), *ends)


class GrammarCompilerPool(HelperPool):
    """All methods belong to one event loop. `command` starts a compiler."""

    def __init__(self, command: Sequence[str], limits: HelperLimits = LIMITS, label: str = "") -> None:
        """limits: its `opening_s` is `START_S`, whatever it says."""
        opening = encode(CompilerOpening(limits.budget_s))
        super().__init__("the grammar compiler", command, opening, _accept, replace(limits, opening_s=START_S), label)
        self._compilers = limits.processes
        self._free = asyncio.Semaphore(limits.processes)
        self._waiting = 0  # for a compiler, or for its answer
        self._known: OrderedDict[bytes, Compiled] = OrderedDict()
        self._known_bytes = 0

    async def compile(self, spec: GrammarSpec, param: str) -> str:
        """The serialised grammar. InvalidRequest naming `param` when it is invalid, too large or too slow, `tools` when
        one of them is at fault. EngineFailure when no compiler starts, Busy when too many wait or the server ends."""
        encoded = encode(spec)
        if len(encoded) > LARGEST_BYTES:
            message = f"Invalid '{param}': it has {len(encoded)} bytes, the limit is {LARGEST_BYTES}."
            raise InvalidRequest(message, param, "string_above_max_length")
        answer = self._known.get(encoded)
        if answer is None:
            answer = await self._in_turn(encoded)
        if answer.tool:
            raise InvalidRequest(f"Invalid 'tools': '{answer.tool}': {answer.error}", "tools", "invalid_value")
        if answer.error:
            raise InvalidRequest(f"Invalid '{param}': {answer.error}", param, "invalid_value")
        return answer.grammar

    async def _in_turn(self, encoded: bytes) -> Compiled:
        if self._waiting >= WAITING_PER_COMPILER * self._compilers:
            message = f"{self._waiting} requests wait for the form of their answer to be compiled."
            raise Busy(message, BusyReason.GRAMMARS, max(1.0, WAITING_PER_COMPILER * self._budget_s / 2))
        self._waiting += 1
        try:
            async with self._free:
                return self._known.get(encoded) or await self._compile(encoded)  # a neighbour had the same spec
        finally:
            self._waiting -= 1

    async def _compile(self, encoded: bytes) -> Compiled:
        """The compiler's answer, or what its end says; an end is not remembered, it may be another one next time."""
        answer = await self.ask(encoded)
        if answer is Failure.DIED:
            return Compiled(error="its grammar cannot be compiled within the limits of this server")
        if isinstance(answer, Failure):
            return Compiled(error=f"its grammar takes more than {self._budget_s:g} s to compile")
        compiled = decode_compiled(answer)
        if encoded not in self._known:  # else a neighbour had the same spec meanwhile
            self._known[encoded] = compiled
            self._known_bytes += _size(encoded, compiled)
        while len(self._known) > REMEMBERED or self._known_bytes > REMEMBERED_BYTES:
            self._known_bytes -= _size(*self._known.popitem(last=False))
        return compiled


def _size(encoded: bytes, answer: Compiled) -> int:
    return len(encoded) + len(answer.grammar)


def _accept(answer: Answer) -> None:
    if isinstance(answer, Failure):
        raise EngineFailure(f"the grammar compiler did not start: {answer}")
    if error := decode_compiled(answer).error:
        raise InvalidRequest(error, code="unsupported_value")
