"""Encoded images: files, and rows of files of Hugging Face's `datasets`, which hold struct<bytes,
path> or bytes.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from threading import Lock
from typing import Any

from multicard.messages import Refusal

STREAM = ".arrow"  # ends the files of `save_to_disk`


def opened(paths: list[Path], form: Any = "parquet") -> Any:
    """A pyarrow `Dataset` of files, of which no row is read yet; Arrow's streams,
    of `save_to_disk`, are mapped.
    """
    from pyarrow import concat_tables, dataset, ipc, memory_map

    if paths[0].suffix == STREAM:
        return dataset.dataset(
            concat_tables(ipc.open_stream(memory_map(str(path))).read_all() for path in paths)
        )
    return dataset.dataset([str(path) for path in paths], format=form)


class ImageFile:
    """One such file and its field of images, read when the
    first is asked for and held once in a process.

    column: the field's name where `dataset.columns` chose it,
    as a file may have several fields of images; else "".
    """

    def __init__(self, path: Path, field: Any, is_named: bool = False) -> None:
        self.path = path
        self.field = field
        self._lock = Lock()
        self.column = field.name if is_named else ""
        self._images: Any = None

    def load(self) -> Any:
        """The encoded images, a `ChunkedArray`."""
        from pyarrow import dataset

        with self._lock:  # threads decode
            if self._images is None:
                nested = ("bytes",) if self.field.type.num_fields else ()
                column = {"bytes": dataset.field(self.field.name, *nested)}
                self._images = opened([self.path]).to_table(column)["bytes"]
            return self._images

    def release(self) -> None:
        self._images = None


@dataclass(frozen=True, slots=True)
class StoredImage:
    """An image in such a file, opened as a `Path` is."""

    file: ImageFile
    index: int

    def __repr__(self) -> str:
        return f"{self.file.path} row {self.index + 1}"

    def open(self, _: str = "rb") -> BytesIO:
        encoded = self.file.load()[self.index].as_py()
        if encoded is None:
            raise Refusal("photographs.no-bytes", "its bytes are not in the file")
        return BytesIO(encoded)


Encoded = Path | StoredImage  # an image that is still to be decoded


def path_of(image: Encoded) -> Path:
    """The file on disk that holds an image."""
    return image if isinstance(image, Path) else image.file.path


def column_of(image: Encoded) -> str:
    """The column of an image that was chosen by its name; "" of any other."""
    return "" if isinstance(image, Path) else image.file.column


def files_of(images: Iterable[Any]) -> dict[ImageFile, int]:
    """The files of `datasets` that hold these images,
    each with the index of the last image that it holds.
    """
    return {
        image.file: index for index, image in enumerate(images) if isinstance(image, StoredImage)
    }
