"""Photographs decoded once, into one file of uint8 that all ranks of a node map: they share it in the page cache.

Beside the data set in `.multicard/`, or in `dataset.cache_dir`; with `dataset.cache=ram` in shared memory, where its
name is removed as soon as all ranks have it, so that it ends with them.

| file | what |
|---|---|
| <part>_<size>px.json | what the images are of, written last: without it there is no cache |
| <part>_<size>px-<digits>.u8 | (N, S, S, 3) uint8, nothing else |
"""

import fcntl
import hashlib
import os
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from multicard.config.keys import require
from multicard.config.vision import CacheMode, ImagesConfig
from multicard.machine.environment import cores
from multicard.measure import timing
from multicard.records import run_folder
from multicard.vision.data import splits
from multicard.vision.data.splits import Data, Split

VERSION = 1  # of what is in the file: another one is built anew
SHARED_MEMORY = Path("/dev/shm")
CHUNK = 256  # images that are decoded ahead of the one that is written


def cached(content: Data, config: ImagesConfig) -> Data:
    """The same data set with its images decoded; `facts` and `shared` say from where.

    Raises:
        ValueError: naming a broken image, or why the cache cannot be written.
    """
    parts, facts, shared = [], {}, []
    for name, split in (("train", content.train), ("test", content.test)):
        limit = config.train_limit if name == "train" else config.test_limit
        which = f"_{limit}-{_digits(str(split.images))}" if limit else ""  # follows from the run's seed
        part = _Part(split, f"{name}_{config.image_size}px{which}", config)
        found, entry = part.open()
        parts.append(found)
        facts[name] = entry
        shared += part.files() if config.cache is CacheMode.ram else []
    train, test = parts
    return Data(train, test, content.classes, {"cache": config.cache.value, "decoded": facts}, shared)


def folder(config: ImagesConfig) -> Path:
    """Where the cache is."""
    if config.cache is CacheMode.ram:
        return SHARED_MEMORY / f"multicard-{os.getuid()}"
    return Path(config.cache_dir or Path(str(config.root)) / ".multicard").expanduser()


def check(config: ImagesConfig) -> None:
    """See that the cache is there or can be written.

    Raises:
        ValueError: with the key and the remedy.
    """
    where = folder(config)
    existing = next(path for path in (where, *where.parents) if path.exists())
    fits = existing.is_dir() and (os.access(existing, os.W_OK) or any(where.glob("*.json")))
    key = f"dataset.cache_dir={config.cache_dir}" if config.cache_dir else f"dataset.root={config.root}"
    remedy = "set dataset.cache_dir to a folder that can be written, or dataset.cache=ram or none"
    require(fits, f"{key}: the decoded images cannot be kept in {where}; {remedy}")


