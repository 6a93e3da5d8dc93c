"""Everything that can be set, read once: flags over HEXSERVE_* over a TOML file over defaults. Unknown keys fail."""

import dataclasses
import difflib
import tomllib
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, get_type_hints

from engine.adapters.named import named_adapters
from engine.config import EngineConfig
from engine.files.content import brief
from engine.request import Unmasking
from server.http.guard.hosts import host_name
from server.http.guard.origins import is_origin
from server.http.guard.text_file import read_text_file
from server.options.bounds import NO_BOUNDS, Bounds, Value
from server.options.bounds import chosen as _chosen
from server.options.bounds import required as _required
from server.options.bounds import secret as _secret
from server.options.bounds import setting as _setting
from server.options.models import ModelsSettings
from server.options.storage import StorageSettings

ENVIRONMENT_PREFIX = "HEXSERVE_"
CONFIG_VARIABLE = "HEXSERVE_CONFIG"
LOG_LEVELS = ("debug", "info", "warning", "error")
# Former names, refused in every source with the name of today.
RENAMED: Mapping[str, str] = types.MappingProxyType(
    {"shelf_mb": "kv_offload_mb", "grammar_helpers": "grammar_compilers"}
)


class SettingsError(Exception):
    """A setting is unknown, has the wrong type or is out of range; the message names it and where it came from."""


