"""Cached pages over a restart: out of the pools into a file when the worker ends, and back when the next one starts."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Protocol

import numpy as np

from engine.bundle.manifest import MANIFEST_FILE, Manifest
from engine.config import PAGE_COLUMNS, EngineConfig
from engine.errors import BundleError
from engine.files.opening import MANIFEST_BYTES, FileRefused, read_bytes, shown
from engine.graphs.runtime import Runtime, StoresPages
from engine.kv_file.format import KvFile, NotAKvFile, Page, PageFacts
from engine.scheduling.plan import MoveKind, PageMove
from engine.scheduling.scheduler import Scheduler

LARGEST = 65504.0  # of half precision

log = logging.getLogger("hexserve.worker")


class PageStore(Runtime, StoresPages, Protocol):
    """A runtime whose pages can be written to a file."""


@dataclass(frozen=True, slots=True)
class KvRestart:
    """The file of one worker. After `restore`, whatever it says, a worker serves; `save` replaces the file."""

    file: KvFile
    scheduler: Scheduler
    runtime: PageStore

    def restore(self) -> int:
        """Take in the pages of the file; how many there were. BundleError when a file of something else lies there."""
        host = self.scheduler.host_cache
        count = 0
        try:
            for key, content in self.file.read(host.limit or self.scheduler.pools[0].page_count):
                if not _is_sound(content, self.file.facts.cache):
                    raise FileRefused(f"page {count} holds numbers that no cache has")
                self.runtime.put_offloaded(key, content)
                if host.limit:
                    host.put(key)
                else:
                    self._into_pool(key)
                count += 1
        except NotAKvFile as error:
            raise BundleError(f"kv_file {self.file.path} is not used: {error}") from None
        except OSError as error:
            log.warning("kv_file %s: %s; %d pages were taken from it", self.file.path, shown(error), count)
        else:
            log.info("kv_file: %d pages of %d tokens", count, PAGE_COLUMNS)
        return count

    def save(self) -> int:
        """Write what is cached, as much as the file may hold; how many pages. Nothing runs any more."""
        carry_out(self.runtime, self.scheduler.take_moves())
        try:
            count = self.file.write(self._pages())
        except OSError as error:
            log.warning("kv_file %s cannot be written: %s", self.file.path, shown(error))
            return 0
        log.info("kv_file: wrote %d pages of %d tokens", count, PAGE_COLUMNS)
        return count

    def _into_pool(self, key: bytes) -> None:
        """Give the page a place among the cached ones of the first pool."""
        pages = self.scheduler.pools[0]
        (page,) = pages.allocate(1) or ()
        self.runtime.load(0, page_columns(page), key)
        self.runtime.evict(key)
        pages.register(page, key)
        pages.release((page,))

    def _pages(self) -> Iterator[Page]:
        """Pages of known contents, those used last at the end: first what has left the pools, then what is in them."""
        host = self.scheduler.host_cache
        places: dict[bytes, tuple[int, int] | None] = dict.fromkeys(host.keys())
        for index, pages in enumerate(self.scheduler.pools):
            for page, key in pages.keyed():
                places.pop(key, None)
                places[key] = (index, page)
        for key in list(places)[max(0, len(places) - self.file.most_pages) :]:
            place = places[key]
            if place is not None and key not in host:
                self.runtime.offload(place[0], page_columns(place[1]), key)
            yield key, self.runtime.offloaded(key)
            if key not in host:
                self.runtime.evict(key)


def carry_out(runtime: Runtime, moves: tuple[PageMove, ...]) -> None:
    """Move pages to the host cache and back, and forget copies."""
    for move in moves:
        if move.kind is MoveKind.OFFLOAD:
            runtime.offload(move.pool, page_columns(move.page), move.key)
        elif move.kind is MoveKind.LOAD:
            runtime.load(move.pool, page_columns(move.page), move.key)
        else:
            runtime.evict(move.key)


def page_columns(page: int) -> slice:
    """The columns of a page."""
    return slice(page * PAGE_COLUMNS, (page + 1) * PAGE_COLUMNS)


def open_kv_file(
    folder: Path, manifest: Manifest, config: EngineConfig, scheduler: Scheduler, runtime: Runtime
) -> KvRestart | None:
    """The worker's file, None when none is set. BundleError when pages cannot be kept in it."""
    if not config.kv_file:
        return None
    path = Path(config.kv_file).expanduser()
    if not isinstance(runtime, StoresPages):
        raise BundleError("kv_file: this bundle, as it is run here, has no cached pages that could be kept in a file")
    if not config.prefix_cache:
        raise BundleError("kv_file keeps what prefix_cache finds, which is off")
    if not path.parent.is_dir():
        raise BundleError(f"kv_file {path}: its folder does not exist")
    facts = page_facts(folder, manifest)
    return KvRestart(KvFile(path, facts, config.kv_file_mb << 20), scheduler, runtime)


def page_facts(folder: Path, manifest: Manifest) -> PageFacts:
    """What pages of this bundle are: its manifest has the hash of every file, and weights may be loaded in part."""
    loaded = " ".join(graph.name for graph in manifest.graphs)
    identity = blake2b(read_bytes(folder / MANIFEST_FILE, MANIFEST_BYTES) + loaded.encode(), digest_size=16)
    return PageFacts(identity.hexdigest(), manifest.kv_dtype, PAGE_COLUMNS, PAGE_COLUMNS * manifest.kv_bytes_per_token)


def _is_sound(content: bytes, cache: str) -> bool:
    """NaN in a column, or what overflows when it is multiplied, spoils every sequence of a pool, hidden or not."""
    dtype = np.dtype(cache)
    return dtype.kind != "f" or bool((np.abs(np.frombuffer(content, dtype)) <= LARGEST).all())
