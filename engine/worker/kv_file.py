"""Cached blocks leave a worker in files: over a restart, or to another worker of the same model.
The file of blocks: a head that says whose they are, then records of one size, each with a digest of its own. Magic (8
bytes), length of the head (4, little-endian), head (JSON), then for each block its key (16), the digest (16) of key and
content, and the content. Blocks that were used last stand last; the file's size says how many there are.
The file of a sequence that leaves: keys of its full blocks, uint8 [blocks, 16], then what `BlockValues` reads of them,
[blocks, 2, L, K, n, D]; two arrays in NumPy's format. The other worker finds the blocks as it finds any prefix that it
has computed itself."""

import logging
import os
import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from io import BufferedReader
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine.bundle.manifest import MANIFEST_FILE, Manifest
from engine.config import BLOCK_SIZE, EngineConfig
from engine.core.kv_blocks import BlockKey
from engine.core.scheduler import Scheduler
from engine.errors import BundleError
from engine.files import MANIFEST_BYTES, FileRefused, expanded, one_line, open_regular, put_in_place, read_bytes, shown
from engine.runtime.block_values import BlockValues, why_not
from engine.runtime.interface import Runtime, block_slots
from engine.sources.publish import remove_stale


@dataclass(frozen=True, slots=True)
class CachedBlocks:
    """Of one worker. Nothing else may run meanwhile."""

    scheduler: Scheduler
    runtime: Runtime

    def content(self, block: int, key: BlockKey) -> bytes:
        """What lies in a block of the pool, or in host memory under its key."""
        if key in self.scheduler.host_cache:
            return self.runtime.blocks.offloaded(key)
        self.runtime.blocks.offload(block_slots(block), key)
        content = self.runtime.blocks.offloaded(key)
        self.runtime.blocks.evict(key)
        return content

    def put(self, key: BlockKey, content: bytes) -> bool:
        """Let the content be found under its key; whether there is room for it."""
        self.runtime.blocks.put_offloaded(key, content)
        host = self.scheduler.host_cache
        if host.limit:
            for evicted in host.put(key):
                self.runtime.blocks.evict(evicted)
            return True
        blocks = self.scheduler.blocks
        fresh = blocks.allocate(1)
        try:
            if fresh is not None:
                self.runtime.blocks.load(block_slots(fresh[0]), key)
                blocks.register(fresh[0], key)
        finally:
            blocks.release(fresh or [])
            self.runtime.blocks.evict(key)
        return fresh is not None

    def is_known(self, key: BlockKey) -> bool:
        return key in self.scheduler.host_cache or bool(self.scheduler.blocks.lookup((key,)))


log = logging.getLogger("hexserve.worker")


class SequenceMover:
    """Of one worker, between two steps."""

    def __init__(self, folder: Path, manifest: Manifest, scheduler: Scheduler, runtime: Runtime) -> None:
        self._values = BlockValues(folder, manifest)
        self._scheduler, self._runtime = scheduler, runtime
        self._blocks = CachedBlocks(scheduler, runtime)

    def give(self, sequence_id: str, path: Path) -> int:
        """Write the full blocks of a sequence that runs; how many. Without them it will be computed again."""
        found = self._scheduler.computed_blocks(sequence_id)
        if not found:
            return 0
        self._runtime.blocks.move(self._scheduler.take_moves())
        contents = [self._blocks.content(block, key) for block, key in found]
        values: NDArray[np.generic] = np.stack([self._values.read(content) for content in contents])
        try:
            with path.open("wb") as stream:
                np.save(stream, np.frombuffer(b"".join(key for _, key in found), np.uint8).reshape(-1, KEY_BYTES))
                np.save(stream, values)
        except OSError as error:
            log.warning("what was computed cannot be handed over: %s", error)
            path.unlink(missing_ok=True)
            return 0
        return len(found)

    def take(self, path: Path) -> int:
        """Take in the blocks of a file and remove it; how many are new. What is missing will be computed."""
        taken = 0
        try:
            with path.open("rb") as stream:
                keys, values = (np.load(stream, allow_pickle=False) for _ in range(2))
            self._runtime.blocks.move(self._scheduler.take_moves())
            # The beginning of a prompt is what the rest is found by: it comes last, to be kept longest.
            for key, pair in reversed(list(zip(keys, values, strict=True))):
                if not self._blocks.is_known(key.tobytes()):
                    if not self._blocks.put(key.tobytes(), self._values.write(pair)):
                        break
                    taken += 1
        except (OSError, ValueError, EOFError) as error:
            log.warning("what another device computed cannot be read: %s", error)
        path.unlink(missing_ok=True)
        return taken


