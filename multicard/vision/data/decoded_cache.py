"""Decode photographs once into one uint8 file, which all ranks of a node map into memory.

The ranks share the file in the page cache. It is in `.multicard/` of the data set, or in
`dataset.cache_dir`:

| file | content |
|---|---|
| <split>_<size>px.json | what the images were made from; its presence marks a complete cache |
| <split>_<size>px-<digits>.u8 | the images (N, S, S, 3), uint8 |
"""

import hashlib
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from multicard.config.job import count
from multicard.config.vision_data import ImagesConfig
from multicard.machine.environment import cores
from multicard.measure import timing
from multicard.messages import Refusal
from multicard.records import run_folder
from multicard.records.json_values import as_text
from multicard.vision.data import decoding
from multicard.vision.data.sample_sources import data_folder
from multicard.vision.data.splits import DataSplits, Split
from multicard.vision.data.stored_images import EncodedImage, StoredImage, files_of, path_of

VERSION = 1  # The version of the format. A cache with another version is rebuilt.
CHUNK = 256  # This many images are decoded ahead of the one that is written.


def decode_into_cache(data: DataSplits, config: ImagesConfig) -> DataSplits:
    """Return the same data set with decoded images. `facts` say where they are stored.

    Raises:
        Refusal: An image is broken, or the cache cannot be written.
    """
    splits = {}
    facts = {}
    for name, split, limit in (
        ("train", data.train, config.train_limit),
        ("test", data.test, config.test_limit),
    ):
        share = limit or config.split
        # The run's seed decides which images are used, so they are part of the cache's name.
        part = f"_{share}-{_hash_digits(str(split.images))}" if share else ""
        splits[name], facts[name] = SplitCache(
            split, f"{name}_{config.image_size}px{part}", config
        ).open()
        _require_all_classes(name, split, splits[name], data.class_names, config)
    return replace(
        data, **splits, facts=data.facts | {"cache": str(config.cache), "decoded": facts}
    )


def _require_all_classes(
    name: str, split: Split, decoded: Split, class_names: Sequence[str], config: ImagesConfig
) -> None:
    """Refuse to leave a class without an image because all of its images are broken.

    Args:
        name: "train" or "test".
        split: The images to decode.
        decoded: Those of them that were decoded.
    """
    lost_classes: list[int] = sorted({*split.labels.tolist()} - {*decoded.labels.tolist()})
    if not lost_classes:
        return
    lost_names = [class_names[label] for label in lost_classes]
    images = int((split.labels == lost_classes[0]).sum())
    more = f", nor those of {', '.join(lost_names[1:5])}" if lost_names[1:] else ""
    raise Refusal(
        "cache.class-broken",
        f"dataset.root={config.root}: none of the {count(images, 'image')} of {lost_names[0]} to"
        f" {name} on can be decoded{more}, so dataset.skip_broken=true would leave this class"
        " without one. Replace them, or remove the class",
        key="dataset.root",
        split=name,
        classes=lost_names[:20],
        images=images,
    )


def cache_folder(config: ImagesConfig) -> Path:
    """Return the folder of the cache."""
    return Path(
        config.cache_dir or data_folder(Path(str(config.root)).expanduser()) / ".multicard"
    ).expanduser()


def check_cache_writable(config: ImagesConfig) -> None:
    """Refuse a cache that neither exists nor can be written."""
    path = cache_folder(config)
    existing = next(parent for parent in (path, *path.parents) if parent.exists())
    is_usable = existing.is_dir() and (os.access(existing, os.W_OK) or any(path.glob("*.json")))
    if not is_usable:
        key = "dataset.cache_dir" if config.cache_dir else "dataset.root"
        raise Refusal(
            "cache.unwritable",
            f"{key}={config.cache_dir or config.root}: the decoded images cannot be stored in"
            f" {path}; choose a writable folder, `dataset.cache_dir=FOLDER`, or use"
            " `dataset.cache=none`",
            key=key,
            folder=str(path),
        )


