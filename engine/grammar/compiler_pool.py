"""Grammars are compiled in processes of their own: a spec that takes too long fails its own request and no other.

Each compiler compiles one grammar at a time, so no spec waits behind another while a compiler is free; one that
overruns its time is killed. One that died or was stopped says nothing about the spec: a new one is asked once more.
Compilers start when they are first needed.
"""

import asyncio
import contextlib
import logging
import subprocess
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from engine.bundle.manifest import Manifest
from engine.errors import Busy, BusyReason, EngineFailure, InvalidRequest
from engine.framing import framed, next_frame
from engine.grammar.spec import Compiled, GrammarSpec, decode_compiled, encode_spec
from engine.processes import child_environment, module_command, own_group

_log = logging.getLogger("hexserve")
REMEMBERED = 128
REMEMBERED_BYTES = 64 * 1024 * 1024
START_S = 60.0
TAKE_S = 2.0  # a compiler that waits takes a spec at once, unless it is stopped
END_S = 3.0
WAITING_PER_COMPILER = 32


@dataclass(frozen=True, slots=True)
class GrammarCompilerLimits:
    """budget_s: longest compilation of one form. largest_bytes: largest form. compilers: most processes at once."""

    budget_s: float = 2.0
    largest_bytes: int = 1024 * 1024
    compilers: int = 4


def compiler_command(folder: Path, manifest: Manifest) -> list[str]:
    """The command line that starts a process which compiles grammars for a bundle."""
    ends = (str(end) for end in manifest.text.stop_ids)
    tokenizer = str(folder / manifest.text.tokenizer)
    return module_command("engine.grammar.compiler", tokenizer, str(manifest.model.vocab), *ends)


