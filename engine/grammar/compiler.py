"""The grammar compiler, a process of its own: `python -m engine.grammar.compiler <tokenizer.json> <vocab> <end id>...`.

An empty frame says that it is up. The first frame it reads is a `CompilerOpening`, answered by an empty `Compiled` or
by why the tokenizer cannot be used; each later one is a `GrammarSpec`, compiled in its time or the end of the process.
"""

import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec
from llguidance import LLTokenizer

from engine.grammar.literals import Literals, Unusable
from engine.grammar.matching import GrammarFailed, checked, control_tokens, load_tokenizer, new_matcher
from engine.grammar.source import serialised, unforced
from engine.grammar.spec import Compiled, GrammarSpec, decode_opening, decode_spec, encode_compiled
from engine.isolation.inside import HelperFrames, bound_memory, ending_after

MEMORY_BYTES = 6 * 1024**3  # of address space; a grammar of the largest size allowed takes a small part


def main(arguments: list[str]) -> int:
    """Compile until end of input; 3 when the tokenizer cannot be used (said in the first answer)."""
    tokenizer_json, vocab, ends = Path(arguments[0]), int(arguments[1]), [int(each) for each in arguments[2:]]
    bound_memory(MEMORY_BYTES)
    frames = HelperFrames()
    frames.write(b"")
    body = frames.read()
    if body is None:
        return 0
    longest_s = decode_opening(body).longest_s
    try:
        tokenizer = load_tokenizer(tokenizer_json, vocab, ends)
    except GrammarFailed as error:
        frames.write(encode_compiled(Compiled(error=str(error))))
        return 3
    controls = control_tokens(tokenizer)
    frames.write(encode_compiled(Compiled()))
    while (body := frames.read()) is not None:
        with ending_after(longest_s):
            answer = encode_compiled(compiled(decode_spec(body), tokenizer, controls))
        frames.write(answer)
    return 0


def compiled(spec: GrammarSpec, tokenizer: LLTokenizer, controls: Mapping[str, int]) -> Compiled:
    """Make the grammar and try it: what fails later in the worker would fail here. `controls`: `control_tokens`."""
    try:
        grammar = unforced(serialised(spec, Literals(controls)), tuple(controls))
        matcher = new_matcher(tokenizer, grammar)
        allowed = matcher.compute_bitmask()
        checked(matcher)
    except (Unusable, GrammarFailed) as error:
        return Compiled(error=str(error))
    except (ValueError, RecursionError) as error:  # llguidance's words for an argument it cannot read
        return Compiled(error=f"it cannot be read: {error}")
    return Compiled(grammar) if any(allowed) else Compiled(error="no text satisfies it")


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except (msgspec.MsgspecError, KeyboardInterrupt):
        sys.exit(1)
