"""Which texts a compilation calibrates on: a file's, the shipped models' own corpus, or built-in ones."""

from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from random import Random

from engine.bundle.manifest import TextSpec
from engine.compile.texts.calibration_file import CalibrationFile
from engine.compile.texts.chats import question, spoken
from engine.compile.texts.samples import CONVERSATIONS, DOCUMENTS
from engine.compile.texts.standard_library import standard_library
from engine.demo.corpus.conversation import render
from engine.demo.corpus.mixture import draw
from engine.demo.location import SHIPPED

DEMO_SAMPLES = 5000


def calibration_documents(source: Path, file: Path | None, folder: Path, text: TextSpec) -> Iterable[str]:
    """Whole documents in the form the model will see them, made as they are read; they may be read again.

    source: the checkpoint. file: of `--calibration`. folder: of the template and tokenizer that `text` names.
    CompileError when the file cannot be used, now or when its bad line is reached; BundleError for a bad template.
    """
    if file is not None:
        return CalibrationFile.opened(file, folder, text)
    if source.resolve() in [place() for place in SHIPPED.values()]:
        return _Corpus()
    return _BuiltIn(folder, text)


class _Corpus:
    """What the shipped models were trained on."""

    def __iter__(self) -> Iterator[str]:
        rng = Random("calibration")
        return ("".join(span.text for span in render(draw(rng))) for _ in range(DEMO_SAMPLES))


class _BuiltIn:
    """A few samples of many kinds, then as much English and code as is wanted."""

    def __init__(self, folder: Path, text: TextSpec) -> None:
        self._folder, self._text = folder, text

    def __iter__(self) -> Iterator[str]:
        chats = (question(asked, answered) for asked, answered in CONVERSATIONS)
        return spoken(self._folder, self._text, chain(chats, DOCUMENTS, standard_library()))
