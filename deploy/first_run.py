"""Serves a bundle once, asks it and stops it: `python first_run.py HEXSERVE BUNDLE`, in the Dockerfile's builder.

An image is read-only, so Python cannot keep byte-code at run time, and byte-code of all that is installed is tens of
megabytes. This run leaves it for the modules that serving imports, and an image that cannot answer is not built.
"""

import json
import re
import subprocess
import sys
import urllib.request
from typing import Any

READY = re.compile(r"serving .+ on (http://\S+)")
ANSWER_S = 120.0  # also under an emulated processor
STOP_S = 60.0
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 8}}, "required": ["city"]}
STRUCTURED = {"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA}}


def ask(address: str, **fields: Any) -> str:
    """The body that answers a chat completion. Raises OSError when the server refuses or is gone."""
    body = {"model": "first-run", "messages": QUESTION, "max_tokens": 32, "temperature": 0, **fields}
    request = urllib.request.Request(
        f"{address}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
        return str(answer.read().decode())


def ask_everything(address: str) -> None:
    """A plain, a streamed and a structured answer: each imports modules that the others do not."""
    for fields in ({}, {"stream": True}, {"response_format": STRUCTURED}):
        answer = ask(address, **fields)
        print(answer.strip().splitlines()[0][:600])


def main(hexserve: str, bundle: str) -> int:
    """0 when the server answered and stopped with 0; otherwise 1."""
    command = [hexserve, "serve", bundle, "--host", "127.0.0.1", "--port", "0", "--model-name", "first-run"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        assert server.stdout is not None
        try:
            address = next((found[1] for line in server.stdout if (found := READY.search(line))), None)
            if address is None:
                print("the server ended before it listened", file=sys.stderr)
                return 1
            ask_everything(address)
            server.terminate()
            server.communicate(timeout=STOP_S)
        finally:
            server.kill()
    return int(server.returncode != 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
