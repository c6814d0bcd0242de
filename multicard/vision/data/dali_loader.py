"""`loader=dali`: NVIDIA DALI decodes, resizes and normalises, on the GPU if there is one.

The pipeline is fed with raw images or file names to keep the sampler's order. DALI's own reader
would shuffle and shard by its own rules.
"""

from collections import deque
from collections.abc import Iterator
from importlib import import_module
from itertools import chain
from typing import Any

import numpy as np
import torch

from multicard.config.vision import DaliConfig, LayoutName
from multicard.vision.data import decoding
from multicard.vision.data.batch import Batch, LoaderInput
from multicard.vision.data.stored_images import EncodedImage, files_of, path_of


class Feeder:
    """Feeds the pipeline with the batches of an epoch. The iterator can be restarted."""

    def __init__(self, source: LoaderInput, ahead: int) -> None:
        self.source = source
        self.files = isinstance(source.split.images, list)
        # Files are fed by name. Images within tables are fed as bytes.
        self.fed_by_name = self.files and not files_of(source.split.images)
        # The latest batches. An image that DALI fails to decode is in one of them.
        self.recent: deque[list[EncodedImage]] = deque(maxlen=ahead)
        self.bytes: deque[int] = deque()  # The size of each batch in the pipeline.
        self._batches: Iterator[np.ndarray] | None = None

    def __iter__(self) -> "Feeder":
        # DALI restarts as soon as an epoch ends, before the sampler knows the next epoch.
        self._batches = None
        return self

    def __next__(self) -> tuple[Any, ...]:
        if self._batches is None:
            self._batches = iter(self.source.batches())
            self.bytes.clear()
        draws = next(self._batches)
        split = self.source.split
        indices = draws % len(split)
        if isinstance(split.images, list):
            encoded = [split.images[index] for index in indices]
            self.recent.append(encoded)
            if self.fed_by_name:
                images: Any = [np.frombuffer(str(path).encode(), np.int8) for path in encoded]
                self.bytes.append(sum(path_of(image).stat().st_size for image in encoded))
            else:
                images = [np.frombuffer(image.open("rb").read(), np.uint8) for image in encoded]
                self.bytes.append(sum(map(len, images)))
        else:
            images = split.images[indices]
            self.bytes.append(images.nbytes)
        windows = self.source.windows(draws)
        if windows is None:
            return list(images), list(split.labels[indices])
        corners = np.stack([windows.top, windows.left], axis=1).astype(np.int32)
        return (
            list(images),
            list(split.labels[indices]),
            list(corners),
            list(windows.flip.astype(np.int32)),
        )


class Dali:
    """Batches from a DALI pipeline, (B, 3, S, S), or one channel for grey images.

    They are on the GPU if there is one. The counted bytes are the pipeline's input, which crosses
    to the GPU: encoded files if DALI decodes them.
    """

    setup_bytes = 0

    def __init__(self, source: LoaderInput) -> None:
        options = source.config.loader
        assert isinstance(options, DaliConfig)
        self.source = source
        self.on_gpu = source.device.type == "cuda"
        threads = options.threads or torch.get_num_threads()  # The rank's share of the cores.
        for path in source.split.images if isinstance(source.split.images, list) else ():
            decoding.require_plain(path)
        self.feeder = Feeder(source, options.prefetch_queue_depth + 2)
        self.pipeline = _pipeline(source, self.feeder, threads, options.prefetch_queue_depth)
        self.facts: dict[str, Any] = {
            "pipeline": "gpu" if self.on_gpu else "cpu",
            "threads": threads,
        }
        self.facts["decodes"] = self.feeder.files
        self._at_end: bool | None = None  # Whether an epoch has ended. None before the first.

    def __iter__(self) -> Iterator[Batch]:
        if self._at_end is False:  # The last epoch was left before its end was reached.
            while self._run() is not None:
                pass
        if self._at_end:
            self.pipeline.reset()
        self._at_end = False
        nhwc = self.source.config.layout.name is LayoutName.nhwc
        while (outputs := self._run()) is not None:
            images, labels = (torch.from_dlpack(output.as_tensor()) for output in outputs)
            images, labels = images.permute(0, 3, 1, 2) if nhwc else images, labels.reshape(-1)
            yield Batch(
                images.to(self.source.transfer), labels, self.feeder.bytes.popleft(), labels.nbytes
            )

    def _run(self) -> tuple[Any, Any] | None:
        """Return the pipeline's next outputs, or None at the end of an epoch."""
        try:
            return self.pipeline.run(
                torch.cuda.current_stream(self.source.device) if self.on_gpu else None
            )
        except StopIteration:
            self._at_end = True
            return None
        except RuntimeError as error:
            raise self._error_with_file(error) from None

    def _error_with_file(self, error: RuntimeError) -> Exception:
        """Return an error that names the undecodable file, which DALI does not name."""
        for path in chain.from_iterable(self.feeder.recent):
            try:
                decoding.decode(path, 32)
            except ValueError as named_error:
                return named_error
        return error


