"""The grammar compiler, a process of its own: `python -m engine.grammar.compiler <tokenizer.json> <vocab> <end id>...`.

One grammar at a time; its parent kills it when one takes too long. Standard input carries `GrammarSpec`, standard
output `Compiled`, each with its length in front. An empty `Compiled` says that it is ready, and that a spec is taken.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec
from llguidance import LLTokenizer

from engine.framing import framed, read_frame
from engine.grammar.matching import GrammarFailed, checked, control_texts, load_tokenizer, new_matcher, special_token
from engine.grammar.source import Unusable, serialised, unforced
from engine.grammar.spec import Compiled, GrammarSpec, decode_spec, encode_compiled

MEMORY_BYTES = 6 * 1024**3  # of address space; a grammar of the largest size allowed takes a small part


def main(arguments: list[str]) -> int:
    """Compile until end of input; 3 when the tokenizer cannot be used (said in the first answer)."""
    _bound_memory()
    specs, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    try:
        tokenizer = load_tokenizer(Path(arguments[0]), int(arguments[1]), [int(each) for each in arguments[2:]])
    except GrammarFailed as error:
        _answer(answers, Compiled(error=str(error)))
        return 3
    controls = control_texts(tokenizer)
    _answer(answers, Compiled())
    while (body := read_frame(specs)) is not None:
        _answer(answers, Compiled())
        _answer(answers, compiled(decode_spec(body), tokenizer, controls))
    return 0


def compiled(spec: GrammarSpec, tokenizer: LLTokenizer, controls: Sequence[str]) -> Compiled:
    """Make the grammar and try it: what fails later in the worker would fail here. `controls`: `control_texts`."""
    try:
        grammar = unforced(serialised(spec, lambda marker: special_token(tokenizer, marker)), controls)
        matcher = new_matcher(tokenizer, grammar)
        allowed = matcher.compute_bitmask()
        checked(matcher)
    except (Unusable, GrammarFailed) as error:
        return Compiled(error=str(error))
    except (ValueError, RecursionError) as error:  # llguidance's words for an argument it cannot read
        return Compiled(error=f"it cannot be read: {error}")
    return Compiled(grammar) if any(allowed) else Compiled(error="no text satisfies it")


def _bound_memory() -> None:
    """Linux only: macOS does not keep this limit, Windows has none. There the time limit has to do."""
    if sys.platform == "linux":
        import resource  # noqa: PLC0415 (Windows has none)

        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        soft = MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(MEMORY_BYTES, hard)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _answer(answers: BinaryIO, answer: Compiled) -> None:
    try:
        answers.write(framed(encode_compiled(answer)))
        answers.flush()
    except BrokenPipeError:
        os._exit(0)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except (msgspec.MsgspecError, KeyboardInterrupt):
        sys.exit(1)
