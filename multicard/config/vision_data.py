"""The schemas of the data sets of `train_vision.py`."""

from dataclasses import dataclass
from enum import StrEnum

# OmegaConf supports Optional[...] in every Python version.
from typing import Optional

from omegaconf import MISSING

from multicard.config.keys import Group, key, option_name
from multicard.config.roles import DATA_FILES, Role
from multicard.messages import Refusal

CacheMode = StrEnum("CacheMode", ["mmap", "process", "none"])


@dataclass
class DatasetConfig(Group):
    """The keys of every data set."""

    name: str = option_name()
    image_size: int = key(
        MISSING,
        "side of the square images to train on, in pixels",
        Role.identity | Role.work | Role.learning | Role.memory | Role.speed | Role.titled,
        power=2.0,
        shown=1,
        title="image size (px)",
        also=("img_size", "input_size", "size", "resolution", "imgsz"),
    )
    train_limit: Optional[int] = key(
        None,
        "number of images to train on; null: all",
        Role.identity | Role.work | Role.length | Role.part | Role.learning,
        least=1,
        also=("max_train_samples",),
    )
    test_limit: Optional[int] = key(
        None,
        "number of images to evaluate on; null: all",
        Role.identity | Role.work | Role.length | Role.part | Role.learning,
        least=1,
        also=("max_eval_samples",),
    )
    mean: list[float] = key(
        MISSING,
        "means of the channels R, G, B, in 0..1, which are subtracted from each image",
        Role.identity | Role.work | Role.learning,
    )
    std: list[float] = key(
        MISSING,
        "standard deviations of the channels R, G, B, by which each image is divided",
        Role.identity | Role.work | Role.learning,
    )
    augment: bool = key(
        False,
        "augment training images, according to dataset.crop and dataset.flip",
        Role.identity | Role.work | Role.learning | Role.speed,
        also=("augmentation", "aug"),
    )
    crop: float = key(
        0.875,
        "augment: train on a random window with this share of the sides, in (0, 1]",
        Role.identity | Role.work | Role.learning | Role.speed,
    )
    flip: bool = key(
        False,
        "augment: mirror half of the images",
        Role.identity | Role.work | Role.learning | Role.speed,
    )
    device_budget_bytes: Optional[int] = key(
        None,
        "loader=device: a larger data set is copied batch by batch; null: a quarter of the free"
        " memory",
        Role.identity | Role.memory | Role.speed,
        least=0,
    )

    def __post_init__(self) -> None:
        size = self.image_size
        if size < 32:
            raise Refusal(
                "config.image-size",
                f"dataset.image_size={size}: MobileNetV2 halves an image five times; use"
                " `dataset.image_size=32` or more",
                key="dataset.image_size",
                value=size,
                least=32,
            )
        for name, values in (("dataset.mean", self.mean), ("dataset.std", self.std)):
            if len(values) != 3:
                raise Refusal(
                    "config.image-channels",
                    f"{name}={values}: give three values, one per channel (R, G, B)",
                    key=name,
                    value=values,
                )
        if min(self.std) <= 0:
            raise Refusal(
                "config.image-std",
                f"dataset.std={self.std}: must be above 0",
                key="dataset.std",
                value=self.std,
            )
        if not 0 < self.crop <= 1:
            raise Refusal(
                "config.image-crop",
                f"dataset.crop={self.crop}: is a share of an image's sides; give a value in (0, 1]",
                key="dataset.crop",
                value=self.crop,
            )

    @property
    def alike(self) -> bool:
        """True if all channels are normalised in the same way, so that a grey image stays grey."""
        return len(set(self.mean)) == len(set(self.std)) == 1


@dataclass
class MnistConfig(DatasetConfig):
    root: str = key(
        MISSING,
        "folder with the files of MNIST",
        DATA_FILES,
    )
    download: bool = key(
        False,
        "download files that are missing in dataset.root",
        Role.identity | Role.place | Role.input | Role.content,
    )


