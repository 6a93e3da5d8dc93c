"""Bundles for the obedient runtime: the demo model's tokenizer and turns, calls in any format, no graphs."""

import json
from pathlib import Path

from tokenizers import Tokenizer

from engine.bundle.manifest import GraphKind, GraphSpec, Manifest, ModelSpec, RopeSpec, TextSpec, describe_file
from engine.bundle.manifest import save_manifest as save
from engine.demo.location import demo_folder
from engine.grammar.tool_formats import HERMES, LLAMA, MISTRAL, PHI, ToolFormat
from engine.text.markers import find_markers

FORMATS = {"hermes": HERMES, "mistral": MISTRAL, "phi": PHI, "llama": LLAMA}
THINKS = "thinks"  # Hermes calls after <think>
WIDE = "wide"  # thinks, too; a window for the prompts of coding agents
KINDS = (*FORMATS, THINKS, WIDE)
CONTEXT, WIDE_CONTEXT = 16_384, 65_536
NO_THOUGHT = (
    "{%- if add_generation_prompt %}\n    {{- '<|im_start|>assistant\\n' }}\n"
    "    {%- if enable_thinking is defined and not enable_thinking %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}\n"
)


def write_bundle(folder: Path, kind: str) -> None:
    """Write the bundle of one of `KINDS` into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    form = FORMATS.get(kind, HERMES)
    tokenizer = Tokenizer.from_file(str(demo_folder() / "tokenizer.json"))
    if form is not HERMES:  # models of these formats have control tokens for them
        tokenizer.add_special_tokens([marker for marker in (form.opening, form.closing) if marker])
    tokenizer.save(str(folder / "tokenizer.json"))
    template = _template(form, kind in (THINKS, WIDE))
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8", newline="\n")
    files = {name: describe_file(folder / name) for name in ("tokenizer.json", "chat_template.jinja")}
    end = tokenizer.token_to_id("<|im_end|>")
    rope = RopeSpec("default", 1e4, 8, (1.0, 0.1, 0.01, 0.001))
    manifest = Manifest(
        format_version=1,
        name=f"obedient-{kind}",
        target="cpu",
        quant="fp32",
        split="none",
        created=1_700_000_000,
        model=ModelSpec("qwen3", 1, 8, 1, 1, 8, 8, tokenizer.get_vocab_size(), rope),
        graphs=(GraphSpec("model", "model.onnx", GraphKind.DEFAULT, 1, 1, (), ()),),
        kv_dtype="float32",
        max_context=WIDE_CONTEXT if kind == WIDE else CONTEXT,
        text=TextSpec(
            "tokenizer.json", "chat_template.jinja", (end,), eos_token="<|im_end|>", markers=find_markers(template)
        ),
        files=files,
        versions={},
    )
    save(folder, manifest)


def _template(form: ToolFormat, thinks: bool) -> str:
    """The demo model's template with the calls of another format; several calls are written one after another."""
    settings = json.loads((demo_folder() / "tokenizer_config.json").read_text(encoding="utf-8"))
    template: str = settings["chat_template"]
    if form is not HERMES:
        opening, closing = form.opening + ("[" if form.is_list else ""), ("]" if form.is_list else "") + form.closing
        template = template.replace("<tool_call>\\n", opening).replace("\\n</tool_call>", closing)
        template = template.replace('"arguments": ', f'"{form.arguments}": ')
    if thinks:
        start = template.index("{%- if add_generation_prompt %}")
        template = template[:start] + NO_THOUGHT + "{%- endif %}\n"
    return template
