"""Tiny random checkpoints of models that read images, made with transformers."""

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken

from tests.vision_facts import GEMMA_ROWS, SIDE
from tools.random_checkpoint import byte_tokenizer

PATCH, SHUFFLE = 8, 2
TEXT = {
    "vocab_size": 400,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": None,
    "eos_token_id": 258,
    "pad_token_id": None,
}
VISION = {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": SIDE,
    "patch_size": PATCH,
}
IDEFICS_TOKENS = (
    "<image>",
    "<fake_token_around_image>",
    "<global-img>",
    *(f"<row_{row}_col_{column}>" for row in range(1, 5) for column in range(1, 5)),
)
IDEFICS_TEMPLATE = (
    "{% for message in messages %}{{ message.role | capitalize }}"
    "{% if message['content'][0]['type'] == 'image' %}{{ ':' }}{% else %}{{ ': ' }}{% endif %}"
    "{% for line in message['content'] %}{% if line['type'] == 'text' %}{{ line['text'] }}"
    "{% elif line['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)


def write_idefics3(folder: Path, family: str = "SmolVLM", **changes: Any) -> Any:
    """A model of a few thousand weights and its folder; the model is given back, as it reads its folder.

    changes: of its encoder."""
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in IDEFICS_TOKENS])
    config = getattr(transformers, f"{family}Config")(
        text_config={"model_type": "llama", **TEXT},
        vision_config=VISION | changes,
        scale_factor=SHUFFLE,
        image_token_id=tokenizer.token_to_id("<image>"),
        eos_token_id=258,
    )
    torch.manual_seed(5)
    model = getattr(transformers, f"{family}ForConditionalGeneration")(config).eval()
    randomise(model)
    model.save_pretrained(folder)
    processor = {
        "do_image_splitting": True,
        "max_image_size": {"longest_edge": SIDE},
        "size": {"longest_edge": 4 * SIDE},
        "resample": 1,
        "image_mean": [0.5, 0.4, 0.5],
        "image_std": [0.5, 0.5, 0.25],
    }
    write_text(folder, tokenizer, IDEFICS_TEMPLATE, processor)
    return type(model).from_pretrained(folder, dtype=torch.float32).eval()


QWEN_TOKENS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>")
QWEN_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for line in message['content'] %}{% if line['type'] == 'text' %}{{ line['text'] }}"
    "{% elif line['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% endif %}{% endfor %}{% endif %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
QWEN_PROCESSOR = {
    "patch_size": 4,
    "merge_size": 2,
    "temporal_patch_size": 2,
    "size": {"shortest_edge": 12 * 64, "longest_edge": 300 * 64},
    "resample": 3,
    "image_mean": [0.5, 0.4, 0.5],
    "image_std": [0.5, 0.5, 0.25],
}
QWEN_VISION = {"depth": 3, "hidden_size": 48, "intermediate_size": 80, "num_heads": 2, "patch_size": 4}
# Of Qwen3.5: layers with a state, heads that turn in part.
HYBRID = {
    "num_hidden_layers": 4,
    "head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
}
EXPERTS = {
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 96,
}
IN_PART = {"mrope_section": [2, 1, 1], "mrope_interleaved": True, "partial_rotary_factor": 0.25}
QWEN_FORMS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "Qwen2_5_VL": (
        {"mrope_section": [2, 3, 3]},
        {"window_size": 32, "fullatt_block_indexes": [1]},
    ),
    "Qwen3VL": (
        {"mrope_section": [4, 2, 2], "mrope_interleaved": True},
        {"num_position_embeddings": 36, "deepstack_visual_indexes": [0, 2]},
    ),
    "Qwen3_5": (IN_PART, {"num_position_embeddings": 36}),
    "Qwen3_5Moe": (IN_PART, {"num_position_embeddings": 36}),
}
QWEN_TEXTS: dict[str, dict[str, Any]] = {"Qwen3_5": HYBRID, "Qwen3_5Moe": HYBRID | EXPERTS}


def write_qwen_vl(folder: Path, family: str, **changes: Any) -> Any:
    """The same of a model that looks at images in their own proportions, with cells of 8 pixels.

    changes: of its encoder."""
    sections, encoder = QWEN_FORMS[family]
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in QWEN_TOKENS])
    rope = {"rope_type": "default", "rope_theta": 10_000.0, **sections}
    config = getattr(transformers, f"{family}Config")(
        text_config={**TEXT, "head_dim": 16, "rope_parameters": rope, **QWEN_TEXTS.get(family, {})},
        vision_config={**QWEN_VISION, "out_hidden_size": TEXT["hidden_size"], **encoder, **changes},
        image_token_id=tokenizer.token_to_id("<|image_pad|>"),
        vision_start_token_id=tokenizer.token_to_id("<|vision_start|>"),
        vision_end_token_id=tokenizer.token_to_id("<|vision_end|>"),
        video_token_id=399,
    )
    torch.manual_seed(6)
    model = getattr(transformers, f"{family}ForConditionalGeneration")(config).eval()
    randomise(model)
    model.save_pretrained(folder)
    write_text(folder, tokenizer, QWEN_TEMPLATE, QWEN_PROCESSOR | {"patch_size": config.vision_config.patch_size})
    return type(model).from_pretrained(folder, dtype=torch.float32).eval()


