"""What a checkpoint is for, told from its files: chats, vectors or scores; and how its vectors and scores are made."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from engine.bundle.specs import ModelTask, PoolingKind, PoolingSpec, RerankKind, RerankSpec
from engine.compile.arguments import CompileArguments, Layout
from engine.compile.plan import layout_of
from engine.compile.sources.checkpoint import Checkpoint, read_optional_json
from engine.compile.sources.text_files import TOKENIZER_CONFIG, read_template
from engine.errors import CompileError, UnsupportedModel
from engine.files import JSON_BYTES, brief, read_json, reading
from engine.models.config_fields import ConfigFields, architectures_of
from engine.models.encoders import read_prompts
from engine.models.family import untied
from engine.models.network import Network, WeightNames

MODULES = "modules.json"  # the parts of a sentence-transformers model, in order
PROMPTS = "config_sentence_transformers.json"
BARE = "Model"  # how transformers calls a model without a head: Qwen3Model
SENTENCE = 'the answer can only be "yes" or "no"'  # in the template of a model that judges

# What Qwen3-Reranker was trained with.
JUDGE_PREFIX = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
JUDGE_BODY = "<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}"
JUDGE_SUFFIX = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
JUDGE_INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
JUDGEMENTS = ("yes", "no")


@dataclass(frozen=True, slots=True)
class SentenceFiles:
    """What a folder says as sentence-transformers writes it. modules: the class and the config of each part. folders:
    where each of them lies."""

    modules: tuple[tuple[str, Mapping[str, object]], ...] = ()
    prompts: Mapping[str, object] = field(default_factory=dict)
    folders: tuple[Path, ...] = ()

    @classmethod
    def read(cls, folder: Path) -> "SentenceFiles":
        """Of a checkpoint's folder; of a GGUF file nothing. CompileError when a file cannot be read."""
        if not folder.is_dir():
            return cls()
        found = _modules(folder)
        configs = [read_optional_json(place / "config.json") if place != folder else {} for _, place in found]
        modules = tuple((kind, config) for (kind, _), config in zip(found, configs, strict=True))
        return cls(modules, read_optional_json(folder / PROMPTS), tuple(place for _, place in found))

    def config_of(self, kind: str) -> Mapping[str, object] | None:
        """The config of the part of that class, None when there is none."""
        return next((config for name, config in self.modules if name == kind), None)


def resolve_task(arguments: CompileArguments, config: Mapping[str, object], files: SentenceFiles) -> CompileArguments:
    """The arguments with the task that was asked for, else the one that the files tell of."""
    return replace(arguments, task=arguments.task or _told(arguments.source, config, files))


def check_task(arguments: CompileArguments, config: Mapping[str, object], network: Network) -> None:
    """CompileError or UnsupportedModel for what cannot give vectors or scores."""
    task = arguments.task
    if task is ModelTask.GENERATE:
        return
    if network.details.diffusion is not None:
        reason = f"{network.spec.family} denoises blocks, no row of it has seen a whole text"
        raise UnsupportedModel(f"--task {task}: {reason}")
    if layout_of(arguments) is Layout.FUSED or arguments.whole_context:
        raise CompileError(f"--task {task} is for --layout segments and pool with caches")
    if config.get("is_causal") is False or config.get("use_bidirectional_attention"):
        raise UnsupportedModel("attention that sees both ways is not supported for this architecture")


def names_in(checkpoint: Checkpoint, network: Network) -> Network:
    """The network under the names of this checkpoint: one without a head may have left out the first part of each.
    What config.json leaves open, whether there is a head, the checkpoint tells."""
    names = network.details.names
    if network.may_be_untied and f"{names.head}.weight" in checkpoint:
        network = untied(network)

    def bare_of(value: Any) -> Any:
        return tuple(map(bare_of, value)) if isinstance(value, tuple) else value.removeprefix("model.")

    bare = WeightNames(**{each.name: bare_of(getattr(names, each.name)) for each in fields(names)})
    if f"{names.embedding}.weight" in checkpoint or f"{bare.embedding}.weight" not in checkpoint:
        return network
    return replace(network, details=replace(network.details, names=bare))