def listed(text: str) -> tuple[str, ...]:
    """The parts of a comma-separated setting."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


@dataclass(frozen=True, slots=True)
class Settings(ModelsSettings, StorageSettings):
    """The server's own settings and one EngineConfig; `engine.bundle` is a source until it has been resolved."""

    engine: EngineConfig
    host: str = _required("127.0.0.1", "Address to listen on; 0.0.0.0 serves the network.")
    port: int = _setting(8000, "TCP port; 0 takes a free one and prints it.", 0, 65535)
    model_name: str = _setting("", "Name of the model in the API; empty = the bundle's own name.")
    cache_dir: str = _setting(
        "", "Folder for compiled checkpoints (removed after 30 unused days) and measured costs; empty = the user's own."
    )
    max_queued: int = _setting(256, "Most requests waiting or running; each of n counts. More are answered 503.", 1)
    max_queued_tokens: int = _setting(0, "Most prompt tokens waiting; more are answered 503. 0 = no bound.", 0)
    stream_buffer: int = _setting(1024, "Deltas kept for a client that reads too slowly before it is dropped.", 1)
    max_choices: int = _setting(128, "Highest n of one request.", 1, 128)
    max_prompts: int = _setting(1024, "Most prompts in one completion request.", 1, 1024)
    max_inputs: int = _setting(2048, "Most inputs of one embeddings request, and documents of one rerank.", 1, 2048)
    body_limit_bytes: int = _setting(8 * 1024 * 1024, "Largest request body; larger ones are answered 413.", 1024)
    header_timeout_s: float = _setting(10.0, "Time a client has to send a request's headers; then 408.", 0.1)
    body_timeout_s: float = _setting(30.0, "Time a client has to send its body; later is answered 408.", 0.1)
    request_timeout_s: float = _setting(0.0, "Longest life of a request, then 504 or an error event; 0 = no limit.", 0)
    resumable: bool = _setting(
        False, "Take requests with which a front goes on for another server (deploy/ray_serve.py)."
    )
    keep_alive_s: float = _setting(15.0, "Interval of comment lines in streams, from the beginning; 0 = none.", 0)
    drain_s: float = _setting(30.0, "Time running requests may take to finish after SIGTERM.", 0)
    access_log: bool = _setting(True, "Write one line per request.")
    access_log_format: str = _chosen("text", "Form of these lines; json: one object a line.", ("text", "json"))
    otel: str = _setting("", "OpenTelemetry collector for traces (OTLP over HTTP), such as http://localhost:4318.")
    template_timeout_s: float = _setting(2.0, "Longest rendering of the chat template; longer is 400.", 0.05)
    grammar_timeout_s: float = _setting(2.0, "Longest compilation of the form of an answer; longer is 400.", 0.05)
    grammar_limit_bytes: int = _setting(1024 * 1024, "Largest form of an answer, schemas of tools included.", 1024)
    grammar_compilers: int = _setting(4, "Most processes that compile forms; started when needed.", 1, 64)
    api_keys: str = _secret("API keys, comma-separated: key, name:key or name:sha256:digest. Empty = no keys.")
    api_key_file: str = _setting("", "File with one API key per line: key, name:key or name:sha256:digest.")
    allowed_hosts: str = _setting("", "Host names served besides loopback ones, comma-separated; * = any.")
    cors_origins: str = _setting("", "Web origins that may call from a browser, comma-separated; * = any.")
    trusted_proxies: str = _setting("", "Addresses whose X-Forwarded-For is believed, comma-separated.")
    requests_per_minute: int = _setting(0, "Most POST requests of one key (or address) per minute; 0 = no limit.", 0)
    tokens_per_minute: int = _setting(0, "Most prompt and answer tokens of one key (or address); 0 = no limit.", 0)
    max_concurrent: int = _setting(0, "Most POST requests of one key (or address) at once; 0 = no limit.", 0)
    isolate_prefix_cache: bool = _setting(False, "Share cached prompts only within one key (or address).")
    header_limit_bytes: int = _setting(32 * 1024, "Largest request head; larger ones are answered 431.", 1024, 65536)
    max_connections: int = _setting(960, "Most open connections; more are answered 503 and closed. 0 = no limit.", 0)
    docs: bool = _setting(True, "Serve /docs and /openapi.json.")
    page: bool = _setting(True, "Serve a chat page at / and what each pass was at /v1/passes.")
    denoising_steps: int = _setting(
        0, "Block diffusion: most passes of a block; 0 = one for each of its tokens.", 0, 1024
    )
    unmasking_strategy: str = _chosen(
        "dynamic_confidence", "Block diffusion: which tokens of a block a pass settles.", tuple(Unmasking)
    )
    confidence_threshold: float = _setting(
        0.9, "Block diffusion: tokens more probable than this are settled by dynamic_confidence.", 0, 1
    )
    entropy_bound: float = _setting(
        0.1, "Block diffusion: sum of the entropies, in nats, that entropy_bound settles in a pass.", 0, 100
    )

    def __post_init__(self) -> None:
        """SettingsError for lists whose parts, and times of which a fraction, cannot be what they should."""
        for key in ("pass_timeout_s", "load_timeout_s"):
            if 0 < getattr(self.engine, key) < 1:
                raise SettingsError(f"{key} must be 0 or at least 1: less would end workers that are only busy")
        try:
            if self.model_name in named_adapters(self.engine.lora):
                raise SettingsError(f"lora: the adapter {self.model_name} has the name of the model")
        except ValueError as error:
            raise SettingsError(f"lora: {error}") from None
        if self.engine.lora and self.engine.paced:
            raise SettingsError("lora: a paced server computes nothing that adapters could change")
        if self.engine.kv_file and self.isolate_prefix_cache:
            raise SettingsError(
                "kv_file and isolate_prefix_cache exclude each other: salts of callers end with a process"
            )
        for origin in listed(self.cors_origins):
            if not is_origin(origin):
                raise SettingsError(f"cors_origins: '{origin}' is no origin such as https://example.org")
        for host in listed(self.allowed_hosts):
            if host != "*" and (host_name(host) != host.lower() or "/" in host):
                raise SettingsError(f"allowed_hosts: '{host}' must be a name without scheme, port and path")

    @property
    def log_level(self) -> str:
        """One level for both processes."""
        return self.engine.log_level

    @property
    def denoising(self) -> Mapping[str, Value]:
        """What block diffusion does where a request does not say otherwise."""
        names = ("denoising_steps", "unmasking_strategy", "confidence_threshold", "entropy_bound")
        return {name: getattr(self, name) for name in names}

    def with_bundle(self, folder: Path, cache: Path, draft: Path | None = None) -> "Settings":
        """The same settings with their sources resolved to bundle folders; measured costs are kept in the cache."""
        costs = self.engine.cost_cache or str(cache / "costs")
        engine = dataclasses.replace(self.engine, bundle=str(folder), draft=str(draft or ""), cost_cache=costs)
        return dataclasses.replace(self, engine=engine)


