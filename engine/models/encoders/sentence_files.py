"""What sentence-transformers writes beside an encoder: how its rows become a vector, its longest text, its prompts."""

from engine.bundle.pooling import PoolingKind
from engine.errors import CompileError, UnsupportedModel
from engine.files.content import brief
from engine.models.config_fields import ConfigFields

MODE_PREFIX = "pooling_mode_"
_MODES = {
    f"{MODE_PREFIX}mean_tokens": PoolingKind.MEAN,
    f"{MODE_PREFIX}cls_token": PoolingKind.CLS,
    f"{MODE_PREFIX}lasttoken": PoolingKind.LAST,
}
_MODE_NAMES = {"mean": PoolingKind.MEAN, "cls": PoolingKind.CLS, "lasttoken": PoolingKind.LAST}


def read_pooling(config: ConfigFields) -> PoolingKind:
    """Of the pooling module's config. UnsupportedModel for other ways, and for several at once."""
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
    """Prompts by name, and the name of the one that texts get when none is asked for."""
    group = config.group("prompts")
    prompts = {name: group.text(name, "") for name in group.names()} if group is not None else {}
    default = config.text("default_prompt_name", "")
    if default and default not in prompts:
        raise CompileError(f"config_sentence_transformers.json: {brief(default)} is none of its prompts")
    return prompts, default


def read_length(config: ConfigFields) -> int:
    """The longest text in tokens, specials included, 0 = not said."""
    if config.flag("do_lower_case", False):
        raise UnsupportedModel("do_lower_case is not supported: the tokenizer itself must write in lower case")
    return config.integer("max_seq_length", 0, 1 << 24, 0)
