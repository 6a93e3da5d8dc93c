"""llama.cpp's own perplexity tool on the floats that were scored, so that figures do not rest on our scoring alone."""

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from peers_gguf import respelled
from peers_setup import PeersFolder, SetupFailed
from quality_checks import CONTEXT, CrossCheck, Scores, perplexity_in, scores_in
from tokenizers import Tokenizer

DEPLOY = Path(__file__).resolve().parent
Figures = TypeVar("Figures")
TRIES = 3
THREADS = 1  # checkpoints are small here; more only wait for each other on a busy machine
# Caches in floats and every token by itself, as the floats are scored here.
OPTIONS = ("-c", str(CONTEXT), "-b", str(CONTEXT), "-ub", str(CONTEXT), "-ctk", "f32", "-ctv", "f32", "-fa", "off")


@dataclass(frozen=True, slots=True)
class Checked:
    """What is scored: a folder or GGUF file, its bundle of floats, and what it is compared with."""

    name: str
    checkpoint: Path
    held_out: Path
    source: Path
    bundle: Path
    reference: Path


class LlamaCheck:
    """Scores by llama-perplexity. Files of one checkpoint at a time are in `folder`.

    run: a command under the name of its step, what it printed. tokens: of the text, at most.
    """

    def __init__(
        self, peers: PeersFolder, folder: Path, run: Callable[[str, list[str]], str], python: str, tokens: int
    ) -> None:
        self._peers = peers
        self._folder = folder
        self._run = run
        self._python = python
        self._windows = tokens // CONTEXT
        self._base_of: tuple[Path, float] | None = None

    def of(self, what: Checked) -> CrossCheck:
        """Both scores of the same tokens. SetupFailed when a step fails."""
        self._folder.mkdir(parents=True, exist_ok=True)
        base, perplexity = self._folder / "base.logits", self._float_perplexity(what)
        floats, is_gguf = self._folder / "checked.gguf", what.source.is_file()
        if is_gguf:
            quantize = [str(self._peers.llama_quantize()), "--allow-requantize", str(what.source), str(floats), "F32"]
            self._run(f"{what.name}: floats", quantize)
        else:
            self._peers.float_gguf(what.source, floats)

        def scored(model: Path) -> tuple[Scores, float]:
            command = self._command(model, "--kl-divergence", "--kl-divergence-base", str(base))
            return self._figures(f"{what.name}: llama-perplexity", command, lambda text: scores_in(text, perplexity))

        llama, error = scored(floats)
        computed = scored(what.source)[0] if is_gguf else None
        tokens, own = self._own(what, base)
        return CrossCheck(tokens, llama, own, error, computed)

    def _float_perplexity(self, what: Checked) -> float:
        """Of the float checkpoint on the text, by llama.cpp, which leaves its predictions in base.logits."""
        if self._base_of is None or self._base_of[0] != what.checkpoint:
            path, floats, text = (self._folder / name for name in ("base.logits", "base.gguf", "base.txt"))
            self._peers.float_gguf(what.checkpoint, floats, "--respelled")
            tokenizer = Tokenizer.from_file(str(what.checkpoint / "tokenizer.json"))
            text.write_text(respelled(what.held_out.read_text(encoding="utf-8"), tokenizer), encoding="utf-8")
            written = ["-f", str(text), "--chunks", str(self._windows), "--save-all-logits", str(path)]
            step, command = f"{what.name}: llama-perplexity of the floats", self._command(floats, *written)
            self._base_of = what.checkpoint, self._figures(step, command, perplexity_in)
        return self._base_of[1]

    def _figures(self, step: str, command: list[str], read: Callable[[str], Figures]) -> Figures:
        """What is read of what a command prints. llama.cpp's log can lose its last lines, so it is run again then."""
        for _ in range(TRIES - 1):
            with suppress(ValueError):
                return read(self._run(step, command))
        try:
            return read(self._run(step, command))
        except ValueError as error:
            raise SetupFailed(f"{step}: {error}") from None

    def _own(self, what: Checked, base: Path) -> tuple[int, Scores]:
        command = [self._python, str(DEPLOY / "quality_halves.py"), str(what.bundle), str(what.reference)]
        printed = self._run(f"{what.name}: the same tokens", [*command, str(what.held_out), str(base)])
        found: dict[str, Any] = json.loads(printed.strip().splitlines()[-1])
        return found.pop("tokens"), Scores(**found)

    def _command(self, model: Path, *options: str) -> list[str]:
        return [str(self._peers.llama_perplexity()), "-m", str(model), "-t", str(THREADS), *OPTIONS, *options]
