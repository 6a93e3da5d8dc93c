"""The network and its folder: a tower of patches beside the embedded chat model, as transformers' InternVL has it."""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer
from transformers import InternVLConfig, InternVLForConditionalGeneration

from engine.demo.location import demo_folder

SIDE, PATCH, TOKENS = 80, 8, 25
PLACEHOLDER, OPENING, CLOSING = "<IMG_CONTEXT>", "<img>", "</img>"
PROCESSOR = {
    "size": {"height": SIDE, "width": SIDE},
    "max_patches": 1,  # an image of any size is looked at once, at 80 x 80 pixels
    "resample": 3,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}
TOWER = {
    "hidden_size": 160,
    "intermediate_size": 640,
    "num_hidden_layers": 5,
    "num_attention_heads": 5,
    "attention_bias": True,
    "image_size": [SIDE, SIDE],
    "patch_size": [PATCH, PATCH],
}
TEXT_KEYS = (
    "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
    "max_position_embeddings", "rms_norm_eps", "rope_theta", "bos_token_id", "eos_token_id", "pad_token_id",
)  # fmt: skip


def new_model(seed: int) -> Any:
    """The embedded chat model with a tower that has seen nothing."""
    from transformers import AutoModelForCausalLM  # noqa: PLC0415  # what only a new training needs

    source = json.loads((demo_folder() / "config.json").read_text(encoding="utf-8"))
    tokenizer = tokenizer_with_images()
    placeholder = tokenizer.token_to_id(PLACEHOLDER)
    assert placeholder is not None
    text = {key: source[key] for key in TEXT_KEYS if key in source}
    config = InternVLConfig(
        text_config={
            **text,
            "model_type": "qwen3",
            "vocab_size": tokenizer.get_vocab_size(),
            "tie_word_embeddings": True,
        },
        vision_config=TOWER,
        image_token_id=placeholder,
        tie_word_embeddings=True,
    )
    torch.manual_seed(seed)
    model = InternVLForConditionalGeneration(config)
    known = AutoModelForCausalLM.from_pretrained(demo_folder(), dtype=torch.float32).model.state_dict()
    own = model.model.language_model.state_dict()
    words = known.pop("embed_tokens.weight")
    own["embed_tokens.weight"][: len(words)] = words
    model.model.language_model.load_state_dict(own | known)
    return model


def load_model(folder: Path) -> Any:
    """A saved one, in float32."""
    return InternVLForConditionalGeneration.from_pretrained(folder, dtype=torch.float32)


def save_model(model: Any, folder: Path) -> None:
    """Weights in bfloat16 and all that a server reads beside them."""
    folder.mkdir(parents=True, exist_ok=True)
    copy: Any = InternVLForConditionalGeneration(model.config)
    copy.load_state_dict(model.state_dict())
    copy.to(torch.bfloat16).save_pretrained(folder)
    tokenizer_with_images().save(str(folder / "tokenizer.json"))
    for name in ("tokenizer_config.json", "generation_config.json"):
        shutil.copyfile(demo_folder() / name, folder / name)
    settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    settings["chat_template"] = with_images(settings["chat_template"])
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")
    (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSOR, indent=1) + "\n", encoding="utf-8")


def with_images(template: str) -> str:
    """The chat model's template, in which a turn's images come first, a line each."""
    words = "        {%- for part in content %}\n"
    assert words in template
    of_images = words.replace("content %}", "content if part.type == 'image' %}")
    images = of_images + "            {{- '<IMG_CONTEXT>\\n' }}\n        {%- endfor %}\n"
    return template.replace(words, images + words.replace("content %}", "content if part.type != 'image' %}"), 1)


def tokenizer_with_images() -> Tokenizer:
    tokenizer = Tokenizer.from_file(str(demo_folder() / "tokenizer.json"))
    tokenizer.add_special_tokens(
        [AddedToken(text, special=True, normalized=False) for text in (PLACEHOLDER, OPENING, CLOSING)]
    )
    return tokenizer
