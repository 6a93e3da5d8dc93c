"""Which models are served under which names, and what of the settings is whose."""

import dataclasses
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import cast

import pytest

from engine.bundle.manifest import load_manifest
from engine.config import EngineConfig
from engine.errors import BundleError
from engine.isolation.machine import usable_memory
from server.commands.serve import start
from server.commands.serve.start import MACHINE_SHARE, Prepared, named, prepare
from server.models.manager import ModelManager
from server.models.models import Models
from server.settings import Settings
from tests.bundles import Bundles
from tests.server.scripted_engine import ScriptedEngine

Prepare = Callable[[Settings], Prepared]


class OpenedEngine(ScriptedEngine):
    def __init__(self, config: EngineConfig, label: str) -> None:
        super().__init__()
        self.config = config
        self.label = label


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Prepare]:
    with ExitStack() as held:

        def prepared(settings: Settings) -> Prepared:
            return prepare(settings, tmp_path / "cache", lambda config, _, label: OpenedEngine(config, label), held)

        yield prepared


@pytest.fixture(autouse=True)
def compiled(bundles: Bundles) -> None:
    """A compilation runs an event loop of its own, so none may begin inside a test's."""
    bundles("free")
    bundles("fixed")


def settings_of(bundle: Path, **options: object) -> Settings:
    engine = {name: options.pop(name) for name in ("draft", "lora", "kv_file", "threads", "devices") if name in options}
    return Settings(EngineConfig(str(bundle), **engine), **options)  # type: ignore[arg-type]


async def test_one_model_is_there_from_the_start(made: Prepare, bundles: Bundles) -> None:
    prepared = made(settings_of(bundles("free")))
    models = prepared.make()
    assert type(models) is Models and prepared.count == 1
    assert not models.models[0].comes_and_goes
    assert cast(OpenedEngine, models.models[0].engine).label == ""


@pytest.mark.parametrize(
    ("options", "preloads"),
    [
        ({"idle_unload_s": 5.0}, True),
        ({"idle_unload_s": 5.0, "models_dir": "."}, False),
    ],
)
async def test_an_only_model_that_comes_and_goes(
    made: Prepare, bundles: Bundles, options: dict[str, object], preloads: bool
) -> None:
    manager = made(settings_of(bundles("free"), **options)).make()
    assert isinstance(manager, ModelManager)
    assert manager.rules.preloads == preloads
    assert [model.name for model in manager.models] == [load_manifest(bundles("free")).name]


async def test_names_are_given_or_the_bundles_own(made: Prepare, bundles: Bundles, tmp_path: Path) -> None:
    inside = tmp_path / "models" / "a-checkpoint"
    inside.mkdir(parents=True)
    (inside / "config.json").write_text("{}")
    shutil.copytree(bundles("free"), inside.parent / "b-bundle")
    settings = settings_of(
        Path(f"first={bundles('segments')}"),
        more_models=f"org/two={bundles('free')}, three={bundles('fixed')}",
        models_dir=str(inside.parent),
        models_memory_mb=7,
        idle_unload_s=3.0,
    )
    prepared = made(settings)
    manager = cast(ModelManager, prepared.make())
    own = load_manifest(bundles("free")).name
    assert [model.name for model in manager.models] == ["first", "org/two", "three", "a-checkpoint", own]
    assert [model.manifest is None for model in manager.models] == [False, False, False, True, False]
    assert prepared.count == 5
    rules = manager.rules
    assert (rules.budget, rules.idle_s, rules.load_wait_s, rules.preloads) == (7 * 1024**2, 3.0, 120.0, False)


def test_an_address_may_hold_an_equals_sign() -> None:
    address = "https://host/rev=1/model.gguf"
    assert (named(address), named(f"a:b={address}")) == (("", address), ("a:b", address))


async def test_a_path_that_exists_may_hold_an_equals_sign(made: Prepare, bundles: Bundles, tmp_path: Path) -> None:
    place = tmp_path / "a=b"
    shutil.copytree(bundles("free"), place)
    models = made(settings_of(place)).make()
    assert models.models[0].settings.engine.bundle == str(place)


async def test_the_budget_is_a_share_of_the_machine(made: Prepare, bundles: Bundles) -> None:
    manager = cast(ModelManager, made(settings_of(bundles("free"), idle_unload_s=5.0)).make())
    assert manager.rules.budget == int(MACHINE_SHARE * usable_memory())


