"""How often a server's next token is that of the file's floats: what every server can be asked over HTTP.

The floats are the file as llama-quantize makes F32 of it, served by llama-server with float32 caches.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import httpx

from server.commands.own_server import free_port, running_child
from tools.peers.report import PeerRatio
from tools.peers.setup import PeersFolder
from tools.real_models.held_out import held_out_text

ASKED = 128  # prompts
PROMPT_CHARACTERS = 320
ANSWER_S = 120.0


@dataclass(frozen=True, slots=True)
class Floats:
    """expected: what the floats write behind each prompt."""

    prompts: list[str]
    expected: list[str]

    @classmethod
    def of(cls, folder: PeersFolder, gguf: Path, threads: int, say: Callable[[str], None]) -> "Floats":
        """Ask the floats of a file. Raises what building and running llama.cpp's programs raises."""
        made, port = folder.quantised(gguf, "F32"), free_port()
        words = f"-t {threads} -c 512 -np 1 -ctk f32 -ctv f32 -fa off --no-ui --host 127.0.0.1 --port {port}"
        serve = [str(folder.llama.program("llama-server")), "-m", str(made), *words.split()]
        prompts = prompts_of(held_out_text(folder.llama.tree))
        with running_child(serve, port, "health") as server:
            say(f"ask the floats for {len(prompts)} tokens ...")
            return cls(prompts, next_tokens(server.address, prompts))

    def agreement(self, baseline: str, other: str, own: str) -> list[PeerRatio]:
        """Shares of equal tokens in the words of a row, and hexserve's over the other's. Addresses of two servers."""
        theirs, ours = (share_of_equals(next_tokens(address, self.prompts), self.expected) for address in (other, own))
        load = f"{baseline}: next token as the floats', {ours:.1%} / {theirs:.1%} of {len(self.prompts)}"
        return [PeerRatio(load, "equal tokens", ours / theirs if theirs else None)]


def prompts_of(text: str) -> list[str]:
    """`ASKED` passages from all over a text, each from behind one blank to the end of a word."""
    step = max(1, (len(text) - PROMPT_CHARACTERS) // ASKED)
    passages = (text[start : start + PROMPT_CHARACTERS] for start in range(0, step * ASKED, step))
    return [passage.partition(" ")[2].rpartition(" ")[0] for passage in passages]


def next_tokens(address: str, prompts: list[str]) -> list[str]:
    """The one token that a server writes greedily behind each prompt. httpx.HTTPError when it refuses one."""
    found = []
    with httpx.Client(base_url=address, timeout=ANSWER_S, trust_env=False) as client:
        model = client.get("/v1/models").raise_for_status().json()["data"][0]["id"]
        for prompt in prompts:
            asked = {"model": model, "prompt": prompt, "max_tokens": 1, "temperature": 0}
            answer = client.post("/v1/completions", json=asked).raise_for_status()
            found.append(str(answer.json()["choices"][0]["text"]))
    return found


def share_of_equals(found: list[str], expected: list[str]) -> float:
    """0 to 1. ValueError where there is nothing to compare."""
    if not expected:
        raise ValueError("no prompt was asked")
    return sum(one == other for one, other in zip(found, expected, strict=True)) / len(expected)