def pooling_of(tokenizer: Tokenizer, files: SentenceFiles, hidden: int) -> PoolingSpec:
    """How a decoder's vectors are made. UnsupportedModel for a way that is not by the last token."""
    for name, _ in files.modules:
        if name not in ("Transformer", "Pooling", "Normalize"):
            rest = "a decoder's vectors take Pooling and Normalize only"
            raise UnsupportedModel(f"{MODULES} has a {brief(name)}: {rest}")
    pooling = files.config_of("Pooling") or {}
    modes = [key for key, value in pooling.items() if key.startswith("pooling_mode_") and value is True]
    modes = [f"pooling_mode_{mode}" for mode in [pooling.get("pooling_mode")] if mode is not None] or modes
    if modes not in ([], ["pooling_mode_lasttoken"]):
        found = ", ".join(map(brief, modes))
        raise UnsupportedModel(f"{found} is not supported for a decoder (supported: pooling_mode_lasttoken)")
    return pooling_spec(tokenizer, files, PoolingKind.LAST, hidden)


def pooling_spec(
    tokenizer: Tokenizer, files: SentenceFiles, kind: PoolingKind, outputs: int, usual: Mapping[str, str] | None = None
) -> PoolingSpec:
    """Of length 1 unless the files say otherwise. usual: prompts of the family."""
    own, (begin, end) = dict(usual or {}), added_ids(tokenizer)
    prompts, default = read_prompts(ConfigFields(files.prompts, PROMPTS))
    return PoolingSpec(
        kind,
        outputs,
        normalise=not files.modules or files.config_of("Normalize") is not None,
        begin_ids=begin,
        end_ids=end,
        # Saving writes empty prompts for names that nobody set.
        prompts=own | {name: prompt for name, prompt in prompts.items() if prompt or name not in own},
        default_prompt=default,
    )


def added_ids(tokenizer: Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The tokens that the tokenizer itself puts before and behind a text."""
    plain, whole = (tuple(tokenizer.encode("a", add_special_tokens=special).ids) for special in (False, True))
    for start in range(len(whole) - len(plain) + 1):
        if whole[start : start + len(plain)] == plain:
            return whole[:start], whole[start + len(plain) :]
    raise CompileError("the tokenizer changes a text when it adds its special tokens: no text could be cut")


def judge_of(tokenizer: Tokenizer) -> RerankSpec:
    """How a chat model judges documents. CompileError when its tokenizer cannot say it."""
    ids = []
    for word in JUDGEMENTS:
        found = tokenizer.encode(word, add_special_tokens=False).ids
        if len(found) != 1:
            raise CompileError(f"--task rerank: {word!r} must be one token, this tokenizer makes {len(found)} of it")
        ids += found
    for mark in ("<|im_start|>", "<|im_end|>"):
        if tokenizer.token_to_id(mark) is None:
            raise CompileError(f"--task rerank needs a tokenizer with {mark}, in which its prompt is written")
    return RerankSpec(
        RerankKind.JUDGE, JUDGE_PREFIX, JUDGE_BODY, JUDGE_SUFFIX, JUDGE_INSTRUCTION, yes_id=ids[0], no_id=ids[1]
    )


def _told(source: Path, config: Mapping[str, object], files: SentenceFiles) -> ModelTask:
    if files.config_of("LogitScore") is not None:
        return ModelTask.RERANK
    if files.config_of("Pooling") is not None or any(name.endswith(BARE) for name in architectures_of(config)):
        return ModelTask.EMBED
    template = read_template(source, read_optional_json(source / TOKENIZER_CONFIG)) if source.is_dir() else None
    return ModelTask.RERANK if template is not None and SENTENCE in template else ModelTask.GENERATE


def _modules(folder: Path) -> list[tuple[str, Path]]:
    """The class of each part, and where it lies."""
    path = folder / MODULES
    listed: object = []
    with reading(path, CompileError), suppress(FileNotFoundError):
        listed = read_json(path, JSON_BYTES)
    found: list[tuple[str, Path]] = []
    for module in listed if isinstance(listed, list) else []:
        kind, place = (module.get("type"), module.get("path")) if isinstance(module, dict) else (None, None)
        if not isinstance(kind, str) or not isinstance(place, str) or Path(place).name != place:
            raise CompileError(f"{path} must list objects with a type and the name of a folder")
        found.append((kind.rpartition(".")[2], folder / place))
    return found
