"""The network and its folder: a tower of patches beside the embedded chat model, as transformers' InternVL has it.

Sizes, tokenizer and settings are those of the embedded model that reads images.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import InternVLConfig, InternVLForConditionalGeneration

from engine.demo.location import demo_folder, vision_folder

SIDE, TOKENS = 80, 25
PLACEHOLDER, OPENING, CLOSING = "<IMG_CONTEXT>", "<img>", "</img>"
SETTINGS = ("tokenizer.json", "generation_config.json", "preprocessor_config.json")


def new_model(seed: int) -> Any:
    """The embedded chat model with a tower that has seen nothing."""
    from transformers import AutoModelForCausalLM  # noqa: PLC0415  # what only a new training needs

    torch.manual_seed(seed)
    model = InternVLForConditionalGeneration(InternVLConfig.from_pretrained(vision_folder(), dtype=torch.float32))
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
    for name in SETTINGS:
        shutil.copyfile(vision_folder() / name, folder / name)
    settings = json.loads((demo_folder() / "tokenizer_config.json").read_text(encoding="utf-8"))
    settings["chat_template"] = with_images(settings["chat_template"])
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")


def with_images(template: str) -> str:
    """The chat model's template, in which a turn's images come first, a line each."""
    words = "        {%- for part in content %}\n"
    assert words in template
    of_images = words.replace("content %}", "content if part.type == 'image' %}")
    images = of_images + "            {{- '<IMG_CONTEXT>\\n' }}\n        {%- endfor %}\n"
    return template.replace(words, images + words.replace("content %}", "content if part.type != 'image' %}"), 1)


def tokenizer_with_images() -> Tokenizer:
    return Tokenizer.from_file(str(vision_folder() / "tokenizer.json"))