class GrammarCompilerPool:
    """All methods belong to one event loop. `command` starts a compiler."""

    def __init__(self, command: Sequence[str], limits: GrammarCompilerLimits = GrammarCompilerLimits()) -> None:
        self._command = tuple(command)
        self._limits = limits
        self._free = asyncio.Semaphore(limits.compilers)
        self._waiting = 0  # for a compiler, or for its answer
        self._idle: list[_Compiler] = []
        self._alive: set[_Compiler] = set()
        self._known: OrderedDict[bytes, Compiled] = OrderedDict()
        self._known_bytes = 0
        self._is_closed = False

    async def compile(self, spec: GrammarSpec, param: str) -> str:
        """The serialised grammar. InvalidRequest naming `param` when it is invalid, too large or too slow.

        EngineFailure when no compiler can be started; Busy when too many wait or the server is shutting down.
        """
        encoded = encode_spec(spec)
        if len(encoded) > self._limits.largest_bytes:
            message = f"Invalid '{param}': it has {len(encoded)} bytes, the limit is {self._limits.largest_bytes}."
            raise InvalidRequest(message, param, "string_above_max_length")
        answer = self._known.get(encoded)
        if answer is None:
            answer = await self._in_turn(encoded)
        if answer.error:
            raise InvalidRequest(f"Invalid '{param}': {answer.error}", param, "invalid_value")
        return answer.grammar

    async def close(self) -> None:
        """End every compiler. May be repeated."""
        self._is_closed = True
        for compiler in list(self._alive):
            await self._end(compiler)

    async def _in_turn(self, encoded: bytes) -> Compiled:
        if self._waiting >= WAITING_PER_COMPILER * self._limits.compilers:
            message = f"{self._waiting} requests wait for the form of their answer to be compiled."
            wait_s = max(1.0, WAITING_PER_COMPILER * self._limits.budget_s / 2)
            raise Busy(message, BusyReason.GRAMMARS, wait_s)
        self._waiting += 1
        try:
            async with self._free:
                return self._known.get(encoded) or await self._compile(
                    encoded
                )  # known since a neighbour had the same spec
        finally:
            self._waiting -= 1

    async def _compile(self, encoded: bytes) -> Compiled:
        try:
            return await self._ask(self._idle.pop() if self._idle else await self._start(), encoded)
        except _CompilerLost as lost:  # which may have been anybody's doing: not remembered, and asked once more
            _log.warning("a grammar compiler %s; the form is given to a new one", lost)
        try:
            return await self._ask(await self._start(), encoded)
        except _CompilerLost as lost:
            if not lost.has_taken_spec:
                raise EngineFailure(f"the grammar compiler {lost}") from None
            return Compiled(error="its grammar cannot be compiled within the limits of this server")

    async def _ask(self, compiler: "_Compiler", encoded: bytes) -> Compiled:
        """The compiler's answer, or that it takes too long; _CompilerLost when it died or does not take the spec."""
        has_taken_spec = False
        try:
            await asyncio.wait_for(compiler.give(encoded), TAKE_S)
            has_taken_spec = True
            try:
                answer = await asyncio.wait_for(compiler.answer(), self._limits.budget_s)
            except TimeoutError:  # not remembered: on a calmer machine it may well be done in time
                return Compiled(error=f"its grammar takes more than {self._limits.budget_s:g} s to compile")
        except TimeoutError:
            raise _CompilerLost(f"did not answer for {TAKE_S:g} s", has_taken_spec) from None
        except (asyncio.IncompleteReadError, OSError, ValueError, msgspec.MsgspecError):
            raise _CompilerLost("died", has_taken_spec) from None
        else:
            self._idle.append(compiler)
        finally:
            if compiler not in self._idle:  # it overran, died, hangs, or nobody waits for it any more
                await asyncio.shield(self._end(compiler))
        self._remember(encoded, answer)
        return answer

    async def _start(self) -> "_Compiler":
        if self._is_closed:
            raise Busy.shutting_down()
        try:
            compiler = await _Compiler.start(self._command)
        except OSError as error:
            raise EngineFailure(f"the grammar compiler could not be started: {error}") from None
        self._alive.add(compiler)
        if self._is_closed:  # while it started
            await self._end(compiler)
            raise Busy.shutting_down()
        try:
            ready = await asyncio.wait_for(compiler.answer(), START_S)
        except (TimeoutError, asyncio.IncompleteReadError, OSError, ValueError, msgspec.MsgspecError):
            await self._end(compiler)
            raise EngineFailure("the grammar compiler did not start") from None
        except asyncio.CancelledError:
            await asyncio.shield(self._end(compiler))
            raise
        if ready.error:
            await self._end(compiler)
            raise InvalidRequest(ready.error, code="unsupported_value")
        return compiler

    async def _end(self, compiler: "_Compiler") -> None:
        if compiler in self._idle:
            self._idle.remove(compiler)
        self._alive.discard(compiler)
        await compiler.end()

    def _remember(self, encoded: bytes, answer: Compiled) -> None:
        if encoded in self._known:  # a neighbour had the same spec meanwhile
            return
        self._known[encoded] = answer
        self._known_bytes += _size(encoded, answer)
        while len(self._known) > REMEMBERED or self._known_bytes > REMEMBERED_BYTES:
            self._known_bytes -= _size(*self._known.popitem(last=False))


def _size(encoded: bytes, answer: Compiled) -> int:
    return len(encoded) + len(answer.grammar)


class _CompilerLost(Exception):
    """The compiler died or hangs; the message reads after 'a grammar compiler'. has_taken_spec: it had begun."""

    def __init__(self, message: str, has_taken_spec: bool) -> None:
        super().__init__(message)
        self.has_taken_spec = has_taken_spec


class _Compiler:
    """One process and its two pipes."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, command: Sequence[str]) -> "_Compiler":
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None,
            env=child_environment(),
            **own_group(),
        )
        return cls(process)

    async def give(self, encoded: bytes) -> None:
        """Hand over a spec; returns when the compiler has begun."""
        assert self._process.stdin is not None
        self._process.stdin.write(framed(encoded))
        await self._process.stdin.drain()
        await self.answer()

    async def answer(self) -> Compiled:
        assert self._process.stdout is not None
        return decode_compiled(await next_frame(self._process.stdout))

    async def end(self) -> None:
        """Kill it; it has nothing to lose. One that the kernel does not let go is not waited for."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), END_S)
        if self._process.stdin is not None:
            self._process.stdin.close()
