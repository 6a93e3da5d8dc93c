"""What an encoder's bundle is for, and how its vectors are made or its pairs are written."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from tokenizers import Tokenizer

from engine.bundle.pooling import PoolingKind, PoolingSpec, RerankKind, RerankSpec
from engine.bundle.task import ModelTask
from engine.compile.arguments import CompileArguments
from engine.compile.checkpoint import read_optional_json
from engine.compile.task import MODULES, PROMPTS, SentenceFiles, added_ids
from engine.errors import CompileError, UnsupportedModel
from engine.files.content import brief
from engine.models.config_fields import ConfigFields
from engine.models.encoder_details import EncoderDetails
from engine.models.encoders.families import ENCODER_FAMILIES
from engine.models.encoders.recognition import architecture_of
from engine.models.encoders.sentence_files import read_length, read_pooling, read_prompts

LENGTH_FILES = ("sentence_bert_config.json", "sentence_roberta_config.json")
KNOWN_MODULES = ("Transformer", "Pooling", "Normalize")


def settle_encoder_task(arguments: CompileArguments, config: Mapping[str, object]) -> CompileArguments:
    """The arguments with the task that the architecture tells. CompileError when another one was asked for."""
    architecture = architecture_of(config)
    assert architecture is not None, "asked of a checkpoint that is no encoder"
    task = ModelTask.EMBED if ENCODER_FAMILIES[architecture].score_head is None else ModelTask.RERANK
    if arguments.task not in (None, task):
        raise CompileError(f"--task {arguments.task} is not what {architecture} is for: it takes --task {task}")
    return replace(arguments, task=task)


def longest_text(folder: Path, asked: int) -> int:
    """Most tokens of a text, by the files and by the option; 0 = neither says."""
    lengths = [asked]
    for name in LENGTH_FILES:
        lengths.append(read_length(ConfigFields(read_optional_json(folder / name), name)))
    return min(filter(None, lengths), default=0)


def encoder_pooling(tokenizer: Tokenizer, files: SentenceFiles, details: EncoderDetails, hidden: int) -> PoolingSpec:
    """As the files say; without them the mean of the rows, of length 1. UnsupportedModel for other modules."""
    for name, _ in files.modules:
        if name not in KNOWN_MODULES:
            raise UnsupportedModel(f"{MODULES}: module {brief(name)} is not supported, it would change the vectors")
    config = files.config_of("Pooling")
    kind = PoolingKind.MEAN if config is None else read_pooling(ConfigFields(config, "the pooling's config.json"))
    usual = dict(details.prompts)
    prompts, default = read_prompts(ConfigFields(files.prompts, PROMPTS))
    # Saving writes empty prompts for names that nobody set.
    prompts = usual | {name: prompt for name, prompt in prompts.items() if prompt or name not in usual}
    begin, end = added_ids(tokenizer)
    return PoolingSpec(
        kind,
        hidden,
        normalise=not files.modules or files.config_of("Normalize") is not None,
        begin_ids=begin,
        end_ids=end,
        prompts=prompts,
        default_prompt=default,
    )


def pair_of(tokenizer: Tokenizer, token_types: int) -> RerankSpec:
    """How query and document are put together. CompileError when the tokenizer writes no pair."""
    one, other = (tuple(tokenizer.encode(text, add_special_tokens=False).ids) for text in ("a", "b"))
    encoded = tokenizer.encode("a", "b", add_special_tokens=True)
    whole, types = tuple(encoded.ids), tuple(encoded.type_ids)
    first = whole.index(one[0]) if one and one[0] in whole else -1
    second = whole.index(other[0], first + len(one)) if other and other[0] in whole[first + len(one) :] else -1
    if first < 0 or second < 0:
        raise CompileError("the tokenizer does not put two texts together: no pair could be scored")
    has_types = token_types > 1 and types[second] == 1
    if has_types and types != (0,) * second + (1,) * (len(whole) - second):
        raise CompileError("the tokenizer gives token types that are not 0 up to the second text and 1 from there on")
    return RerankSpec(
        RerankKind.PAIR,
        begin_ids=whole[:first],
        middle_ids=whole[first + len(one) : second],
        end_ids=whole[second + len(other) :],
        has_types=has_types,
    )
