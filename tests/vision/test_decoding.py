"""Photographs of every mode as a viewer shows them, by Pillow's own conversions;
the same from cache and loaders.
"""

import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from multicard.messages import Refusal
from multicard.records import content
from multicard.vision.data import datasets, decoding
from multicard.vision.data.splits import DataSplits, Split, gather
from multicard.vision.workload import WORKLOAD
from tests.conftest import has_dali, typed
from tests.helpers.loader_sources import pixels, read, source
from tests.helpers.messages import refused, remedies, says
from tests.vision.test_loaders import NAMES, PLAIN

SIZE = 32


def picture(mode: str = "RGB", width: int = SIZE, height: int = SIZE) -> Image.Image:
    """Smooth, as photographs are, and unlike itself turned or mirrored."""
    down, across = np.mgrid[0:height, 0:width] / max(width, height)
    rgb = np.stack(
        [255 * across, 255 * down, 120 + 100 * np.sin(3 * across + down)], axis=-1
    ).astype(np.uint8)
    return Image.fromarray(rgb).convert(mode)


def of_16_bits() -> Image.Image:
    levels = np.linspace(0, 65535, SIZE * SIZE).astype(np.uint16).reshape(SIZE, SIZE)
    levels[0, :2] = 40_000
    return Image.fromarray(levels)


def half_transparent(mode: str = "RGBA") -> Image.Image:
    """Its alpha grows from the left to the right."""
    opaque = picture(mode)
    opaque.putalpha(Image.fromarray(np.tile(np.linspace(0, 255, SIZE).astype(np.uint8), (SIZE, 1))))
    return opaque


def over_white(image: Image.Image) -> np.ndarray:
    rgba, white = image.convert("RGBA"), Image.new("RGB", image.size, "white")
    white.paste(rgba, mask=rgba)
    return np.array(white)


def decoded(path: Path) -> np.ndarray:
    return decoding.decode(path, SIZE)


def test_grey_of_16_bits_is_scaled_to_8_and_32_bits_have_no_known_white(tmp_path: Path):
    for suffix in ("png", "tif", "pgm"):
        path = tmp_path / f"grey.{suffix}"
        of_16_bits().save(path)
        scaled = (
            Image.open(path)
            .convert("F")
            .point(lambda level: level / 257 + 0.5)
            .convert("L")
            .convert("RGB")
        )
        assert np.array_equal(decoded(path), np.array(scaled))
        assert (
            decoded(path)[0, 0].tolist() == [156] * 3
            and decoded(path)[-1, -1].tolist() == [255] * 3
        )
    of_16_bits().save(tmp_path / "a.png", transparency=40_000)
    assert (decoded(tmp_path / "a.png")[0, :3, 0]).tolist() == [255, 255, 0]
    of_16_bits().save(tmp_path / "b.tif", tiffinfo={decoding.PHOTOMETRIC: decoding.WHITE_IS_ZERO})
    assert decoded(tmp_path / "b.tif")[0, 0].tolist() == [255 - 156] * 3
    for mode in ("I", "F"):
        picture("L").convert(mode).save(tmp_path / f"{mode}.tif")
        with refused("photographs.broken", image=str(tmp_path / f"{mode}.tif")) as refusal:
            decoded(tmp_path / f"{mode}.tif")
        assert says(str(refusal.value), "photographs.white-unknown")


@pytest.mark.parametrize("mode", ["CMYK", "YCbCr", "L", "1", "P"])
def test_other_colours_are_those_of_pillow(mode: str, tmp_path: Path):
    path = tmp_path / f"a.{'jpg' if mode in ('CMYK', 'YCbCr') else 'png'}"
    picture(mode).save(path)
    assert decoding.decode(path, 20).shape == (20, 20, 3)
    assert np.array_equal(decoded(path), np.array(Image.open(path).convert("RGB")))
    # not a negative
    assert np.abs(decoded(path).astype(int) - picture(mode).convert("RGB")).mean() < 8


TRANSPARENT: dict[str, tuple[Image.Image, dict[str, Any]]] = {
    "rgba.png": (half_transparent(), {}),
    "grey.png": (half_transparent("LA"), {}),
    "rgba.tif": (half_transparent(), {}),
    "rgba.webp": (half_transparent(), {"lossless": True}),
    "level of a palette.png": (picture().quantize(256), {"transparency": 3}),
    "levels of a palette.png": (picture().quantize(256), {"transparency": bytes(range(256))}),
    "colour.png": (picture(), {"transparency": picture().getpixel((0, 0))}),
}