class SplitCache:
    """The cache of one split."""

    def __init__(self, split: Split, name: str, config: ImagesConfig) -> None:
        assert isinstance(split.images, list)
        self.images = split.images
        self.labels = split.labels
        self.config = config
        self.folder = cache_folder(config)
        self.root = Path(str(config.root)).expanduser()
        if self.folder != self.root / ".multicard":  # Other data sets may use this folder too.
            name = (
                f"{as_text(self.root.resolve().name)}-"
                f"{_hash_digits(str(self.root.resolve()))}_{name}"
            )
        self.name = name
        self.entry_file = self.folder / f"{name}.json"

    def open(self) -> tuple[Split, dict[str, Any]]:
        """Return the decoded split, and facts for the record.

        If the cache is absent, one process builds it and the others wait.
        """
        fingerprint = self._fingerprint()
        built_s = None
        mapped = self._map(fingerprint)
        if mapped is None:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                # The kernel releases this lock when the process ends.
                with FileLock(self.folder / f".{self.name}.lock"):
                    mapped = self._map(fingerprint)
                    if mapped is None:
                        started_s = timing.clock_s()
                        self._build(fingerprint)
                        built_s = timing.clock_s() - started_s
                        mapped = self._map(fingerprint)
            except OSError as error:
                raise Refusal(
                    "cache.not-written",
                    f"dataset.cache={self.config.cache}: cannot write to"
                    f" {self.folder} ({error.strerror}); free some space, choose another folder,"
                    " `dataset.cache_dir=FOLDER`, or use `dataset.cache=none`",
                    key="dataset.cache",
                    folder=str(self.folder),
                    why=error.strerror,
                ) from None
            assert mapped is not None, f"{self.entry_file} was just written"
        images, entry = mapped
        skipped = entry["skipped"]
        if skipped and not self.config.skip_broken:
            why = skipped[0]["why"]
            more = (
                f" ({len(skipped) - 1:,} more of {len(self.images):,} cannot be decoded either)"
                if len(skipped) > 1
                else ""
            )
            raise Refusal(
                "cache.broken",
                f"{why}{more}",
                image=skipped[0]["path"],
                broken=len(skipped),
                images=len(self.images),
            )
        is_decoded = np.ones(len(self.images), dtype=bool)
        is_decoded[[image["index"] for image in skipped]] = False
        facts = {
            "file": str(self.folder / entry["file"]),
            "bytes": entry["bytes"],
            "built_s": built_s,
            "skipped": len(skipped),
            "skipped_paths": [image["path"] for image in skipped[:20]],
        }
        return Split(images, self.labels[is_decoded]), facts

    def _fingerprint(self) -> str:
        """Return 16 hex digits that depend on the names, sizes and times of the images.

        They also depend on how the images are decoded.
        """
        digest = hashlib.sha256(f"{VERSION} {decoding.VERSION} {self.config.image_size}".encode())
        root = data_folder(self.root)
        for image in self.images:
            path = path_of(image)
            row = ""
            if isinstance(image, StoredImage):
                row = f"#{image.index}{image.file.column}"
            status = path.stat()
            # File names may hold bytes that are not UTF-8.
            name = os.path.relpath(path, root).encode(errors="surrogateescape")
            digest.update(
                b"\n%b%b %d %d" % (name, row.encode(), status.st_size, status.st_mtime_ns)
            )
        return digest.hexdigest()[:16]

    def _map(self, fingerprint: str) -> tuple[np.ndarray, dict[str, Any]] | None:
        """Return the images and their entry, or None if the cache is absent or out of date."""
        entry = run_folder.read_json(self.entry_file)
        if entry is None or entry.get("of") != fingerprint:
            return None
        path = self.folder / entry["file"]
        try:
            status = path.stat()
            if (status.st_size, status.st_mtime_ns) != (entry["bytes"], entry["mtime_ns"]):
                return None
            # Mode c (copy on write), because torch warns of memory that is not writable.
            return np.memmap(path, np.uint8, "c", shape=tuple(entry["shape"])), entry
        except FileNotFoundError:  # Another process has just built a newer cache.
            return None

    def _build(self, fingerprint: str) -> None:
        """Decode all images into a file, then write the entry. The caller holds the lock."""
        path = self.folder / f"{self.name}-{fingerprint[:8]}.u8"
        for partial in self.folder.glob(f".{self.name}-*.u8.*"):  # Left by a killed process.
            partial.unlink()
        skipped: list[dict[str, Any]] = []
        first: Refusal | None = None
        with run_folder.replacing(path) as file:
            for index, image in enumerate(self._decoded()):
                if isinstance(image, Refusal):
                    first = first or image
                    why = str(image.message.sentence)  # The entry needs plain text.
                    skipped.append({"index": index, "path": str(self.images[index]), "why": why})
                else:
                    file.write(image.tobytes())
        written = len(self.images) - len(skipped)
        size = self.config.image_size
        status = path.stat()
        if not written:
            # The refusal of one image suggests leaving such images out, but none would remain.
            why = f"; {skipped[0]['path']}: {first.facts['why'] or 'broken'}" if first else ""
            raise Refusal(
                "cache.nothing-decoded",
                f"dataset.root={self.config.root}: no image of {self.name} can be decoded{why};"
                " replace the images",
                key="dataset.root",
                split=self.name,
                image=skipped[0]["path"] if skipped else None,
            )
        entry = {
            "of": fingerprint,
            "file": path.name,
            "shape": [written, size, size, 3],
            "bytes": status.st_size,
        }
        run_folder.write_json(
            self.entry_file, entry | {"mtime_ns": status.st_mtime_ns, "skipped": skipped}
        )
        for older in set(self.folder.glob(f"{self.name}-*.u8")) - {path}:
            older.unlink(missing_ok=True)

    def _decoded(self) -> Iterator[np.ndarray | Refusal]:
        """Yield all images in order, decoded by one thread per core, or the refusal of each."""

        def decode(image: EncodedImage) -> np.ndarray | Refusal:
            try:
                return decoding.decode(image, self.config.image_size)
            except Refusal as refusal:
                return refusal

        last = files_of(self.images)
        with ThreadPoolExecutor(cores()) as pool:
            for start in range(0, len(self.images), CHUNK):
                yield from pool.map(decode, self.images[start : start + CHUNK])
                for file in (file for file, index in last.items() if index < start + CHUNK):
                    file.release()


def _hash_digits(text: str) -> str:
    # Names may hold bytes that are not UTF-8.
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:6]
