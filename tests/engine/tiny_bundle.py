"""A bundle without graphs: a byte-level tokenizer of 256 bytes, a few merges and special tokens, ChatML, a manifest."""

from pathlib import Path

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from engine.bundle.manifest import GraphKind, GraphSpec, Manifest, TextSpec, describe_file
from engine.bundle.manifest import save_manifest as save
from engine.bundle.model_spec import ModelSpec, RopeSpec

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_level_tokenizer(merges: tuple[tuple[str, str], ...] = (("h", "e"), ("l", "l"))) -> tokenizers.Tokenizer:
    """Token i < 256 is byte i; then the merges, then `SPECIALS`, then the ordinary added token <think>."""
    characters = byte_characters()
    vocabulary = {character: byte for byte, character in enumerate(characters)}
    for left, right in merges:
        vocabulary[left + right] = len(vocabulary)
    made = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=list(merges)))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(list(SPECIALS))
    made.add_tokens(["<think>"])
    return made


def byte_characters() -> list[str]:
    """Stand-in character of every byte, asked of the library one ASCII-escaped byte at a time."""
    itself = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    characters, shifted = [], 0
    for byte in range(256):
        if byte in itself:
            characters.append(chr(byte))
        else:
            characters.append(chr(0x100 + shifted))
            shifted += 1
    assert sorted(characters) == sorted(pre_tokenizers.ByteLevel.alphabet())
    return characters


def write_bundle(folder: Path, max_context: int = 4096, template: str = CHATML) -> Manifest:
    """Write tokenizer, template and manifest into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = byte_level_tokenizer()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    graph = GraphSpec("model", "model.onnx", GraphKind.DEFAULT, 1, 1, (), ())
    manifest = Manifest(
        format_version=1,
        name="tiny",
        target="cpu",
        quant="fp32",
        split="none",
        created=1_700_000_000,
        model=ModelSpec(
            "qwen3", 1, 8, 1, 1, 8, 8, tokenizer.get_vocab_size(), RopeSpec("default", 1e4, 8, (1.0, 0.1, 0.01, 0.001))
        ),
        graphs=(graph,),
        kv_dtype="float32",
        max_context=max_context,
        text=TextSpec(
            "tokenizer.json",
            "chat_template.jinja",
            stop_ids=(tokenizer.token_to_id("<|im_end|>"),),
            eos_token="<|im_end|>",
        ),
        files={name: describe_file(folder / name) for name in ("tokenizer.json", "chat_template.jinja")},
        versions={},
    )
    save(folder, manifest)
    return manifest
