"""Arguments as the compiler's own process takes them."""

import msgspec

from engine.compile.arguments import CompileArguments


def encode_arguments(arguments: CompileArguments) -> str:
    return msgspec.json.encode(arguments, enc_hook=str).decode()