def _pipeline(source: LoaderInput, feeder: Feeder, threads: int, ahead: int) -> Any:
    dali: Any = import_module("nvidia.dali")  # An optional dependency.
    fn = dali.fn
    types = dali.types
    config = source.config.dataset
    images = source.split.images
    on_gpu = source.device.type == "cuda"
    augmented = source.training and config.augment
    grey = source.split.grey
    channels = 1 if grey and config.alike else 3
    size = [config.image_size, config.image_size]
    is_half = source.transfer is torch.float16
    normalisation = {
        key: [255 * value for value in getattr(config, key)][:channels] for key in ("mean", "std")
    }
    layout = "HWC" if source.config.layout.name is LayoutName.nhwc else "CHW"
    resize = {"size": size, "interp_type": types.DALIInterpType.INTERP_LINEAR}

    @dali.pipeline_def
    def graph() -> Any:
        pixel_type = types.DALIDataType.INT8 if feeder.fed_by_name else types.DALIDataType.UINT8
        input_types = [
            pixel_type,
            types.DALIDataType.INT64,
            types.DALIDataType.INT32,
            types.DALIDataType.INT32,
        ]
        layouts = ["" if feeder.files else "HW" if grey else "HWC", "", "", ""]
        inputs = 4 if augmented else 2
        fed: Any = fn.external_source(
            source=feeder,
            cycle="raise",
            num_outputs=inputs,
            batch=True,
            dtype=input_types[:inputs],
            layout=layouts[:inputs],
        )
        pixels = fed[0]
        labels = fed[1]
        if feeder.files:
            device = "mixed" if on_gpu else "cpu"
            image_type = types.DALIImageType.RGB
            pixels = fn.io.file.read(pixels) if feeder.fed_by_name else pixels
            pixels = fn.decoders.image(
                pixels, device=device, output_type=image_type, adjust_orientation=True
            )
            resized_type = types.DALIDataType.UINT8 if augmented else types.DALIDataType.FLOAT
            pixels = fn.resize(pixels, **resize, antialias=True, dtype=resized_type)
        elif on_gpu:
            pixels = pixels.gpu()
        if grey:
            pixels = fn.expand_dims(pixels, axes=[2], new_axis_names="C")
        if augmented:
            window = source.windows(np.zeros(1, np.int64))
            assert window is not None
            pixels = fn.slice(
                pixels, start=fed[2], shape=[window.height, window.width], axes=[0, 1]
            )
        shrinks = isinstance(images, np.ndarray) and max(images.shape[1:3]) > config.image_size
        if not feeder.files or augmented:
            pixels = fn.resize(pixels, **resize, antialias=shrinks, dtype=types.DALIDataType.FLOAT)
        if grey and not config.alike:
            pixels = fn.cat(pixels, pixels, pixels, axis=2)
        image_type = types.DALIDataType.FLOAT16 if is_half else types.DALIDataType.FLOAT
        mirror = {"mirror": fed[3]} if augmented else {}
        return (
            fn.crop_mirror_normalize(
                pixels, dtype=image_type, output_layout=layout, **normalisation, **mirror
            ),
            labels,
        )

    pipeline = graph(
        batch_size=source.batch_size,
        num_threads=threads,
        device_id=source.device.index if on_gpu else None,
        prefetch_queue_depth=ahead,
        # Only this executor leaves outputs alone while torch shares them (TensorGPU.__dlpack__).
        exec_dynamic=True,
        py_num_workers=0,
    )
    pipeline.build()
    return pipeline
