"""Quantised bundles and llama.cpp's files in one table: `python -m tools.quality --folder build/quality`.

Every model is compiled in each form and with each --quality; llama.cpp quantises the published ones too. All are scored
by `hexserve eval` against the float definition on text that is held out. Prints the figures and the
bars. A run that was cut off goes on where it was; what a changed compiler or another version of llama.cpp makes is
measured anew. Ends with 0 when all bars hold, 1 when one does not or something failed, 130 after Ctrl-C.
Needs an installed `hexserve[dev]`; llama.cpp's files need a C++ compiler the first time, and half an hour.
"""

import argparse
import sys
from functools import partial
from pathlib import Path

from rich.console import Console

from tools.llama_cpp.programs import BuildFailed
from tools.peers.report import table as table_of_ratios
from tools.peers.setup import PeersFolder
from tools.quality.baselines import BASELINES, WAY, Baselines, made_by
from tools.quality.folder import FORMS, QualityFolder, Subject
from tools.quality.report import EMULATED, QualityRow, bars, table
from tools.real_models.fetch import FetchFailed, RealModels, default_folder

FAILED, INTERRUPTED = 1, 130
DEMO = "demo"
MODELS = ("smollm2", "qwen-coder", DEMO)


def main() -> int:
    """Set up, measure, report."""
    options, console = parse(), Console()
    try:
        rows = measure(options, console)
    except (BuildFailed, FetchFailed) as error:
        console.print(f"error: {error}", markup=False, style="red")
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    found = bars(rows, frozenset(MODELS) - {DEMO})
    caption = f"{min(row.tokens for row in rows)} held-out tokens of each checkpoint, against its float definition."
    report = "\n".join((f"{caption}\n", table(rows), table_of_ratios(found, "ratio of")))
    console.print(report, markup=False, highlight=False, soft_wrap=True)
    (options.folder / "table.md").write_text(report, encoding="utf-8")
    console.print(f"the tables are in {options.folder / 'table.md'}", highlight=False)
    return int(any(bar.holds is False for bar in found))


def parse() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("build/quality"))
    parser.add_argument("--models", default=",".join(MODELS), help="of " + ", ".join(MODELS))
    parser.add_argument("--ways", default="fast,good", help="of --quality")
    on_cpu = ",".join(form for form in FORMS if not form.endswith(EMULATED))
    parser.add_argument("--forms", default=on_cpu, help="of " + ", ".join(FORMS))
    parser.add_argument("--baselines", default=",".join(BASELINES), help="of " + ", ".join(BASELINES))
    parser.add_argument("--peers", type=Path, default=Path("build/peers"), help="where llama.cpp is built")
    parser.add_argument("--tokens", type=int, default=4096, help="held-out tokens that are scored, at most")
    options = parser.parse_args()
    listed = (("--forms", options.forms, FORMS), ("--baselines", options.baselines, BASELINES))
    for option, given, known in (*listed, ("--models", options.models, MODELS)):
        for name in filter(None, given.split(",")):
            if name not in known:
                parser.error(f"{option} {name}: it is one of {', '.join(known)}")
    return options


def measure(options: argparse.Namespace, console: Console) -> list[QualityRow]:
    """Every row."""
    folder = QualityFolder(options.folder, partial(console.print, markup=False, highlight=False), options.tokens)
    peers = PeersFolder(options.peers, console)
    baselines, models = Baselines(folder, peers), RealModels(default_folder())
    rows: list[QualityRow] = []
    for name in filter(None, options.models.split(",")):
        is_demo = name == DEMO
        subject = folder.demo() if is_demo else folder.published(name, models, peers.llama)
        rows += measured(folder, baselines, subject, options)
    return rows


def measured(folder: QualityFolder, made: Baselines, subject: Subject, options: argparse.Namespace) -> list[QualityRow]:
    """One checkpoint in every form and way, then as other software quantises it."""
    rows = []
    for form in options.forms.split(","):
        for way in options.ways.split(","):
            place = (subject.name, form, way)
            rows.append(folder.kept(subject, place, folder.made_here(), partial(folder.row, subject, form, way)))
    for name in filter(None, options.baselines.split(",") if subject.name != DEMO else ()):
        place = (subject.name, BASELINES[name], WAY)
        rows.append(folder.kept(subject, place, made_by(name), partial(made.row, subject, name)))
    return rows


if __name__ == "__main__":
    sys.exit(main())