ENGINE_BOUNDS: Mapping[str, Bounds] = types.MappingProxyType(
    {
        "bundle": Bounds(
            "What to serve: 'demo', 'demo-diffusion', a bundle folder, a Hugging Face folder or a GGUF file.",
            is_required=True,
        ),
        "threads": Bounds("Threads of the CPU provider; 0 = its own choice.", 0, 1024),
        "spin": Bounds(
            "Threads of the CPU provider wait for their next work without sleeping: passes are faster on a machine "
            "with nothing else to do and slower on a busy one; auto = from 100 MB of weights on.",
            choices=("auto", "on", "off"),
        ),
        "max_rows": Bounds("Most rows of one pass of a free-shape bundle.", 1, 8192),
        "max_context": Bounds("Most tokens of one sequence, prompt and answer; 0 = what the bundle allows.", 0),
        "max_running": Bounds("Most sequences that run at once.", 1),
        "pools": Bounds("Past-KV pools.", 1, 1024),
        "pool_columns": Bounds("Columns (tokens) of one pool; 0 = from the bundle.", 0, 1 << 24),
        "reserve_tokens": Bounds(
            "First guess of an answer's length, for which columns are kept free while others run; 0 = none.",
            0,
        ),
        "embed_rows": Bounds("Most rows of a pass for embeddings and reranking while answers are generated.", 1),
        "max_gap_ms": Bounds(
            "Longest time between two tokens of one stream to which reading prompts may stretch it, in milliseconds.", 1
        ),
        "prefix_cache": Bounds("Reuse the cache of equal prompt beginnings."),
        "kv_offload_mb": Bounds("MiB of memory for prompt beginnings that left the pools; 0 = none.", 0),
        "kv_file": Bounds(
            "File that keeps cached prompts over a restart: read at the start, written at the end; empty = none."
        ),
        "kv_file_mb": Bounds("Most MiB that kv_file may take; those used last are kept.", 1),
        "window": Bounds(
            "Attention sees the last so many tokens of a sequence, and its first ones; 0 = all of them.", 0
        ),
        "sinks": Bounds("With a window: how many of the first tokens attention sees as well.", 0),
        "deterministic": Bounds("Run every pass through one variant, so that texts do not depend on the load."),
        "lookup_rows": Bounds(
            "Most prompt-lookup guesses of a sequence in a pass, where rows are padding or worth their time; 0 = off.",
            0,
            64,
        ),
        "prediction_rows": Bounds("The same for guesses from the `prediction` of a request.", 0, 64),
        "draft": Bounds("Bundle of a smaller model with the same tokenizer, which guesses for this one; empty = none."),
        "draft_tokens": Bounds("Most tokens that the draft model guesses for a pass; 0 = as many as pay.", 0, 32),
        "forecast": Bounds(
            "Let a model with a forecast prefix (a Genie folder of type ssd-q1) guess its own next tokens in rows that "
            "would be padding."
        ),
        "pass_timeout_s": Bounds(
            "Silence of the worker, or time in one pass (20 times what it should take where that is more), after which "
            "it is killed and its streams go on with a new one; at least 1, 0 = no bound.",
            0,
            86400,
        ),
        "load_timeout_s": Bounds(
            "Longest start of the worker, after which it is killed; at least 1, 0 = no bound.", 0, 86400
        ),
        "log_level": Bounds("Least severe message written.", choices=LOG_LEVELS),
        "cost_cache": Bounds("Folder for the measured time of each variant; empty = in the cache folder."),
        "paced": Bounds(
            "DEVICE/MODEL, such as x-elite/llama-3.2-3b: measure the host without the device. Nothing is computed, a "
            "pass sleeps for its published time, every answer is noise."
        ),
        "lora": Bounds(
            "Adapters in PEFT's form, NAME=FOLDER,...: a request names one as its model. Bundles that take them are "
            "compiled with --lora.",
            is_repeatable=True,
        ),
        "qnn_options": Bounds("NPU: more options of the QNN provider, key=value,...; for experiments."),
        "qnn_library_dir": Bounds("NPU: folder of the QNN libraries; empty = those of onnxruntime-qnn."),
        "qnn_op_packages": Bounds("NPU: op packages of the binaries, type:path:interface[:target],..."),
    }
)


def variable_name(key: str) -> str:
    """The environment variable of a setting."""
    return ENVIRONMENT_PREFIX + key.upper()


def flag_name(key: str) -> str:
    """The command-line flag of a setting."""
    return "--" + key.replace("_", "-")


@dataclass(frozen=True, slots=True)
class Option:
    """One setting as every source sees it."""

    key: str
    kind: type[Value]
    default: Value
    bounds: Bounds
    is_engine: bool

    @property
    def variable(self) -> str:
        """Name of its environment variable."""
        return variable_name(self.key)

    @property
    def flag(self) -> str:
        """Its command-line flag."""
        return flag_name(self.key)


def options() -> tuple[Option, ...]:
    """Every setting, engine settings first."""
    engine_kinds = get_type_hints(EngineConfig)
    found = [
        Option(f.name, engine_kinds[f.name], _default(f), ENGINE_BOUNDS.get(f.name, NO_BOUNDS), True)
        for f in dataclasses.fields(EngineConfig)
    ]
    kinds = get_type_hints(Settings)
    found += [
        Option(f.name, kinds[f.name], _default(f), f.metadata["bounds"], False)
        for f in dataclasses.fields(Settings)
        if f.name != "engine"
    ]
    return tuple(found)


def _default(item: "dataclasses.Field[Any]") -> Value:
    return "demo" if item.name == "bundle" else cast(Value, item.default)


