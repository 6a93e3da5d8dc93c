"""The files of sentence-transformers beside a checkpoint: pooling, length of vectors, longest text, prompts."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from engine.bundle.encoder_spec import Pooling
from engine.errors import CompileError, UnsupportedModel
from engine.files.content import brief
from engine.models.config_fields import ConfigFields

MODULES_FILE, LENGTH_FILES = "modules.json", ("sentence_bert_config.json", "sentence_roberta_config.json")
PROMPTS_FILE = "config_sentence_transformers.json"
MODE_PREFIX = "pooling_mode_"
_MODES = {
    f"{MODE_PREFIX}mean_tokens": Pooling.MEAN,
    f"{MODE_PREFIX}cls_token": Pooling.CLS,
    f"{MODE_PREFIX}lasttoken": Pooling.LAST,
}
_MODE_NAMES = {"mean": Pooling.MEAN, "cls": Pooling.CLS, "lasttoken": Pooling.LAST}


@dataclass(frozen=True, slots=True)
class SentenceFacts:
    """What the files say, or what holds where there are none: the mean of the rows, vectors of length 1.

    max_tokens: of one text, specials included, 0 = not said. prompts, default_prompt: as in `EncoderSpec`.
    """

    pooling: Pooling = Pooling.MEAN
    normalize: bool = True
    max_tokens: int = 0
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str = ""


def pooling_folder(modules: object) -> tuple[str, bool]:
    """modules.json -> the folder of the pooling module, and whether vectors are normalised.

    Raises UnsupportedModel for other modules, which would change the vectors, CompileError for a damaged file.
    """
    if not isinstance(modules, list):
        raise CompileError(f"{MODULES_FILE} must hold a list of modules")
    folder, normalize = "", False
    for module in modules:
        kind, path = (module.get("type"), module.get("path")) if isinstance(module, dict) else (None, None)
        if not isinstance(kind, str) or not isinstance(path, str):
            raise CompileError(f"{MODULES_FILE}: a module must have type and path, it is {brief(module)}")
        match kind.rpartition(".")[2]:
            case "Transformer":
                if path:
                    raise UnsupportedModel(f"{MODULES_FILE}: a Transformer in a folder of its own is not supported")
            case "Pooling":
                folder = path
            case "Normalize":
                normalize = True
            case other:
                raise UnsupportedModel(f"{MODULES_FILE}: module {brief(other)} is not supported")
    if not folder or not folder.replace("_", "").isalnum():
        raise CompileError(f"{MODULES_FILE} must name the folder of a Pooling module, it names {brief(folder)}")
    return folder, normalize


def read_pooling(config: ConfigFields) -> Pooling:
    """The pooling module's config.json. UnsupportedModel for other ways, and for several at once."""
    if not config.flag("include_prompt", True):
        raise UnsupportedModel("pooling that leaves out the rows of the prompt (include_prompt) is not supported")
    named = config.raw("pooling_mode")
    if named is not None:
        if not isinstance(named, str) or named not in _MODE_NAMES:
            raise UnsupportedModel(f"pooling {brief(named)} is not supported (supported: {', '.join(_MODE_NAMES)})")
        return _MODE_NAMES[named]
    chosen = [key for key in config.names() if key.startswith(MODE_PREFIX) and config.flag(key, False)]
    if len(chosen) != 1 or chosen[0] not in _MODES:
        found = ", ".join(map(brief, chosen)) or "none"
        raise UnsupportedModel(f"pooling must be one of {', '.join(_MODES)}, it is {found}")
    return _MODES[chosen[0]]


def read_prompts(config: ConfigFields) -> tuple[dict[str, str], str]:
    """config_sentence_transformers.json -> prompts by name, and the name of the one that is always written."""
    group = config.group("prompts")
    prompts = {name: group.text(name, "") for name in group.names()} if group is not None else {}
    default = config.text("default_prompt_name", "")
    if default and default not in prompts:
        raise CompileError(f"{PROMPTS_FILE}: default_prompt_name {brief(default)} is none of its prompts")
    return prompts, default


def read_length(config: ConfigFields) -> int:
    """sentence_bert_config.json -> the longest text in tokens, 0 = not said."""
    if config.flag("do_lower_case", False):
        raise UnsupportedModel("do_lower_case is not supported: the tokenizer itself must write in lower case")
    return config.integer("max_seq_length", 0, 1 << 24, 0)
