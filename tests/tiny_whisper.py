"""Whispers with random weights: two layers a half, windows of one second, as a Hugging Face folder or CTranslate2's."""

import json
import struct
import wave
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from engine.request import Request, SamplingParams, SpeechRules, TokenEvent
from engine.worker.step import EngineLoop

LANGUAGES = ("en", "de", "fr")
WORDS = [chr(33 + index) for index in range(90)] + ["Ġ" + chr(97 + index) for index in range(10)]
SPOKEN = [word.replace("Ġ", " ").encode() for word in WORDS]
SPECIALS = [
    *("<|endoftext|>", "<|startoftranscript|>", *(f"<|{code}|>" for code in LANGUAGES), "<|translate|>"),
    *("<|transcribe|>", "<|startoflm|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>"),
]
POSITIONS, FRAMES, MELS, PLACES = 50, 100, 8, 48
VOCAB = len(WORDS) + len(SPECIALS) + POSITIONS + 1
END = len(WORDS)
START, EN, TRANSCRIBE, NO_TIMES = END + 1, END + 2, END + 6, len(WORDS) + len(SPECIALS) - 1
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "num_mel_bins": MELS,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 64,
    "max_source_positions": POSITIONS,
    "max_target_positions": PLACES,
    "decoder_start_token_id": START,
    "eos_token_id": END,
    "bos_token_id": END,
    "pad_token_id": END,
}
FREE = SpeechRules((), (), END, NO_TIMES + 1, times=False)
HEADS = [[1, 0], [1, 3], [0, 2]]


@cache
def network(places: int = PLACES) -> Any:
    """transformers' own, with weights large enough that tokens differ. places: tokens of a text."""
    import torch
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    torch.manual_seed(3)
    sizes = SIZES | {"max_target_positions": places}
    made = WhisperForConditionalGeneration(WhisperConfig(**sizes, init_std=0.2)).eval()
    made.generation_config.suppress_tokens = made.generation_config.begin_suppress_tokens = None
    return made


def write_folder(folder: Path, places: int = PLACES) -> Path:
    """A Hugging Face folder."""
    network(places).save_pretrained(folder)
    path = folder / "generation_config.json"
    told = json.loads(path.read_text()) | {"alignment_heads": HEADS, "suppress_tokens": [5, 6]}
    path.write_text(json.dumps(told | {"begin_suppress_tokens": [3, END]}))
    write_tokenizer(folder)
    return folder


def write_tokenizer(folder: Path) -> None:
    made = Tokenizer(models.BPE({word: index for index, word in enumerate(WORDS)}, []))
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    made.add_special_tokens(SPECIALS)
    made.save(str(folder / "tokenizer.json"))


PROMPT = (START, EN, TRANSCRIBE, NO_TIMES)


def by_transformers(number: int, tokens: int, places: int = PLACES) -> list[int]:
    """Greedy, from the whole text at each step; times and what says that there are none are left out, as by us."""
    import torch

    heard, ids = torch.tensor(features(number)[None]), list(PROMPT)
    while len(ids) < len(PROMPT) + tokens and ids[-1] != END:
        with torch.no_grad():
            logits = network(places)(input_features=heard, decoder_input_ids=torch.tensor([ids])).logits[0, -1]
        ids.append(int(logits[:NO_TIMES].argmax()))
    return ids[len(PROMPT) :]


def request(number: int, tokens: int, rules: SpeechRules = FREE, prompt: tuple[int, ...] = PROMPT) -> Request:
    """The text of the sound of a number, greedy."""
    params = SamplingParams(tokens, temperature=0.0, stop_token_ids=(END,), logprobs=0, speech=rules)
    return Request(f"text-{number}", prompt, params, audio=features(number).tobytes())


def run(loop: EngineLoop) -> dict[str, list[TokenEvent]]:
    """The events of each text until all have ended."""
    found: dict[str, list[TokenEvent]] = {}
    while loop.has_work:
        report = loop.step()
        assert report.failures == ()
        assert loop.violations() == ()
        for event in report.events:
            found.setdefault(event.id, []).append(event)
    return found


def tokens_of(events: list[TokenEvent]) -> list[int]:
    return [token for event in events for token in event.token_ids]


def features(seed: int) -> NDArray[np.float32]:
    """Of one window [mels, frames]."""
    return np.random.default_rng(seed).normal(size=(MELS, FRAMES)).astype(np.float32)


DTYPES = {"float32": 0, "int8": 1, "float16": 4}


