"""Seeded damage: what a file, a JSON value or a folder may have become. Everything follows from one `random.Random`."""

import copy
import json
import os
import random
import re
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

DEEP = "@deep@"
RAW = {  # written as they are, since json.dumps would not
    "@nan@": "NaN",
    "@infinity@": "Infinity",
    "@1e999@": "1e999",
    "@digits@": "9" * 5000,
    "@surrogate@": '"\\ud800"',
    DEEP: "[" * 100_000 + "]" * 100_000,
    "@deep object@": '{"a":' * 3_000 + "1" + "}" * 3_000,
}
VALUES: tuple[Any, ...] = (
    *RAW,
    *(None, True, False, 0, 1, -1, 2, 3, 64, -64, 2**31, 2**32, 2**63, -(2**63), 10**30, 1 << 16, 10**9),
    *(0.5, -0.5, 1e-300, 1e300, -0.0, "", "x", "../x", "/etc/passwd", "a\0b", "\n", "..", ".", "C:\\x", "é" * 300),
    *([], {}, [[]], [None], ["x"], [{"name": "default"}], {"a": 1}, "x" * 10_000, "{{ 9**9**9 }}", "ar1_cl1_1_of_1"),
)


def damage_folder(folder: Path, chance: random.Random, main: tuple[str, ...], outside: Path) -> list[str]:
    """Damage one to three files of a folder and say how. main: files that are hit half of the time."""
    told = []
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
        likely = [name for name in names if name in main]
        name = chance.choice(likely if likely and chance.random() < 0.6 else names or ["missing"])
        told.append(f"{name}: {damage_file(folder / name, chance, outside)}")
    return told


def damage_file(path: Path, chance: random.Random, outside: Path) -> str:
    """Damage one file and say how."""
    structured = {".json": damage_json, ".safetensors": damage_header, ".toml": damage_toml, ".jinja": damage_jinja}
    structured[".gguf"] = damage_gguf
    inner = structured.get(path.suffix)
    if inner is not None and path.is_file() and not path.is_symlink() and chance.random() < 0.7:
        try:
            return inner(path, chance)
        except (ValueError, RecursionError, OSError, IndexError, struct.error):
            pass  # damaged before: its bytes are left
    change = chance.choice(CHANGES)
    change(path, chance, outside)
    return change.__name__.strip("_")


def damage_json(path: Path, chance: random.Random) -> str:
    """Change, drop or add one to three values anywhere in a JSON file."""
    value = json.loads(_bytes(path))
    value, told = damaged_value(value, chance)
    path.write_text(json_text(value), encoding="utf-8")
    return told


def damage_header(path: Path, chance: random.Random) -> str:
    """The same for the JSON header of a safetensors file, or a wrong length of it."""
    content = bytes(_bytes(path))
    (size,) = struct.unpack("<Q", content[:8])
    if chance.random() < 0.2:
        length = chance.choice((0, 1, size - 1, size + 1, 2**32, 2**63, 2**64 - 1))
        path.write_bytes(struct.pack("<Q", length) + content[8:])
        return f"header length {length}"
    value, told = damaged_value(json.loads(content[8 : 8 + size]), chance)
    header = json_text(value).encode("utf-8", "surrogatepass")
    path.write_bytes(struct.pack("<Q", len(header)) + header + content[8 + size :])
    return f"header {told}"


NUMBERS = (0, 1, 2, 3, 8, 9, 13, 255, 1 << 16, 1 << 31, (1 << 32) - 1, 1 << 32, 1 << 40, 1 << 63, (1 << 64) - 1)
GGUF_NAMES = re.compile(rb"(?:general|tokenizer|qwen35?|blk)\.[a-z0-9_.]+|token_embd\.weight|output_norm\.weight")


def damage_gguf(path: Path, chance: random.Random) -> str:
    """Another number beside one to three names in the header, such as a length, type, value, size or offset."""
    content, told = _bytes(path), []
    for _ in range(chance.choice((1, 1, 2, 3))):
        found = chance.choice(list(GGUF_NAMES.finditer(content)))
        place = chance.choice((found.start() - 8, *(found.end() + step for step in (0, 4, 4, 8, 12, 20, 24)), 4, 8, 16))
        number, size = chance.choice(NUMBERS), chance.choice((4, 8))
        content[place : place + size] = (number % (1 << 8 * size)).to_bytes(size, "little")
        told.append(f"{number} at {place}, {found[0].decode()} at {found.start()}")
    path.write_bytes(content)
    return "; ".join(told)