@pytest.mark.parametrize("name", TRANSPARENT)
def test_transparency_is_laid_over_white(name: str, tmp_path: Path):
    image, options = TRANSPARENT[name]
    image.save(tmp_path / name, **options)
    with Image.open(tmp_path / name) as own:
        assert own.has_transparency_data
        assert np.abs(decoded(tmp_path / name).astype(int) - over_white(own)).max() <= 1
        assert not np.array_equal(decoded(tmp_path / name), np.array(own.convert("RGB")))


@pytest.mark.parametrize("suffix", ["png", "webp", "tif"])
def test_of_an_animation_the_first_frame_counts(suffix: str, tmp_path: Path):
    path, others = tmp_path / f"a.{suffix}", [picture().rotate(turn) for turn in (90, 180)]
    picture().save(
        path,
        save_all=True,
        append_images=others,
        **({"lossless": True} if suffix == "webp" else {}),
    )
    assert getattr(Image.open(path), "n_frames", 1) == 3
    assert np.array_equal(decoded(path), np.array(picture()))


@pytest.mark.parametrize("suffix", ["jpg", "png", "webp", "tif"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_photographs_are_upright(suffix: str, orientation: int, tmp_path: Path):
    path, exif = tmp_path / f"a.{suffix}", Image.Exif()
    exif[decoding.ORIENTATION] = orientation
    options: dict[str, Any] = {"webp": {"lossless": True}, "jpg": {"quality": 95}}.get(suffix, {})
    picture(width=40, height=20).save(path, exif=exif, **options)
    with Image.open(path) as own, Image.open(path) as image:
        upright = np.array(ImageOps.exif_transpose(own).convert("RGB"))
        assert np.array_equal(np.array(decoding.upright_rgb(image)), upright)
    assert upright.shape[:2] == ((40, 20) if orientation > 4 else (20, 40))
    apart = np.abs(
        upright[:20, :20].astype(int) - picture(width=40, height=20).crop((0, 0, 20, 20))
    )
    assert (orientation == 1) == bool(apart.max() < 30)


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
def test_broken_exif_turns_nothing(tmp_path: Path):
    broken = (b"", b"II*\0\xff\xff\xff\xff", b"MM\0*\0\0\0\x08\0\x09" + b"\1\x12" * 9)
    for number, block in enumerate(broken):
        picture().save(tmp_path / f"{number}.jpg", exif=b"Exif\0\0" + block, quality=95)
        assert np.abs(decoded(tmp_path / f"{number}.jpg").astype(int) - picture()).mean() < 4


FORMATS = ("avif", "bmp", "gif", "jpg", "png", "ppm", "tif", "webp")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("suffix", FORMATS)
def test_a_damaged_file_of_any_format_is_shown_or_refused_by_its_name(suffix: str, tmp_path: Path):
    """Each byte in turn, and cut off at many places: decoders raise whatever they like."""
    whole, path = tmp_path / f"whole.{suffix}", tmp_path / f"a.{suffix}"
    picture(width=8, height=8).save(whole)
    content = whole.read_bytes()
    damaged = [content[:length] for length in range(0, len(content), 1 + len(content) // 20)]
    for at in range(0, len(content), 1 + len(content) // 40):
        damaged += [
            content[:at] + bytes([content[at] ^ flipped]) + content[at + 1 :]
            for flipped in (0xFF, 0x01)
        ]
    refusals = 0
    for each in damaged:
        path.write_bytes(each)
        try:
            assert decoding.decode(path, SIZE).shape == (SIZE, SIZE, 3)
        except Refusal as refusal:
            assert refusal.code == "photographs.broken" and refusal.facts["image"] == str(path)
            refusals += 1
    assert refusals > 5


@pytest.mark.parametrize(
    "error", [RuntimeError("decoding failed"), KeyError(3), struct.error("unpack"), IndexError()]
)
def test_whatever_a_decoder_raises_names_the_file(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    picture().save(tmp_path / "a.png")

    def fail(_: Image.Image) -> None:
        raise error

    monkeypatch.setattr(decoding, "_rgb", fail)
    with refused("photographs.broken", image=str(tmp_path / "a.png")) as refusal:
        decoded(tmp_path / "a.png")
    assert remedies(refusal.value) == ["dataset.skip_broken=true dataset.cache=mmap"]
    error = MemoryError()
    with pytest.raises(MemoryError):
        decoded(tmp_path / "a.png")


@pytest.mark.parametrize("cache", ["mmap", "none", "process"])
def test_the_remedy_of_a_broken_image_is_taken_with_every_cache(cache: str, tmp_path: Path):
    for part in ("train/a", "train/b", "val/a", "val/b"):
        (tmp_path / part).mkdir(parents=True)
        for number in range(2):
            picture().save(tmp_path / part / f"{number}.avif")
    broken = tmp_path / "train" / "a" / "1.avif"
    content = broken.read_bytes()
    broken.write_bytes(content[: len(content) // 2] + bytes(len(content) - len(content) // 2))
    words = [
        "dataset=images",
        f"dataset.root={tmp_path}",
        f"dataset.image_size={SIZE}",
        f"dataset.cache={cache}",
    ]

    def read_all(*more: str) -> DataSplits:
        config = typed(*words, *more).dataset
        data = datasets.load(config, 0)
        gather(data.train, np.arange(len(data.train)), SIZE)
        return data

    with pytest.raises(Refusal) as refusal:
        read_all()
    assert refusal.value.facts["image"] == str(broken)
    (remedy,) = set(remedies(refusal.value)) - {str(broken)}
    data = read_all(*remedy.split())
    assert len(data.train) == 3 and data.facts["decoded"]["train"]["skipped"] == 1


def odd(folder: Path) -> list[Path]:
    """A picture of each kind above."""
    folder.mkdir(parents=True)
    turned = Image.Exif()
    turned[decoding.ORIENTATION] = 6
    kinds: dict[str, Callable[[Path], None]] = {
        "16.png": lambda path: of_16_bits().save(path),
        "alpha.png": lambda path: half_transparent().save(path),
        "animated.png": (
            lambda path: picture().save(
                path, save_all=True, append_images=[picture("RGB").rotate(90)]
            )
        ),
        "cmyk.jpg": lambda path: picture("CMYK").save(path, quality=95),
        "palette.png": lambda path: picture().quantize(64).save(path, transparency=3),
        "turned.jpg": lambda path: picture().save(path, exif=turned, quality=95),
    }
    for name, save in kinds.items():
        save(folder / name)
    return [folder / name for name in kinds]


@pytest.mark.parametrize("loader", NAMES)
def test_all_loaders_and_the_cache_show_them_alike(loader: str, tmp_path: Path):
    paths = [*odd(tmp_path / "train" / "odd"), *odd(tmp_path / "train" / "same")]
    shutil.copytree(tmp_path / "train", tmp_path / "validation")
    expected = np.stack([decoded(path) for path in paths])
    config = typed(
        "dataset=images", f"dataset.root={tmp_path}", f"dataset.image_size={SIZE}"
    ).dataset
    cached = datasets.load(config, 0).train
    assert isinstance(cached.images, np.memmap) and np.array_equal(cached.images, expected)
    words = (*PLAIN, f"loader={loader}")
    each_time = [Split(paths, np.arange(len(paths)))] if loader in ("torch", "batched") else []
    for split in [cached, *each_time]:
        images = pixels(read(source(split, range(len(paths)), *words)))
        assert torch.equal(
            (images * 255).round().permute(0, 2, 3, 1).to(torch.uint8), torch.from_numpy(expected)
        )


@pytest.mark.skipif(not has_dali(), reason="no DALI (make dali)")
def test_dali_decodes_what_it_shows_as_the_others_do_and_nothing_else(tmp_path: Path):
    for path in odd(tmp_path / "odd"):
        asked = source(Split([path], np.arange(1)), range(1), *PLAIN, "loader=dali")
        if path.name in ("animated.png", "cmyk.jpg", "turned.jpg"):
            apart = pixels(read(asked)) * 255 - torch.from_numpy(decoded(path)).permute(2, 0, 1)
            assert apart.abs().mean() < 2  # another decoder of JPEGs
        else:
            with refused("dali.shows-otherwise", key="loader", image=str(path)):
                read(asked)


def test_caches_and_fingerprints_tell_ways_of_decoding_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for part in ("train/odd", "train/same", "validation/odd", "validation/same"):
        odd(tmp_path / part)
    config = typed("dataset=images", f"dataset.root={tmp_path}", f"dataset.image_size={SIZE}")
    monkeypatch.setattr(decoding, "VERSION", 1)
    datasets.load(config.dataset, 0)
    before = content.fingerprint(WORKLOAD.data(config))
    monkeypatch.undo()
    assert datasets.load(config.dataset, 0).facts["decoded"]["train"]["built_s"] is not None
    now = content.fingerprint(WORKLOAD.data(config))
    assert now.fingerprint != before.fingerprint and now.parts["dataset"] == before.parts["dataset"]
    assert before.parts["decoding"] != now.parts["decoding"]
    assert "decoding" not in content.fingerprint(WORKLOAD.data(typed())).parts