def reason_to_keep(manifest: Manifest, scheduler: object, runtime: Runtime, prefix_cache: bool) -> str:
    """Why sequences of a bundle cannot be handed over as it is run here; "" where they can."""
    if not isinstance(scheduler, Scheduler) or not runtime.stores_blocks:
        return f"{manifest.name} has no cached blocks that could be handed over"
    if not prefix_cache:
        return "prefix_cache, which finds what is handed over, is off"
    reason = why_not(manifest)
    return "" if reason is None else f"{manifest.name} {reason}"


MAGIC = b"HEXSKV1\n"
_HEAD_BYTES = struct.Struct("<I")
MOST_HEAD_BYTES = 4096
KEY_BYTES = DIGEST_BYTES = 16
Page = tuple[bytes, bytes]  # key and content


class BlockFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whose blocks a file holds. identity: of bundle and weights; cache: the type of keys and values.
    block_size: tokens of a block; block_bytes: size of one block's keys and values over all layers."""

    identity: str
    cache: str
    block_size: int
    block_bytes: int

    @property
    def record_bytes(self) -> int:
        return KEY_BYTES + DIGEST_BYTES + self.block_bytes


class NotAKvFile(FileRefused):
    """What lies there was not written by this program, so it is not replaced either."""


@dataclass(frozen=True, slots=True)
class KvFile:
    """A place for blocks of at most `most_bytes`; `facts` say what they must be to be of use."""

    path: Path
    facts: BlockFacts
    most_bytes: int

    @property
    def most_blocks(self) -> int:
        return max(0, self.most_bytes) // self.facts.record_bytes

    def read(self, most: int) -> Iterator[Page]:
        """The last `most` blocks; none when there is no file. One block is in memory at a time.
        Raises NotAKvFile, FileRefused for one of another bundle or a damaged one (blocks before are sound), OSError."""
        try:
            stream = open_regular(self.path)
        except FileNotFoundError:
            return
        except FileRefused as error:
            raise NotAKvFile(str(error)) from None
        with stream:
            start = self._check_head(stream)
            size, each = os.fstat(stream.fileno()).st_size - start, self.facts.record_bytes
            if size % each:
                raise FileRefused(f"it is damaged: {size} bytes are no whole number of blocks of {each}")
            first = max(0, size // each - most)
            stream.seek(start + first * each)
            for number in range(first, size // each):
                yield _block(stream.read(each), number, each)

    def write(self, blocks: Iterable[Page]) -> int:
        """Write blocks, most recently used last, and put the file in place whole; how many there are. OSError.
        Only the user may read the file: what was asked can be told from keys and values."""
        draft = self.path.with_name(f"{self.path.name}.partial-{os.getpid()}")
        remove_stale(self.path)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        count = 0
        try:
            with os.fdopen(os.open(draft, flags, 0o600), "wb") as stream:
                head = msgspec.json.encode(self.facts)
                stream.write(MAGIC + _HEAD_BYTES.pack(len(head)) + head)
                for count, (key, content) in enumerate(blocks, 1):  # noqa: B007
                    stream.write(key + _digest(key, content) + content)
            put_in_place(draft, self.path)
        finally:
            with suppress(FileNotFoundError):
                draft.unlink()
        return count

    def _check_head(self, stream: BufferedReader) -> int:
        if stream.read(len(MAGIC)) != MAGIC:
            raise NotAKvFile("it is no file of cached blocks")
        packed = stream.read(_HEAD_BYTES.size)
        length = _HEAD_BYTES.unpack(packed)[0] if len(packed) == _HEAD_BYTES.size else 0
        if not 0 < length <= MOST_HEAD_BYTES:
            raise FileRefused(f"it is damaged: its head cannot have {length} bytes")
        try:
            found = msgspec.json.decode(stream.read(length), type=BlockFacts)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise FileRefused(f"it is damaged: {one_line(error)}") from None
        if found != self.facts:
            raise FileRefused("it was written for another bundle, other weights or another type of cache")
        return len(MAGIC) + _HEAD_BYTES.size + length


def _block(record: bytes, number: int, size: int) -> Page:
    key, content = record[:KEY_BYTES], record[KEY_BYTES + DIGEST_BYTES :]
    if len(record) != size or record[KEY_BYTES : KEY_BYTES + DIGEST_BYTES] != _digest(key, content):
        raise FileRefused(f"it is damaged: block {number} is not what was written")
    return key, content


def _digest(key: bytes, content: bytes) -> bytes:
    return blake2b(content, key=key, digest_size=DIGEST_BYTES).digest()


LARGEST = 65504.0  # of half precision


@dataclass(frozen=True, slots=True)
class KvRestart:
    """The file of one worker. After `restore`, whatever it says, a worker serves; `save` replaces the file."""

    file: KvFile
    cached: CachedBlocks

    def restore(self) -> int:
        """Take in the blocks of the file; how many there were. BundleError when a file of something else lies there."""
        count, scheduler = 0, self.cached.scheduler
        try:
            for key, content in self.file.read(scheduler.host_cache.limit or scheduler.blocks.block_count):
                if not _is_sound(content, self.file.facts.cache):
                    raise FileRefused(f"block {count} holds numbers that no cache has")
                count += self.cached.put(key, content)
        except NotAKvFile as error:
            raise BundleError(f"kv_file {self.file.path} is not used: {error}") from None
        except OSError as error:
            log.warning("kv_file %s: %s; %d blocks were taken from it", self.file.path, shown(error), count)
        else:
            log.info("kv_file: %d blocks of %d tokens", count, BLOCK_SIZE)
        return count

    def save(self) -> int:
        """Write what is cached, as much as the file may hold; how many blocks. Nothing runs any more."""
        self.cached.runtime.blocks.move(self.cached.scheduler.take_moves())
        try:
            count = self.file.write(self._blocks())
        except OSError as error:
            log.warning("kv_file %s cannot be written: %s", self.file.path, shown(error))
            return 0
        log.info("kv_file: wrote %d blocks of %d tokens", count, BLOCK_SIZE)
        return count

    def _blocks(self) -> Iterator[Page]:
        """Blocks of known contents, those used last at the end: first what has left the pool, then what is in it."""
        places = dict.fromkeys(self.cached.scheduler.host_cache, 0)
        for block, key in self.cached.scheduler.blocks.keyed():
            places.pop(key, None)
            places[key] = block
        for key in list(places)[max(0, len(places) - self.file.most_blocks) :]:
            yield key, self.cached.content(places[key], key)


def open_kv_file(
    folder: Path, manifest: Manifest, config: EngineConfig, scheduler: Scheduler, runtime: Runtime
) -> KvRestart | None:
    """The worker's file, None when none is set. BundleError when blocks cannot be kept in it."""
    if not config.kv_file:
        return None
    path = expanded(config.kv_file)
    if not runtime.stores_blocks:
        raise BundleError("kv_file: this bundle, as it is run here, has no cached blocks that could be kept in a file")
    if not config.prefix_cache:
        raise BundleError("kv_file keeps what prefix_cache finds, which is off")
    if scheduler.rules.window_blocks:
        raise BundleError(f"kv_file: layers of {manifest.name} have windows, behind which no keys and values are kept")
    if not path.parent.is_dir():
        raise BundleError(f"kv_file {path}: its folder does not exist")
    file = KvFile(path, block_facts(folder, manifest), config.kv_file_mb << 20)
    return KvRestart(file, CachedBlocks(scheduler, runtime))


def block_facts(folder: Path, manifest: Manifest) -> BlockFacts:
    """What blocks of this bundle are: its manifest has the hash of every file, and weights may be loaded in part."""
    loaded = " ".join(graph.name for graph in manifest.graphs)
    identity = blake2b(read_bytes(folder / MANIFEST_FILE, MANIFEST_BYTES) + loaded.encode(), digest_size=16)
    return BlockFacts(identity.hexdigest(), manifest.kv_dtype, BLOCK_SIZE, BLOCK_SIZE * manifest.kv_bytes_per_token)


def _is_sound(content: bytes, cache: str) -> bool:
    """NaN in a column, or what overflows when it is multiplied, spoils every sequence of a pool, hidden or not."""
    dtype = np.dtype(cache)
    return dtype.kind != "f" or bool((np.abs(np.frombuffer(content, dtype)) <= LARGEST).all())
