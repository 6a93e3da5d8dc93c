"""Bundles for the scripted runtime: the demo model's tokenizer and turns, calls in any format, no graphs."""

import json
from pathlib import Path

from tokenizers import Tokenizer

from engine.bundle.answer_format import TAG, CallFormat, TaggedArguments
from engine.bundle.manifest import GraphKind, GraphSpec, Manifest, TextSpec, describe_file
from engine.bundle.manifest import save_manifest as save
from engine.bundle.model_spec import ModelSpec, RopeSpec
from engine.demo.location import demo_folder
from engine.text.answer_finding import probed_answer
from tests.call_formats import CODER, HERMES, LLAMA, MISTRAL, PHI

FORMATS = {"hermes": HERMES, "mistral": MISTRAL, "phi": PHI, "llama": LLAMA, "coder": CODER}
THINKS = "thinks"  # Hermes calls after <think>
WIDE = "wide"  # thinks, too; a window for the prompts of coding agents
KINDS = (*FORMATS, THINKS, WIDE)
CONTEXT, WIDE_CONTEXT = 16_384, 65_536
CALLS_START = "{%- for tool_call in message.tool_calls or [] %}"
CALLS_END = "{{- '<|im_end|>\\n' }}"
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
        tokenizer.add_special_tokens(TAG.findall(form.opening + form.closing))
    tokenizer.save(str(folder / "tokenizer.json"))
    template = _template(form, kind in (THINKS, WIDE))
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8", newline="\n")
    answer = probed_answer(template, None, "<|im_end|>")
    files = {name: describe_file(folder / name) for name in ("tokenizer.json", "chat_template.jinja")}
    end = tokenizer.token_to_id("<|im_end|>")
    rope = RopeSpec("default", 1e4, 8, (1.0, 0.1, 0.01, 0.001))
    manifest = Manifest(
        format_version=1,
        name=f"scripted-{kind}",
        target="cpu",
        quant="fp32",
        split="none",
        created=1_700_000_000,
        model=ModelSpec("qwen3", 1, 8, 1, 1, 8, 8, tokenizer.get_vocab_size(), rope),
        graphs=(GraphSpec("model", "model.onnx", GraphKind.DEFAULT, 1, 1, (), ()),),
        kv_dtype="float32",
        max_context=WIDE_CONTEXT if kind == WIDE else CONTEXT,
        text=TextSpec("tokenizer.json", "chat_template.jinja", (end,), eos_token="<|im_end|>", answer=answer),
        files=files,
        versions={},
    )
    save(folder, manifest)


def _template(form: CallFormat, thinks: bool) -> str:
    """The demo model's template with the calls of another format."""
    settings = json.loads((demo_folder() / "tokenizer_config.json").read_text(encoding="utf-8"))
    template: str = settings["chat_template"]
    if form is not HERMES:
        start = template.index(CALLS_START)
        end = template.index(CALLS_END, start)
        template = template[:start] + _calls(form) + template[end:]
    if thinks:
        start = template.index("{%- if add_generation_prompt %}")
        template = template[:start] + NO_THOUGHT + "{%- endif %}\n"
    return template


def _calls(form: CallFormat) -> str:
    """The part of a template that writes the calls of a message."""
    tags = form.arguments
    arguments = "{{- call.arguments | tojson }}"
    if isinstance(tags, TaggedArguments):
        shown = "value if value is string else (value | tojson)"
        pair = f"{{{{- {tags.before!r} + key + {tags.assign['string']!r} + ({shown}) + {tags.after!r} }}}}"
        arguments = f"{{%- for key, value in call.arguments.items() %}}{pair}{{%- endfor %}}"
    return (
        "{%- if message.tool_calls %}\n"
        f"{{{{- ('\\n' if content else '') + {form.opening!r} }}}}\n"
        "{%- for tool_call in message.tool_calls %}\n{%- set call = tool_call.function %}\n"
        f"{{{{- ('' if loop.first else {form.between!r}) + {form.begin!r} + call.name + {form.named!r} }}}}\n"
        f"{arguments}\n{{{{- {form.end!r} }}}}\n{{%- endfor %}}\n{{{{- {form.closing!r} }}}}\n{{%- endif %}}\n"
    )