COLUMNS = ("image", "label", "split")  # The columns that `dataset.columns` can name for images.


@dataclass
class ImagesConfig(DatasetConfig):
    root: Optional[str] = key(
        None,
        "folder with train/<class>/ and val/<class>/, with <class>/ only, or with parquet files; or"
        " a .csv or .parquet file",
        DATA_FILES,
    )
    split: Optional[float] = key(
        None,
        "share of each class to test on, in (0, 1), for images that are not split yet",
        Role.identity | Role.work | Role.length | Role.part | Role.learning,
        since=("skip_broken", None),
        also=("val_split", "validation_split", "test_split", "val_size", "test_size"),
    )
    parts: Optional[list[str]] = key(
        None,
        "the parts to train and to test on, [TRAIN,TEST]; []: folders are classes, whatever their"
        " names; null: find parts by their names",
        Role.identity | Role.work | Role.content | Role.learning | Role.speed,
        since=("skip_broken", None),
    )
    columns: dict[str, Optional[str]] = key(
        dict,
        "names of a table's columns, as {image: img, label: fine_label}; {split: null}: no column"
        " splits it; {label: null}: folders are the classes",
        Role.identity | Role.work | Role.input | Role.content | Role.learning | Role.speed,
        since=("skip_broken", {}),
    )
    cache: CacheMode = key(
        CacheMode.mmap,
        "decode once, into a file that all ranks share (mmap) or into float32 tensors of each "
        "process (process, loader=torch); none: decode each time",
        Role.identity | Role.speed,
    )
    cache_dir: Optional[str] = key(
        None,
        "folder of the cache; null: .multicard/ next to the images",
        Role.identity | Role.place | Role.input | Role.content | Role.speed,
    )
    skip_broken: bool = key(
        False,
        "leave out images that cannot be decoded, and count them",
        Role.identity | Role.work | Role.learning | Role.speed,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.skip_broken and self.cache is not CacheMode.mmap:
            raise Refusal(
                "config.images-skip-broken",
                f"dataset.skip_broken=true: cannot be combined with dataset.cache={self.cache}:"
                " broken images are found when the cache is built; use `dataset.cache=mmap`",
                key="dataset.skip_broken",
                cache=self.cache,
            )
        if self.root is None:
            raise Refusal(
                "config.images-root",
                "dataset.root is not set: give a folder that holds train/<class>/ and val/<class>/,"
                " `dataset.root=FOLDER`, or a .csv of paths and labels, `dataset.root=FILE`",
                key="dataset.root",
            )
        if self.parts is not None and (len(self.parts) > 2 or len({*self.parts}) < len(self.parts)):
            raise Refusal(
                "config.images-parts",
                f"dataset.parts=[{','.join(self.parts)}]: name one part to train on and another to"
                " test on, as `dataset.parts=[train,test]`; if folders are classes, name none,"
                " `dataset.parts=[]`",
                key="dataset.parts",
                value=self.parts,
            )
        for name, column in self.columns.items():
            if name in COLUMNS and (column is not None or name != "image"):
                continue
            raise Refusal(
                "config.images-columns",
                f"dataset.columns.{name}={column or 'null'}: is not a column that is read; name"
                " image, label or split, as `'dataset.columns={label: LABEL}'`",
                key="dataset.columns",
                value=name,
                known=COLUMNS,
            )
        if self.columns.get("label", "") is None and len(self.columns) > 1:
            raise Refusal(
                "config.images-label-null",
                "dataset.columns.label=null: makes folders the classes, and reads no table; use"
                " `'dataset.columns={label: null}'` without other columns",
                key="dataset.columns",
                columns=self.columns,
            )
        if self.split is not None and not 0 < self.split < 1:
            raise Refusal(
                "config.images-split",
                f"dataset.split={self.split}: is a share of each class; give a value in (0, 1), as"
                " `dataset.split=0.2`",
                key="dataset.split",
                value=self.split,
            )
