"""Write the English text: `python -m engine.demo.english.corpus UNPACKED_DIR -o DIR`.

UNPACKED_DIR has a folder of each package's name (`packages.py`), unpacked by `dpkg-deb -x`.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from engine.demo.english.packages import PACKAGES, Package
from engine.demo.english.readers import paragraphs
from engine.demo.english.split import Document, clean_documents, part_of, shuffled_pieces

PARTS = ("training", "calibration", "held_out")


def package_files(unpacked: Path, packages: Sequence[Package]) -> Iterator[tuple[str, list[str]]]:
    """The name and paragraphs of every document of the packages, in the order of their names."""
    for package in packages:
        folder = unpacked / package.name
        found = {path for pattern in package.files for path in folder.glob(pattern) if path.is_file()}
        if not found:
            raise FileNotFoundError(
                f"no document of {package.name} lies under {folder}: is the package unpacked there?"
            )
        for path in sorted(found):
            if not path.is_symlink():
                yield f"{package.name}/{path.relative_to(folder)}", paragraphs(path)


def write_parts(documents: Iterator[Document], folder: Path) -> dict[str, int]:
    """Write each part as PART.jsonl; the characters of each.

    What is not trained on is read from its beginning, as far as is asked for: it comes in shuffled pieces, and also as
    PART.txt.
    """
    folder.mkdir(parents=True, exist_ok=True)
    parts: dict[str, list[Document]] = {part: [] for part in PARTS}
    for document in documents:
        parts[part_of(document.name)].append(document)
    for part in PARTS[1:]:
        parts[part] = shuffled_pieces(parts[part])
    for part, members in parts.items():
        lines = (json.dumps({"name": each.name, "text": each.text}) + "\n" for each in members)
        (folder / f"{part}.jsonl").write_text("".join(lines), encoding="utf-8")
        if part != "training":
            (folder / f"{part}.txt").write_text("\n\n".join(each.text for each in members), encoding="utf-8")
    return {part: sum(len(each.text) for each in members) for part, members in parts.items()}


def read_texts(path: Path) -> list[str]:
    """The texts of a part's `.jsonl` file."""
    return [json.loads(line)["text"] for line in path.read_text(encoding="utf-8").splitlines()]


def main() -> int:
    """Read the packages and write the parts."""
    parser = argparse.ArgumentParser(description="Write the English text that Debian packages hold.")
    parser.add_argument("unpacked", type=Path, metavar="UNPACKED_DIR")
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    for part, size in write_parts(clean_documents(package_files(options.unpacked, PACKAGES)), options.output).items():
        print(f"{part}: {size / 1e6:.2f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