def load_settings(flags: Mapping[str, Value | None], environment: Mapping[str, str], config: Path | None) -> Settings:
    """Merge the sources; `flags` holds None where a flag was not given. Raises SettingsError."""
    known = {option.key: option for option in options()}
    path = config or (Path(environment[CONFIG_VARIABLE]) if environment.get(CONFIG_VARIABLE) else None)
    values: dict[str, Value] = {}
    if path is not None:
        values |= _from_file(path, known)
    values |= _from_environment(environment, known)
    for key, given in flags.items():
        if given is not None:
            _refuse_former_name(key, flag_name)
            values[key] = _checked(known[key], given, known[key].flag)
    defaults: dict[str, Value] = {key: option.default for key, option in known.items()}
    if values.get("models_dir"):
        defaults["bundle"] = ""  # the folder's models are what is served
    values = defaults | values
    engine = {key: value for key, value in values.items() if known[key].is_engine}
    own = {key: value for key, value in values.items() if not known[key].is_engine}
    return Settings(engine=EngineConfig(**engine), **own)  # type: ignore[arg-type]  # checked by _checked


def _refuse_former_name(key: str, shown: Callable[[str], str], origin: str = "") -> None:
    if key in RENAMED:
        raise SettingsError(f"{origin}{shown(key)} is now called {shown(RENAMED[key])}")


def _from_file(path: Path, known: Mapping[str, Option]) -> dict[str, Value]:
    try:
        table = tomllib.loads(read_text_file(path))
    except (OSError, ValueError) as error:  # NotUtf8, TOMLDecodeError, a number of too many digits
        raise SettingsError(f"settings file {path} cannot be read: {error}") from error
    except RecursionError:
        raise SettingsError(f"settings file {path} cannot be read: it is nested too deeply") from None
    found: dict[str, Value] = {}
    for key, given in table.items():
        _refuse_former_name(key, repr, f"{path}: ")
        if key not in known:
            raise SettingsError(f"{path}: unknown setting '{key}'{_nearest(key, known)}")
        if not isinstance(given, str | int | float | bool):
            raise SettingsError(f"{path}: '{key}' must be a {_kind_name(known[key].kind)}")
        found[key] = _checked(known[key], given, f"{path}: '{key}'")
    return found


def _from_environment(environment: Mapping[str, str], known: Mapping[str, Option]) -> dict[str, Value]:
    by_variable = {option.variable: option for option in known.values()}
    found: dict[str, Value] = {}
    for variable, text in environment.items():
        if not variable.upper().startswith(ENVIRONMENT_PREFIX) or variable == CONFIG_VARIABLE:
            continue
        _refuse_former_name(variable.removeprefix(ENVIRONMENT_PREFIX).lower(), variable_name)
        option = by_variable.get(variable)
        if option is None:
            raise SettingsError(f"unknown environment variable {variable}{_nearest(variable.upper(), by_variable)}")
        found[option.key] = _checked(option, _from_text(option, text), variable)
    return found


def _nearest(key: str, known: Mapping[str, Option]) -> str:
    close = difflib.get_close_matches(key, known, n=1, cutoff=0.0)
    return f"; the nearest one is {close[0]}" if close else ""


def _from_text(option: Option, text: str) -> Value:
    if option.kind is str:
        return text
    try:
        if option.kind is bool:
            return {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}[text.lower()]
        return option.kind(text)
    except (ValueError, KeyError):
        raise SettingsError(f"{option.variable} must be a {_kind_name(option.kind)}, not '{text}'") from None


def _checked(option: Option, given: Value, origin: str) -> Value:
    if option.kind is float and type(given) is int:
        given = float(given)
    bounds = option.bounds
    if type(given) is not option.kind:
        shown = "" if bounds.is_secret else f", not {brief(given)}"
        raise SettingsError(f"{origin} must be a {_kind_name(option.kind)}{shown}")
    if isinstance(given, str) and bounds.is_required and not given.strip():
        raise SettingsError(f"{origin} must not be empty")
    if isinstance(given, str) and bounds.choices:
        given = given.lower()
    if bounds.choices and given not in bounds.choices:
        raise SettingsError(f"{origin} must be one of {', '.join(bounds.choices)}, not {given!r}")
    if not isinstance(given, str | bool):
        if bounds.low is not None and not given >= bounds.low:
            raise SettingsError(f"{origin} must be at least {bounds.low:.15g}, not {brief(given)}")
        if bounds.high is not None and not given <= bounds.high:
            raise SettingsError(f"{origin} must be at most {bounds.high:.15g}, not {brief(given)}")
        if given in (float("inf"), float("-inf")):
            raise SettingsError(f"{origin} must be finite")
    return given


def _kind_name(kind: type[Value]) -> str:
    return {str: "string", int: "whole number", float: "number", bool: "true or false"}[kind]