async def test_what_belongs_to_one_model_is_the_firsts(made: Prepare, bundles: Bundles) -> None:
    settings = settings_of(
        bundles("segments"),
        more_models=f"second={bundles('free')}",
        draft=str(bundles("segments int8")),
        lora="poet=folder",
        kv_file="pages",
        threads=3,
        model_name="first",
    )
    first, second = made(settings).make().models
    assert first.names == ("first", "poet") and second.names == ("second",)
    engines = [cast(OpenedEngine, model.loader.open()) for model in (first, second) if model.loader]
    assert [engine.label for engine in engines] == ["first", "second"]  # of their log lines
    opened = [engine.config for engine in engines]
    assert [(config.draft, config.lora, config.kv_file, config.threads) for config in opened] == [
        (str(bundles("segments int8")), "poet=folder", "pages", 3),
        ("", "", "", 3),
    ]
    assert opened[1].bundle == str(bundles("free"))


async def test_a_checkpoint_of_a_folder_is_served_as_the_settings_say(
    made: Prepare, bundles: Bundles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start, "resolve_bundle", lambda *_, **__: bundles("free"))
    (inside := tmp_path / "models").mkdir()
    (inside / "one").symlink_to(bundles.source)
    place = f"one={bundles('fixed')}"
    (model,) = made(Settings(EngineConfig("", devices=place), models_dir=str(inside))).make().models
    assert model.loader is not None and model.manifest is None
    model.loader.estimate()
    opened = cast(OpenedEngine, model.loader.open()).config
    assert (opened.bundle, opened.devices) == (str(bundles("free")), str(bundles("fixed")))
    assert model.settings.engine == opened and opened.cost_cache


async def test_a_model_on_one_device_may_have_a_file_for_prompts(made: Prepare, bundles: Bundles) -> None:
    more = f"embed={bundles('fixed')}"
    options = {"model_name": "chat", "kv_file": "pages", "devices": "chat=cpu,embed=cpu"}
    models = made(settings_of(bundles("free"), more_models=more, **options)).make().models
    engines = [model.settings.engine for model in models]
    assert [(engine.devices, engine.kv_file) for engine in engines] == [("", "pages"), ("", "")]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            {"bundle": "", "models_dir": "{inside}", "devices": "one=gibberish"},
            "devices is npu, .*: gibberish does not",
        ),
        ({"devices": "{free}", "kv_file": "pages"}, "devices is .*: kv_file can be used on one device only"),
        ({"more_models": "a={free},a={fixed}"}, "two models are called a: .* and .*; NAME=SOURCE gives another name"),
        ({"more_models": "a={free}", "lora": "a=folder"}, "two models are called a: the adapter a and "),
        ({"model_name": "a", "bundle": "b={free}"}, "called b and model_name is a: give one of them"),
        ({"bundle": "a={free}", "lora": "a=folder"}, "two models are called a: the adapter a and "),
        ({"more_models": "/nowhere"}, "/nowhere does not exist"),
        ({"bundle": "", "models_dir": "{empty}"}, "holds no model"),
        ({"bundle": "", "models_dir": "{inside}", "model_name": "a"}, "model_name is a, but models of models_dir are "),
        ({"bundle": "", "models_dir": "~nobody-here/x"}, "~nobody-here/x names a home folder that does not exist"),
        ({"bundle": "", "models_dir": "a\0b"}, r"'a\\x00b' holds a NUL character"),
        ({"bundle": "/" + "x" * 300}, "x cannot be read: File name too long"),
        ({"more_models": "a=/" + "x" * 300}, "x cannot be read: File name too long"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(
    made: Prepare, bundles: Bundles, tmp_path: Path, options: dict[str, str], expected: str
) -> None:
    (tmp_path / "empty").mkdir()
    (inside := tmp_path / "inside").mkdir()
    (inside / "one").symlink_to(bundles.source)
    places = {"free": bundles("free"), "fixed": bundles("fixed"), "empty": tmp_path / "empty", "inside": inside}
    given = {key: value.format(**places) for key, value in options.items()}
    bundle = given.pop("bundle", str(bundles("segments")))
    settings = settings_of(Path("x"), **given)
    settings = dataclasses.replace(settings, engine=dataclasses.replace(settings.engine, bundle=bundle))
    with pytest.raises(BundleError, match=expected):
        made(settings)


def test_a_bad_model_is_told_before_its_draft_is_looked_for(made: Prepare, tmp_path: Path) -> None:
    """A draft may be gigabytes away."""
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(BundleError, match=r"manifest\.json cannot be read"):
        made(settings_of(tmp_path, draft="no-such-draft"))
