"""Everything that can be set, stated once: a field's type, bounds, default and sentence are its flag, its variable, its
key in a TOML file, its row in the reference and what is checked. A flag wins over HEXSERVE_*, that over the file."""

import dataclasses
import difflib
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from annotated_types import Ge, Interval, MinLen

from engine.adapters.named import named_adapters
from engine.config import EngineConfig, Trait
from engine.errors import UnusableInput
from engine.files import brief
from server.media.sources import MediaSources
from server.middleware.auth import read_text_file
from server.middleware.origins import host_name, is_origin

Value = str | int | float | bool
Seconds = Annotated[float, Ge(0)]
Count = Annotated[int, Ge(0)]

ENVIRONMENT_PREFIX = "HEXSERVE_"
CONFIG_VARIABLE = "HEXSERVE_CONFIG"
SINKS = 4  # first tokens that a windowed attention sees (Xiao et al., 2023)


class SettingsError(UnusableInput):
    """A setting is unknown, has the wrong type or is out of range; the message names it and where it came from."""


def listed(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


@dataclass(frozen=True, slots=True)
class Settings:
    """The server's own settings and one EngineConfig; `engine.bundle` is a source until it has been resolved."""

    engine: EngineConfig
    host: Annotated[str, MinLen(1), "Address to listen on; 0.0.0.0 serves the network."] = "127.0.0.1"
    port: Annotated[int, Interval(ge=0, le=65535), "TCP port; 0 takes a free one and prints it."] = 8000
    model_name: Annotated[str, "Name of the model in the API; empty = the bundle's own name."] = ""
    more_models: Annotated[
        str, "Further models, SOURCE or NAME=SOURCE,...; each loads at its first use.", Trait.REPEATABLE
    ] = ""
    models_dir: Annotated[str, "Folder whose models are served as well."] = ""
    models_memory_mb: Annotated[Count, "MiB for all loaded models; 0 = three quarters of the machine's."] = 0
    idle_unload_s: Annotated[Seconds, "Idle time after which a model is unloaded; 0 = never."] = 0.0
    cache_dir: Annotated[str, "Folder for compiled bundles and measured step times; empty = the user's own."] = ""
    max_queued: Annotated[int, Ge(1), "Most requests waiting or running, else 503; each of n counts."] = 256
    max_queued_tokens: Annotated[Count, "Most prompt tokens waiting, else 503; 0 = no bound."] = 0
    body_limit_bytes: Annotated[int, Ge(1024), "Largest request body, else 413."] = 8 * 1024 * 1024
    request_timeout_s: Annotated[Seconds, "Longest life of a request, then 504 or an error event; 0 = no limit."] = 0.0
    prepare_timeout_s: Annotated[
        float, Ge(0.05), "Time to render a template or compile a form of answer, else 400."
    ] = 2.0
    keep_alive_s: Annotated[Seconds, "Interval of comment lines in streams; 0 = none."] = 15.0
    drain_s: Annotated[Seconds, "Time that running requests have after SIGTERM."] = 30.0
    resumable: Annotated[bool, "Let a gateway continue another server's streams (deploy/ray_serve.py)."] = False
    access_log: Annotated[Literal["text", "json", "off"], "Form of the line per request."] = "text"
    otel: Annotated[str, "OpenTelemetry collector (OTLP over HTTP), such as http://localhost:4318."] = ""
    api_keys: Annotated[str, "API keys, comma-separated: key, name:key or name:sha256:digest.", Trait.SECRET] = (
        dataclasses.field(default="", repr=False)
    )
    api_key_file: Annotated[str, "File with one API key per line: key, name:key or name:sha256:digest."] = ""
    media: Annotated[
        str, "Hosts (* = any public one) and absolute folders whose images requests may name, comma-separated."
    ] = ""
    allowed_hosts: Annotated[str, "Host names served besides loopback ones, comma-separated; * = any."] = ""
    cors_origins: Annotated[str, "Web origins that may call from a browser, comma-separated; * = any."] = ""
    trusted_proxies: Annotated[str, "Addresses whose X-Forwarded-For is believed, comma-separated."] = ""
    requests_per_minute: Annotated[Count, "Most POST requests of one key (or address) per minute; 0 = no limit."] = 0
    tokens_per_minute: Annotated[Count, "Most prompt and answer tokens of one key (or address); 0 = no limit."] = 0
    max_concurrent: Annotated[Count, "Most POST requests of one key (or address) at once; 0 = no limit."] = 0
    isolate_prefix_cache: Annotated[bool, "Share cached prompts only within one key (or address)."] = False
    page: Annotated[bool, "Serve the chat page /, /v1/steps and /docs."] = True
    store_responses: Annotated[
        bool, "Store responses for 30 days after their last use, up to 512 MiB, unless a request says store: false."
    ] = False
    data_dir: Annotated[str, "Folder for stored responses; empty = the user's own."] = ""

    def __post_init__(self) -> None:
        """SettingsError for lists whose parts, and times of which a fraction, cannot be what they should."""
        if 0 < self.engine.step_timeout_s < 1:
            raise SettingsError("step_timeout_s must be 0 or at least 1: less would end workers that are only busy")
        try:
            if self.model_name in named_adapters(self.engine.lora):
                raise SettingsError(f"lora: the adapter {self.model_name} has the name of the model")
        except ValueError as error:
            raise SettingsError(f"lora: {error}") from None
        if self.engine.kv_file and self.isolate_prefix_cache:
            reason = "salts of callers end with a process"
            raise SettingsError(f"kv_file and isolate_prefix_cache exclude each other: {reason}")
        try:
            MediaSources.of(self.media)
        except ValueError as error:
            raise SettingsError(f"media: {error}") from None
        for origin in listed(self.cors_origins):
            if not is_origin(origin):
                raise SettingsError(f"cors_origins: '{origin}' is no origin such as https://example.org")
        for host in listed(self.allowed_hosts):
            if host != "*" and (host_name(host) != host.lower() or "/" in host):
                raise SettingsError(f"allowed_hosts: '{host}' must be a name without scheme, port and path")

    def with_bundle(
        self, folder: Path, cache: Path, draft: Path | None = None, other: Path | None = None
    ) -> "Settings":
        """The same settings with their sources resolved to bundle folders; measured costs are kept in the cache."""
        given = self.engine
        optional = given.devices_optional or given.devices.strip().lower() == "auto"
        engine = dataclasses.replace(
            given,
            bundle=str(folder),
            draft=str(draft or ""),
            devices=str(other or ""),
            devices_optional=optional and other is not None,
            cost_cache=given.cost_cache or str(costs_folder(cache)),
        )
        return dataclasses.replace(self, engine=engine)


def costs_folder(cache: Path) -> Path:
    return cache / "costs"


@dataclass(frozen=True, slots=True)
class Option:
    """One setting as every source sees it. annotation: its type with all that is said beside it. help: what it means,
    in a sentence or two; "" for a field that is no setting."""

    key: str
    annotation: Any
    default: Value
    is_engine: bool
    kind: type[Value]
    choices: tuple[str, ...]
    help: str

    def has(self, trait: Trait) -> bool:
        return trait in get_args(self.annotation)[1:]

    @property
    def variable(self) -> str:
        return ENVIRONMENT_PREFIX + self.key.upper()

    @property
    def flag(self) -> str:
        return "--" + self.key.replace("_", "-")


def options() -> tuple[Option, ...]:
    found: list[Option] = []
    for owner in (EngineConfig, Settings):
        hints = get_type_hints(owner, include_extras=True)
        for field in dataclasses.fields(owner):
            hint = hints[field.name]
            if get_origin(hint) is Annotated:
                kind, *said = get_args(hint)
                choices = get_args(kind) if get_origin(kind) is Literal else ()
                text = next((part for part in said if isinstance(part, str)), "")
                default: Any = "demo" if field.name == "bundle" else field.default
                kind = str if choices else kind
                found.append(Option(field.name, hint, default, owner is EngineConfig, kind, choices, text))
    return tuple(found)


def load_settings(flags: Mapping[str, Value | None], environment: Mapping[str, str], config: Path | None) -> Settings:
    """Merge the sources; `flags` holds None where a flag was not given. Raises SettingsError."""
    known = {option.key: option for option in options()}
    path = config or (Path(environment[CONFIG_VARIABLE]) if environment.get(CONFIG_VARIABLE) else None)
    values: dict[str, Value] = _from_file(path, known) if path is not None else {}
    values |= _from_environment(environment, known)
    values |= {key: _checked(known[key], given, known[key].flag) for key, given in flags.items() if given is not None}
    if values.get("models_dir"):
        values.setdefault("bundle", "")  # the folder's models are what is served
    engine: dict[str, Any] = {"bundle": "demo", "sinks": SINKS if values.get("window") else 0}
    own: dict[str, Any] = {}
    for key, value in values.items():
        (engine if known[key].is_engine else own)[key] = value
    return Settings(engine=EngineConfig(**engine), **own)


def _from_file(path: Path, known: Mapping[str, Option]) -> dict[str, Value]:
    try:
        table = tomllib.loads(read_text_file(path))
    except (OSError, ValueError) as error:  # NotUtf8, TOMLDecodeError, a number of too many digits
        raise SettingsError(f"settings file {path} cannot be read: {error}") from error
    except RecursionError:
        raise SettingsError(f"settings file {path} cannot be read: it is nested too deeply") from None
    for key in table:
        if key not in known:
            raise SettingsError(f"{path}: unknown setting '{key}'{_nearest(key, known)}")
    return {key: _checked(known[key], given, f"{path}: '{key}'") for key, given in table.items()}


def _from_environment(environment: Mapping[str, str], known: Mapping[str, Option]) -> dict[str, Value]:
    by_variable = {option.variable: option for option in known.values()}
    found: dict[str, Value] = {}
    for variable, text in environment.items():
        if not variable.upper().startswith(ENVIRONMENT_PREFIX) or variable == CONFIG_VARIABLE:
            continue
        option = by_variable.get(variable)
        if option is None:
            raise SettingsError(f"unknown environment variable {variable}{_nearest(variable.upper(), by_variable)}")
        found[option.key] = _checked(option, text, variable, is_text=True)
    return found


def _nearest(key: str, known: Mapping[str, Option]) -> str:
    close = difflib.get_close_matches(key, known, n=1, cutoff=0.0)
    return f"; the nearest one is {close[0]}" if close else ""


def _checked(option: Option, given: Any, origin: str, is_text: bool = False) -> Value:
    """What was given as the setting's type, within its bounds. is_text: it is to be parsed, otherwise a type is wrong.
    pydantic is loaded here, by commands that need settings, so that --help stays quick."""
    from pydantic import ConfigDict, TypeAdapter, ValidationError  # noqa: PLC0415

    if isinstance(given, str) and option.choices:
        given = given.lower()
    adapter: TypeAdapter[Value] = TypeAdapter(
        option.annotation, config=ConfigDict(allow_inf_nan=False, str_strip_whitespace=True, hide_input_in_errors=True)
    )
    try:
        return adapter.validate_strings(given) if is_text else adapter.validate_python(given, strict=True)
    except ValidationError as error:
        sentence = re.sub(r"^(Input|String) should", "must", error.errors(include_url=False)[0]["msg"])
        shown = "" if option.has(Trait.SECRET) else f", not {brief(given)}"
        raise SettingsError(f"{origin} {sentence}{shown}") from None