def damaged_value(value: Any, chance: random.Random) -> tuple[Any, str]:
    """A JSON value with one to three changes, most of them to something of the same type."""
    told = []
    for _ in range(chance.choice((1, 1, 2, 3))):
        if not isinstance(value, dict | list) or not value:
            return chance.choice(VALUES), "whole value"
        holder, key, where = _place(value, chance)
        how = chance.random()
        if how < 0.75:
            kind = _kind(holder[key])
            alike = [item for item in VALUES if _kind(item) == kind]
            holder[key] = copy.deepcopy(chance.choice(alike if chance.random() < 0.6 and alike else VALUES))
            told.append(f"{where} = {str(holder[key])[:40]!r}")
        elif how < 0.9:
            del holder[key]
            told.append(f"{where} dropped")
        elif isinstance(holder, list):
            holder.extend([copy.deepcopy(holder[key])] * chance.choice((1, 2, 300)))
            told.append(f"{where} repeated")
        else:
            holder[chance.choice(("x", "", "extra", "scale", "type"))] = copy.deepcopy(chance.choice(VALUES))
            told.append(f"beside {where} something new")
    return value, ", ".join(told)


def _place(value: Any, chance: random.Random) -> tuple[Any, Any, str]:
    """A walk from the outside in, so that what stands on top is hit as often as what is there a thousand times."""
    path: list[str] = []
    while True:
        key = chance.choice(list(value) if isinstance(value, dict) else range(len(value)))
        path.append(str(key)[:30])
        if not isinstance(value[key], dict | list) or not value[key] or chance.random() < 0.1:
            return value, key, ".".join(path)
        value = value[key]


def _kind(value: Any) -> str:
    if isinstance(value, str) and value in RAW:
        return "raw"
    return "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value).__name__


def json_text(value: Any) -> str:
    """JSON with the raw marks in place."""
    text = json.dumps(value)
    for mark, raw in RAW.items():
        text = text.replace(json.dumps(mark), raw)
    return text


def damage_toml(path: Path, chance: random.Random) -> str:
    """Another value, key or line in a settings file."""
    lines = _bytes(path).decode("utf-8").splitlines()
    literals = (
        *('""', "''", '"x"', "0", "-1", "1e400", "inf", "nan", "-inf", "9" * 30, "9" * 5000, "0x" + "f" * 6000, "true"),
        *("[]", "{}", "[[1]]", "[" * 3000 + "]" * 3000, "1979-05-27", '"""', '"\\ud800"', '"\\u0000"', "1.5", "=", ""),
        "{a=" * 2000 + "1" + "}" * 2000,
    )
    index = chance.randrange(len(lines))
    key = lines[index].partition("=")[0].strip() or "x"
    line = chance.choice((f"{key} = {chance.choice(literals)}", f"{chance.choice(('x', '[a.b]', '[[c]]'))} = 1", key))
    lines[index : index + chance.choice((0, 1))] = [line]
    path.write_text("\n".join(lines), encoding="utf-8", errors="surrogatepass")
    return f"line {index}: {line[:40]!r}"


SNIPPETS = (
    *("{{", "}}", "{%", "%}", "{#", "#}", "{% if x %}", "{% endfor %}", "{% for a in b %}", "{% raw %}", "{% set x %}"),
    *("{{ 9**9**9 }}", "{{ 'a' * 10**10 }}", "{{ 'a'|center(10**10) }}", "{{ [0]*10**9 }}", "{{ ''|foo }}"),
    *("{% include 'x' %}", "{% extends 'x' %}", "{% import 'x' as y %}", "{% block b %}{% endblock %}", "{{ 1/0 }}"),
    *("{% autoescape 9**9**9 %}{% endautoescape %}", "{% autoescape 'a'|center(10**10) %}{% endautoescape %}"),
    *("{% for a in b %}" * 40 + "{% endfor %}" * 40, "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}"),
    *(
        "{{ " + "not " * 3000 + "1 }}",
        "{{ " + "-" * 3000 + "1 }}",
        "{{ a" + ".b" * 3000 + " }}",
        "{{ 1" + "+1" * 5000 + "}}",
    ),
    *("{% if x %}" * 300 + "{% endif %}" * 300, "{{ " + "9" * 5000 + " }}", "{% generation %}", "{% macro m() %}"),
    *("\ufeff", "\0", "{{ raise_exception('x') }}", "{{ ''.__class__ }}", "{% break %}", "x" * 2_000_000),
)