INTERN_TOKENS = ("<IMG_CONTEXT>", "<img>", "</img>")
INTERN_TEMPLATE = QWEN_TEMPLATE.replace("<|vision_start|><|image_pad|><|vision_end|>", "<IMG_CONTEXT>\n")
INTERN_PROCESSOR = {
    "size": {"height": SIDE, "width": SIDE},
    "max_patches": 6,
    "resample": 3,
    "image_mean": [0.5, 0.4, 0.5],
    "image_std": [0.5, 0.5, 0.25],
}


def write_internvl(folder: Path, kind: str, **changes: Any) -> Any:
    """The same of a model that cuts images into a canvas. kind: of its text model. changes: of its encoder."""
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in INTERN_TOKENS])
    tile = {"image_size": [SIDE, SIDE], "patch_size": [PATCH, PATCH]}
    config = transformers.InternVLConfig(
        text_config={**TEXT, "head_dim": 16, "model_type": kind},
        vision_config={**VISION, **tile, "attention_bias": kind == "qwen3", **changes},
        image_token_id=tokenizer.token_to_id("<IMG_CONTEXT>"),
        tie_word_embeddings=kind == "qwen3",
    )
    torch.manual_seed(7)
    model = transformers.InternVLForConditionalGeneration(config).eval()
    randomise(model)
    model.save_pretrained(folder)
    write_text(folder, tokenizer, INTERN_TEMPLATE, INTERN_PROCESSOR)
    return type(model).from_pretrained(folder, dtype=torch.float32).eval()


GEMMA_TOKENS = ("<image_soft_token>", "<start_of_image>", "<end_of_image>")
GEMMA_TEMPLATE = QWEN_TEMPLATE.replace("<|vision_start|><|image_pad|><|vision_end|>", "<start_of_image>")
GEMMA_PROCESSOR = {
    "size": {"height": SIDE, "width": SIDE},
    "resample": 2,
    "image_mean": [0.5, 0.4, 0.5],
    "image_std": [0.5, 0.5, 0.25],
    "do_pan_and_scan": None,
}
GEMMA_TEXT = {
    "head_dim": 16,
    "query_pre_attn_scalar": 16,
    "sliding_window": 12,  # less than an image
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}


def write_gemma3(folder: Path, _: str = "", encoder: Mapping[str, Any] = MappingProxyType({}), **changes: Any) -> Any:
    """The same of a model whose images are one tile of 16 rows that see each other.

    encoder: changes of its encoder, changes: of its text model."""
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in GEMMA_TOKENS])
    tower = {**VISION, "model_type": "siglip_vision_model", "patch_size": 4, "vision_use_head": False}
    config = transformers.Gemma3Config(
        text_config={**TEXT, **GEMMA_TEXT, **changes},
        vision_config={**tower, **encoder},
        mm_tokens_per_image=GEMMA_ROWS,
        image_token_index=tokenizer.token_to_id("<image_soft_token>"),
        boi_token_index=tokenizer.token_to_id("<start_of_image>"),
        eoi_token_index=tokenizer.token_to_id("<end_of_image>"),
        eos_token_id=258,
    )
    torch.manual_seed(8)
    model = transformers.Gemma3ForConditionalGeneration(config).eval()
    randomise(model)
    with torch.no_grad():  # the stream begins with 8 times the row that the head looks for: it would say nothing else
        model.get_input_embeddings().weight.mul_(0.1)
    model.save_pretrained(folder)
    write_text(folder, tokenizer, GEMMA_TEMPLATE, GEMMA_PROCESSOR)
    return type(model).from_pretrained(folder, dtype=torch.float32).eval()


def with_published_names(folder: Path) -> None:
    """Names as in published files of Gemma 3; the library leaves out a part of them now."""
    file = folder / "model.safetensors"
    tensors = load_file(file)
    renamed = {name.replace("vision_tower.", "vision_tower.vision_model."): tensors[name] for name in tensors}
    save_file(renamed, file, {"format": "pt"})


def write_text(folder: Path, tokenizer: Any, template: str, processor: dict[str, Any]) -> None:
    """Tokenizer, template and the facts of the image processor, which a saved model lacks."""
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"chat_template": template, "eos_token": "<|im_end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))


def randomise(model: Any) -> None:
    """Values that make every part of the network matter: the library's own start is almost zero."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("A_log"):
                parameter.uniform_(-3, 1)
            elif name.endswith("bias"):
                parameter.normal_(0, 0.3)
            elif "norm" in name or "lambda" in name:
                parameter.uniform_(0.5, 1.5)
            elif ("embed" in name and "patch" not in name) or "token" in name:
                parameter.normal_(0, 1)
            else:
                parameter.normal_(0, 1.2 * parameter[0].numel() ** -0.5)