def write_ctranslate2(folder: Path, dtype: str = "float32") -> Path:
    """The same weights in CTranslate2's file, of which only matrices may be int8."""
    folder.mkdir(parents=True, exist_ok=True)
    state = {name: value.detach().numpy() for name, value in network().model.state_dict().items()}
    arrays: dict[str, NDArray[Any]] = {"decoder/embeddings/weight": state["decoder.embed_tokens.weight"]}
    for half, heads in (("encoder", 2), ("decoder", 4)):
        arrays[f"{half}/num_heads"] = np.array(heads, np.int16)
        arrays[f"{half}/position_encodings/encodings"] = state[f"{half}.embed_positions.weight"]
        _norm(arrays, state, f"{half}/layer_norm", f"{half}.layer_norm")
        for layer in range(2):
            _layer(arrays, state, f"{half}/layer_{layer}", f"{half}.layers.{layer}")
    for name in ("conv1", "conv2"):
        arrays |= {f"encoder/{name}/{part}": state[f"encoder.{name}.{part}"] for part in ("weight", "bias")}
    with (folder / "model.bin").open("wb") as file:
        file.write(struct.pack("<I", 6) + _name("WhisperSpec") + struct.pack("<I", 3))
        stored = list(_stored(arrays, dtype))
        file.write(struct.pack("<I", len(stored)))
        for name, array in stored:
            kind = 2 if array.dtype == np.int16 else DTYPES[array.dtype.name]
            file.write(_name(name) + struct.pack(f"<B{array.ndim}I", array.ndim, *array.shape))
            file.write(struct.pack("<BI", kind, array.nbytes) + array.tobytes())
        file.write(struct.pack("<I", 1) + _name("decoder/projection/weight") + _name("decoder/embeddings/weight"))
    told = {"alignment_heads": HEADS, "suppress_ids": [5, 6], "suppress_ids_begin": [3, END]}
    (folder / "config.json").write_text(json.dumps(told))
    write_tokenizer(folder)
    return folder


def _stored(arrays: dict[str, NDArray[Any]], dtype: str) -> Any:
    for name, array in arrays.items():
        if array.dtype != np.float32:
            yield name, array
        elif dtype == "int8" and array.ndim == 2 and "encodings" not in name:
            scale = (127 / np.maximum(np.abs(array).max(axis=1), 1e-9)).astype(np.float32)
            yield name, np.rint(array * scale[:, None]).astype(np.int8)
            yield f"{name}_scale", scale
        else:
            yield name, array.astype("float32" if dtype == "int8" else dtype)


def _layer(arrays: dict[str, NDArray[Any]], state: dict[str, Any], theirs: str, ours: str) -> None:
    for place, name, stacks in (
        ("self_attention", "self_attn", (("q_proj", "k_proj", "v_proj"), ("out_proj",))),
        ("attention", "encoder_attn", (("q_proj",), ("k_proj", "v_proj"), ("out_proj",))),
    ):
        if f"{ours}.{name}.q_proj.weight" not in state:
            continue
        for index, stack in enumerate(stacks):
            weights = [state[f"{ours}.{name}.{part}.weight"] for part in stack]
            biases = [state.get(f"{ours}.{name}.{part}.bias", np.zeros(32, np.float32)) for part in stack]
            arrays[f"{theirs}/{place}/linear_{index}/weight"] = np.concatenate(weights)
            arrays[f"{theirs}/{place}/linear_{index}/bias"] = np.concatenate(biases)
        _norm(arrays, state, f"{theirs}/{place}/layer_norm", f"{ours}.{name}_layer_norm")
    for index, name in enumerate(("fc1", "fc2")):
        for part in ("weight", "bias"):
            arrays[f"{theirs}/ffn/linear_{index}/{part}"] = state[f"{ours}.{name}.{part}"]
    _norm(arrays, state, f"{theirs}/ffn/layer_norm", f"{ours}.final_layer_norm")


def _norm(arrays: dict[str, NDArray[Any]], state: dict[str, Any], theirs: str, ours: str) -> None:
    arrays[f"{theirs}/gamma"], arrays[f"{theirs}/beta"] = state[f"{ours}.weight"], state[f"{ours}.bias"]


def _name(text: str) -> bytes:
    return struct.pack("<H", len(text) + 1) + text.encode() + b"\0"


def order_is_kept(tokens: list[int], first_time: int) -> bool:
    """Whether the times of a transcript never go back."""
    times = [token for token in tokens if token >= first_time]
    return all(before <= after for before, after in pairwise(times))


def write_wav(file: Path | IO[bytes], seconds: float = 2.5, seed: int = 0, rate: int = 8000) -> None:
    """Noise that comes and goes."""
    times = np.arange(int(seconds * rate)) / rate
    noise = np.random.default_rng(seed).normal(size=len(times)) * np.abs(np.sin(3 * times)) * 4000
    with wave.open(str(file) if isinstance(file, Path) else file, "wb") as out:
        out.setparams((1, 2, rate, 0, "NONE", "none"))
        out.writeframes(noise.astype("<i2").tobytes())