def damage_jinja(path: Path, chance: random.Random) -> str:
    """Something a template's author did not write, at some place."""
    text = _bytes(path).decode("utf-8")
    snippet = chance.choice(SNIPPETS)
    places = [match.end() for match in re.finditer(r"%}|}}|^", text)] or [0]
    place = chance.choice((chance.choice(places), chance.randrange(len(text) + 1)))
    path.write_text(text[:place] + snippet + text[place:], encoding="utf-8")
    return f"{snippet[:40]!r} at {place}"


Change = Callable[[Path, random.Random, Path], None]


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _bytes(path: Path) -> bytearray:
    """Empty for what is no file any more, or one that was made enormous."""
    is_small = not path.is_symlink() and path.is_file() and path.stat().st_size < 1 << 24
    return bytearray(path.read_bytes()) if is_small else bytearray()


def _write(path: Path, content: bytes | bytearray) -> None:
    """A regular file again, whatever lay there."""
    if path.is_symlink() or not path.is_file():
        _remove(path)
    path.write_bytes(content)


def truncated(path: Path, chance: random.Random, outside: Path) -> None:
    content = _bytes(path)
    _write(path, content[: chance.randrange(len(content) + 1)])


def emptied(path: Path, chance: random.Random, outside: Path) -> None:
    _write(path, b"")


def missing(path: Path, chance: random.Random, outside: Path) -> None:
    _remove(path)


def bits_flipped(path: Path, chance: random.Random, outside: Path) -> None:
    content = _bytes(path) or bytearray(1)
    for _ in range(chance.choice((1, 1, 4, 64))):
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    _write(path, content)


def noise_inside(path: Path, chance: random.Random, outside: Path) -> None:
    content = _bytes(path)
    place = chance.randrange(len(content) + 1)
    content[place : place + chance.choice((0, 8, 100))] = chance.randbytes(chance.choice((1, 16, 500)))
    _write(path, content)


def repeated(path: Path, chance: random.Random, outside: Path) -> None:
    _write(path, bytes(_bytes(path)) * chance.choice((2, 3)))


def in_another_encoding(path: Path, chance: random.Random, outside: Path) -> None:
    text = _bytes(path).decode("utf-8", "replace")
    _write(path, text.encode(chance.choice(("utf-16", "utf-32", "utf-8-sig", "utf-16-be"))))


def as_latin(path: Path, chance: random.Random, outside: Path) -> None:
    _write(path, bytes(_bytes(path)) + b'\n"\xe9\xff"')


def as_pipe(path: Path, chance: random.Random, outside: Path) -> None:
    _remove(path)
    os.mkfifo(path)


def as_folder(path: Path, chance: random.Random, outside: Path) -> None:
    _remove(path)
    path.mkdir()


def as_link_to_device(path: Path, chance: random.Random, outside: Path) -> None:
    _remove(path)
    path.symlink_to(chance.choice(("/dev/zero", "/dev/tty", "/dev/random", "/proc/self/mem")))


def as_link_outside(path: Path, chance: random.Random, outside: Path) -> None:
    outside.write_bytes(bytes(_bytes(path)))
    _remove(path)
    path.symlink_to(outside)


def as_circle_of_links(path: Path, chance: random.Random, outside: Path) -> None:
    _remove(path)
    path.symlink_to(path.name)


def as_broken_link(path: Path, chance: random.Random, outside: Path) -> None:
    _remove(path)
    path.symlink_to("nothing")


def enormous(path: Path, chance: random.Random, outside: Path) -> None:
    # Of a context binary any size is possible; its own reader judges it.
    if path.is_file() and not path.is_symlink() and path.suffix != ".bin":
        os.truncate(path, 1 << 40)


def unreadable(path: Path, chance: random.Random, outside: Path) -> None:
    if path.is_file() and not path.is_symlink():
        chance.choice((path, path.parent)).chmod(0)


CHANGES: tuple[Change, ...] = (
    *(truncated, truncated, emptied, missing, bits_flipped, bits_flipped, bits_flipped, noise_inside, repeated),
    *(in_another_encoding, as_latin, as_pipe, as_pipe, as_folder, as_link_to_device, as_link_outside),
    *(as_circle_of_links, as_broken_link, enormous, unreadable),
)
