"""One module whose source is another text than its file's."""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType


class _Loader(SourceFileLoader):
    def __init__(self, name: str, path: str, text: str) -> None:
        super().__init__(name, path)
        self._text = text

    def get_code(self, fullname: str) -> CodeType:
        """Compiled anew: what is on the disk, and its cache, are left alone."""
        return compile(self._text, self.path, "exec", dont_inherit=True)


class _Finder(MetaPathFinder):
    def __init__(self, name: str, path: str, text: str) -> None:
        self._name, self._path, self._text = name, path, text

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Only the one module."""
        if fullname != self._name:
            return None
        return spec_from_file_location(fullname, self._path, loader=_Loader(fullname, self._path, self._text))


def replace_source(path: str, text: str) -> None:
    """Let the module of a file, given from the root of the project, be made of `text` in this process."""
    name = path.removesuffix(".py").replace("/", ".")
    assert name not in sys.modules, f"{name} is imported already"
    sys.meta_path.insert(0, _Finder(name, str(Path(path).resolve()), text))