class _Part:
    """The cache of one split."""

    def __init__(self, split: Split, name: str, config: ImagesConfig) -> None:
        assert isinstance(split.images, list)
        self.paths, self.labels, self.config, self.folder = split.images, split.labels, config, folder(config)
        self.given = Path(str(config.root)).expanduser()
        root = self.given.resolve()
        if self.folder != self.given / ".multicard":  # that other data sets may use too
            name = f"{root.name}-{_digits(str(root))}_{name}"
        self.name = name
        self.entry = self.folder / f"{name}.json"

    def open(self) -> tuple[Split, dict[str, Any]]:
        """The decoded split, which is built where it is not there. One process builds, the others wait for it."""
        of = self._fingerprint()
        built_s = None
        found = self._read(of)
        if found is None:
            with self._lock():
                found = self._read(of)
                if found is None:
                    started_s = timing.clock_s()
                    self._build(of)
                    built_s = timing.clock_s() - started_s
                    found = self._read(of)
                    assert found is not None, f"{self.entry} was just written"
        images, entry = found
        skipped = entry["skipped"]
        if skipped and not self.config.skip_broken:
            raise ValueError(f"{skipped[0]['path']}: {skipped[0]['why']}; {splits.BROKEN}")
        whole = np.ones(len(self.paths), dtype=bool)
        whole[[one["index"] for one in skipped]] = False
        names = [one["path"] for one in skipped]
        facts = {"file": str(self.folder / entry["file"]), "bytes": entry["bytes"], "built_s": built_s}
        return Split(images, self.labels[whole]), facts | {"skipped": len(names), "skipped_paths": names[:20]}

    def files(self) -> list[Path]:
        return [self.entry, *self.folder.glob(f"{self.name}-*.u8"), self.folder / f".{self.name}.lock"]

    def _fingerprint(self) -> str:
        """What the cache is of: the files' names, sizes and times, and the size they are brought to."""
        digest = hashlib.sha256(f"{VERSION} {self.config.image_size}".encode())
        for path in self.paths:
            found = path.stat()
            digest.update(f"\n{path.relative_to(self.given)} {found.st_size} {found.st_mtime_ns}".encode())
        return digest.hexdigest()[:16]

    def _read(self, of: str) -> tuple[np.ndarray, dict[str, Any]] | None:
        """The images and the entry of the cache; None where it is absent, of something else, or damaged."""
        entry = run_folder.read_json(self.entry)
        if entry is None or entry["of"] != of:
            return None
        path, shape = self.folder / entry["file"], tuple(entry["shape"])
        try:
            found = path.stat()
            if found.st_size != entry["bytes"]:
                return None
            # written to, or copied, since it was built: look into it once more
            if found.st_mtime_ns != entry["mtime_ns"] and _crc(path) != entry["crc32"]:
                return None
            return np.memmap(path, np.uint8, "c", shape=shape), entry  # c: torch wants to be able to write
        except FileNotFoundError:  # another process has just built a newer one
            return None

    @contextmanager
    def _lock(self) -> Iterator[None]:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            file = (self.folder / f".{self.name}.lock").open("w")
        except OSError as error:
            raise ValueError(self._cannot_write(error)) from None
        with file:
            fcntl.flock(file, fcntl.LOCK_EX)  # the kernel gives it back whatever ends this process
            yield

    def _cannot_write(self, error: OSError) -> str:
        remedy = "free some space, set dataset.cache_dir to another folder, or dataset.cache=none"
        return f"dataset.cache={self.config.cache.value}: cannot write to {self.folder} ({error.strerror}); {remedy}"

    def _build(self, of: str) -> None:
        path = self.folder / f"{self.name}-{of[:8]}.u8"
        for left in self.folder.glob(f".{self.name}-*.u8.*"):  # of a builder that was killed: we hold the lock
            left.unlink()
        skipped: list[dict[str, Any]] = []
        crc = written = 0
        try:
            with run_folder.replacing(path) as file:
                for index, image in enumerate(self._decoded()):
                    if isinstance(image, ValueError):
                        skipped.append({"index": index, "path": str(self.paths[index]), "why": str(image)})
                        continue
                    content = image.tobytes()
                    file.write(content)
                    crc, written = zlib.crc32(content, crc), written + 1
            require(written > 0, f"dataset.root={self.config.root}: no image of {self.name} can be decoded")
            size = self.config.image_size
            found = path.stat()
            entry = {"of": of, "file": path.name, "shape": [written, size, size, 3], "bytes": found.st_size}
            entry |= {"mtime_ns": found.st_mtime_ns, "crc32": crc, "skipped": skipped}
            run_folder.write_json(self.entry, entry)
        except OSError as error:
            raise ValueError(self._cannot_write(error)) from None
        for older in set(self.folder.glob(f"{self.name}-*.u8")) - {path}:
            older.unlink(missing_ok=True)

    def _decoded(self) -> Iterator[np.ndarray | ValueError]:
        """All images in order, decoded by as many threads as there are cores.

        Raises:
            ValueError: at a broken one, unless they are to be skipped.
        """

        def decode(path: Path) -> np.ndarray | ValueError:
            try:
                return splits.decode(path, self.config.image_size)
            except ValueError as error:
                if self.config.skip_broken:
                    return error
                raise

        with ThreadPoolExecutor(cores()) as pool:
            for start in range(0, len(self.paths), CHUNK):
                yield from pool.map(decode, self.paths[start : start + CHUNK])


def _digits(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:6]


def _crc(path: Path) -> int:
    crc = 0
    with path.open("rb") as file:
        while piece := file.read(1 << 24):
            crc = zlib.crc32(piece, crc)
    return crc


def forget(content: Data) -> None:
    """Remove the name of a cache in shared memory, once all ranks of this node have it: it ends with them."""
    for path in content.shared:
        path.unlink(missing_ok=True)
    if content.shared:
        run_folder.remove_empty(content.shared[0].parent)
