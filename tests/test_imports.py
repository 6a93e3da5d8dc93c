"""Who may import whom. Read from the source with ast: nothing is imported."""

import ast
from pathlib import Path

ROOT = Path(__file__).parent.parent
WEB = {"fastapi", "starlette", "pydantic", "uvicorn", "sse_starlette", "prometheus_client"}
TEXT = {"tokenizers", "jinja2"}
COMPILE = {"onnx", "safetensors", "ml_dtypes", "onnx_ir", "gguf"}
TRAIN = {"torch", "transformers"}
# package -> where its import is allowed; a path is a prefix.
OWNERS = {
    **dict.fromkeys(WEB, ("server/",)),
    **dict.fromkeys(TEXT, ("engine/text/", "engine/compile/", "engine/demo/")),
    **dict.fromkeys(COMPILE, ("engine/compile/", "engine/models/", "engine/demo/")),
    **dict.fromkeys(TRAIN, ("engine/demo/",)),
    "llguidance": ("engine/grammar/",),
    "onnxruntime": ("engine/graphs/onnx_", "engine/compile/"),
}
# folder of the engine -> engine modules it may not import.
FORBIDDEN = {
    "engine/cache/": ("engine.graphs", "engine.scheduling", "engine.text", "engine.client", "engine.compile"),
    "engine/modes/": ("engine.graphs", "engine.scheduling", "engine.cache", "engine.text", "engine.client"),
    "engine/grammar/": ("engine.graphs", "engine.scheduling", "engine.cache", "engine.text", "engine.client", "server"),
    "engine/scheduling/": (
        "engine.graphs",
        "engine.grammar",
        "engine.text",
        "engine.client",
        "engine.worker",
        "engine.compile",
    ),
    "engine/graphs/": ("engine.scheduling", "engine.text", "engine.client", "engine.worker", "engine.compile"),
    "engine/text/": ("engine.graphs", "engine.scheduling", "engine.cache", "engine.client", "engine.compile"),
    "engine/bundle/": ("engine.graphs", "engine.scheduling", "engine.cache", "engine.client", "engine.compile"),
    "engine/compile/": ("engine.scheduling", "engine.cache", "engine.client", "engine.worker", "server"),
    "engine/simulate/": (
        "engine.graphs",
        "engine.grammar",
        "engine.text",
        "engine.client",
        "engine.worker",
        "engine.loop",
        "engine.compile",
    ),
    "engine/": ("server",),
    "server/": ("engine.worker", "engine.loop", "engine.graphs", "engine.scheduling", "engine.sampler"),
}
# What the serving process may import of the grammar side: nothing that compiles.
SERVED_GRAMMAR = {"engine.grammar.asked", "engine.grammar.tool_formats", "engine.grammar.workshop"}
# What only its own command needs.
COMMANDS = {
    "engine.simulate": ("engine/simulate/", "server/simulate/"),
    "server.simulate": ("server/simulate/", "server/cli.py"),
}
PURE = (
    "engine/scheduling/",
    "engine/simulate/",
    "engine/modes/",
    "engine/cache/",
    "engine/sequence.py",
    "engine/plan.py",
    "engine/request.py",
)


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


def sources() -> list[tuple[str, set[str]]]:
    files = [*ROOT.glob("engine/**/*.py"), *ROOT.glob("server/**/*.py")]
    return [(path.relative_to(ROOT).as_posix(), imports(path)) for path in files]


def test_third_party_packages_stay_where_they_belong() -> None:
    wrong = [
        f"{file} imports {name}"
        for file, names in sources()
        for name in names
        if not file.startswith(OWNERS.get(name.split(".")[0], ("",)))
    ]
    assert wrong == []


def test_packages_import_only_what_the_table_allows() -> None:
    wrong = [
        f"{file} imports {name}"
        for file, names in sources()
        for prefix, banned in FORBIDDEN.items()
        if file.startswith(prefix)
        for name in names
        if name.startswith(banned)
    ]
    assert wrong == []


def test_a_command_s_own_modules_are_imported_by_it_alone() -> None:
    wrong = [
        f"{file} imports {name}"
        for file, names in sources()
        for package, owners in COMMANDS.items()
        if not file.startswith(owners)
        for name in names
        if name.startswith(package)
    ]
    assert wrong == []


def test_the_serving_process_compiles_no_grammar() -> None:
    served = [(file, names) for file, names in sources() if file.startswith("server/") or file == "engine/client.py"]
    named = {name for _, names in served for name in names if name.startswith("engine.grammar")}
    assert named <= SERVED_GRAMMAR
    assert "llguidance" not in {name for file in SERVED_GRAMMAR for name in dict(sources())[as_path(file)]}


def as_path(module: str) -> str:
    return module.replace(".", "/") + ".py"


def test_decisions_are_pure() -> None:
    effects = {"numpy", "os", "time", "socket", "threading", "asyncio", "subprocess", "random"}
    wrong = [f"{file}: {names & effects}" for file, names in sources() if file.startswith(PURE) and names & effects]
    assert wrong == []


def test_the_package_itself_loads_nothing() -> None:
    assert dict(sources())["engine/__init__.py"] == set()
    assert dict(sources())["server/__init__.py"] == set()
