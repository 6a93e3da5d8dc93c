"""Drawn scenes, and questions with the one answer that each has."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from types import MappingProxyType

from PIL import Image, ImageDraw, ImageFont

COLOURS: Mapping[str, tuple[int, int, int]] = MappingProxyType(
    {
        "red": (215, 30, 35),
        "green": (25, 150, 55),
        "blue": (35, 70, 210),
        "yellow": (240, 205, 30),
        "black": (15, 15, 15),
        "orange": (245, 130, 20),
    }
)
SHAPES = ("circle", "square", "triangle")
GROUNDS = ((255, 255, 255), (238, 238, 238), (225, 240, 250), (250, 240, 225), (230, 245, 230))
WORDS = (
    "CAT", "DOG", "SUN", "SEA", "CAR", "BUS", "BOX", "CUP", "HAT", "KEY", "MAP", "PEN", "RED", "SKY",
    "TEA", "TOY", "BEE", "COW", "EGG", "ICE", "FISH", "BIRD", "TREE", "MOON", "STAR", "BOOK", "DOOR", "HAND",
    "LAMP", "MILK", "RAIN", "ROAD", "SHIP", "SNOW", "WIND", "YES", "NO", "ON", "OFF", "STOP",
)  # fmt: skip
PLACES = ("on the left", "in the middle", "on the right")
ALONE = (*PLACES, "at the top", "at the bottom")
CENTRES: Mapping[str, tuple[float, float]] = MappingProxyType(
    dict(zip(ALONE, ((0.19, 0.5), (0.5, 0.5), (0.81, 0.5), (0.5, 0.2), (0.5, 0.8)), strict=True))
)


@dataclass(frozen=True, slots=True)
class Item:
    """A shape and where it is."""

    colour: str
    shape: str
    place: str

    @property
    def text(self) -> str:
        """a red circle on the left"""
        return f"{_article(self.colour)} {self.colour} {self.shape} {self.place}"


@dataclass(frozen=True, slots=True)
class Scene:
    """items: shapes, none where something is written."""

    image: Image.Image
    items: tuple[Item, ...] = ()
    written: str = ""


@dataclass(frozen=True, slots=True)
class SceneQuestion:
    """kind: what the exam counts it under."""

    kind: str
    text: str
    answer: str


def draw_scene(rng: Random) -> Scene:
    """Shapes, a number or a word, of any size from 80 to 320 pixels and not always square."""
    side = rng.randint(80, 320)
    size = (side, round(side * rng.uniform(0.8, 1.25)))
    image = Image.new("RGB", size, rng.choice(GROUNDS))
    kind = rng.choices(("shapes", "number", "word"), (3, 1, 1))[0]
    if kind == "shapes":
        return Scene(image, _draw_shapes(rng, image))
    written = str(rng.randrange(10 ** rng.randint(1, 3))) if kind == "number" else rng.choice(WORDS)
    _write(rng, image, written)
    return Scene(image, written=written)


def questions(scene: Scene, rng: Random) -> list[SceneQuestion]:
    """Everything that can be asked of it, in any order."""
    found = list(_of_shapes(scene, rng) if scene.items else _of_writing(scene))
    rng.shuffle(found)
    return found


def _of_shapes(scene: Scene, rng: Random) -> list[SceneQuestion]:
    items = scene.items
    found = [
        SceneQuestion("description", "What do you see?", _sentence(_listed([item.text for item in items]))),
        SceneQuestion("count", "How many shapes are there?", _count(len(items))),
        SceneQuestion("writing", "What does it say?", "There is no text."),
    ]
    for item in items:
        alike = [each for each in items if each.shape == item.shape]
        if len(alike) == 1:
            answer = f"The {item.shape} is {item.colour}."
            found.append(SceneQuestion("colour", f"What color is the {item.shape}?", answer))
        answer = f"{_article(item.colour).title()} {item.colour} {item.shape}."
        found.append(SceneQuestion("shape", f"What is {item.place}?", answer))
    for is_there in (True, False):
        colour, shape = _asked_for(items, rng, is_there)
        text = f"Is there {_article(colour)} {colour} {shape}?"
        found.append(SceneQuestion("presence", text, "Yes." if is_there else "No."))
    return found


def _asked_for(items: tuple[Item, ...], rng: Random, is_there: bool) -> tuple[str, str]:
    there = {(item.colour, item.shape) for item in items}
    others = [(colour, shape) for colour in COLOURS for shape in SHAPES if (colour, shape) not in there]
    return rng.choice(sorted(there) if is_there else others)


def _of_writing(scene: Scene) -> list[SceneQuestion]:
    kind = "number" if scene.written.isdigit() else "word"
    return [
        SceneQuestion(kind, "What does it say?", f"It says {scene.written}."),
        SceneQuestion(kind, "What do you see?", f"The {kind} {scene.written}."),
        SceneQuestion("count", "How many shapes are there?", _count(0)),
    ]


def _count(number: int) -> str:
    return {0: "There are no shapes.", 1: "There is 1 shape."}.get(number, f"There are {number} shapes.")


def _listed(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _article(colour: str) -> str:
    return "an" if colour[0] in "aeiou" else "a"


def _draw_shapes(rng: Random, image: Image.Image) -> tuple[Item, ...]:
    count = rng.randint(1, 3)
    places = (rng.choice(ALONE),) if count == 1 else (PLACES if count == 3 else (PLACES[0], PLACES[2]))
    pencil, (width, height) = ImageDraw.Draw(image), image.size
    items = []
    for place in places:
        item = Item(rng.choice(sorted(COLOURS)), rng.choice(SHAPES), place)
        x, y = (part + rng.uniform(-0.03, 0.03) for part in CENTRES[place])
        reach = rng.uniform(0.1, 0.15)
        tint = tuple(min(255, max(0, part + rng.randint(-12, 12))) for part in COLOURS[item.colour])
        box = ((x - reach) * width, (y - reach) * height, (x + reach) * width, (y + reach) * height)
        DRAWN[item.shape](pencil, box, tint)
        items.append(item)
    return tuple(items)


Box = tuple[float, float, float, float]
Draw = Callable[[ImageDraw.ImageDraw, Box, tuple[int, ...]], None]


def _triangle(pencil: ImageDraw.ImageDraw, box: Box, colour: tuple[int, ...]) -> None:
    left, top, right, bottom = box
    pencil.polygon(((left, bottom), (right, bottom), ((left + right) / 2, top)), fill=colour)


DRAWN: Mapping[str, Draw] = MappingProxyType(
    {
        "circle": lambda pencil, box, colour: pencil.ellipse(box, fill=colour),
        "square": lambda pencil, box, colour: pencil.rectangle(box, fill=colour),
        "triangle": _triangle,
    }
)


def _write(rng: Random, image: Image.Image, text: str) -> None:
    """As large as fits, in the middle or a little beside it."""
    width, height = image.size
    size = min(height * rng.uniform(0.35, 0.55), width * rng.uniform(1.1, 1.3) / max(len(text), 2))
    place = (width * rng.uniform(0.47, 0.53), height * rng.uniform(0.42, 0.58))
    colour = rng.choice([COLOURS[name] for name in ("black", "blue", "red", "green")])
    ImageDraw.Draw(image).text(place, text, fill=colour, font=ImageFont.load_default(size), anchor="mm")
