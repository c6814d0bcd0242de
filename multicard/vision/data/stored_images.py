"""Encoded images: image files, and rows of files that Hugging Face's `datasets` writes.

These rows hold an image as struct<bytes, path> or as bytes.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from threading import Lock
from typing import Any

from multicard.messages import Refusal

ARROW_SUFFIX = ".arrow"  # The ending of files that `save_to_disk` writes.


def open_dataset(paths: list[Path], form: Any = "parquet") -> Any:
    """Open files as a pyarrow `Dataset` without reading rows. Arrow streams are memory-mapped."""
    from pyarrow import concat_tables, dataset, ipc, memory_map

    if paths[0].suffix == ARROW_SUFFIX:
        return dataset.dataset(
            concat_tables(ipc.open_stream(memory_map(str(path))).read_all() for path in paths)
        )
    return dataset.dataset([str(path) for path in paths], format=form)


class ImageFile:
    """A file that holds images, and its field of images.

    The images are read once per process, when the first one is needed.

    Attributes:
        column: The field's name if `dataset.columns` chose it, as a file may have several fields of
            images. Otherwise "".
    """

    def __init__(self, path: Path, field: Any, is_named: bool = False) -> None:
        self.path = path
        self.field = field
        self._lock = Lock()
        self.column = field.name if is_named else ""
        self._images: Any = None

    def load(self) -> Any:
        """Return the encoded images as a `ChunkedArray`, reading them at the first call."""
        from pyarrow import dataset

        with self._lock:  # Several threads decode images of one file.
            if self._images is None:
                nested = ("bytes",) if self.field.type.num_fields else ()
                column = {"bytes": dataset.field(self.field.name, *nested)}
                self._images = open_dataset([self.path]).to_table(column)["bytes"]
            return self._images

    def release(self) -> None:
        self._images = None


@dataclass(frozen=True, slots=True)
class StoredImage:
    """One image in such a file. It is opened like a `Path`."""

    file: ImageFile
    index: int

    def __repr__(self) -> str:
        return f"{self.file.path} row {self.index + 1}"

    def open(self, _: str = "rb") -> BytesIO:
        encoded = self.file.load()[self.index].as_py()
        if encoded is None:
            raise Refusal("photographs.no-bytes", "the file does not hold its bytes")
        return BytesIO(encoded)


EncodedImage = Path | StoredImage  # An image that is not decoded yet.


def path_of(image: EncodedImage) -> Path:
    """Return the file on disk that holds an image."""
    return image if isinstance(image, Path) else image.file.path


def column_of(image: EncodedImage) -> str:
    """Return the column of an image if `dataset.columns` chose it, else ""."""
    return "" if isinstance(image, Path) else image.file.column


def files_of(images: Iterable[Any]) -> dict[ImageFile, int]:
    """Return the files that hold these images, each with the index of its last image."""
    return {
        image.file: index for index, image in enumerate(images) if isinstance(image, StoredImage)
    }
