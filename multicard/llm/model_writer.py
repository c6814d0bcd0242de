"""Write the tuned weights to the run folder, after all timed work.

All ranks take part, and rank 0 writes. No rank ever holds a sharded model as a whole: tensors are
gathered, written and freed one by one. A single tensor fits in memory, because training gathered
whole layers.
"""

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import chain
from math import prod
from pathlib import Path
from typing import Any

import msgspec
import torch

from multicard.config.llm import LlmConfig
from multicard.config.llm_models import HfConfig
from multicard.config.saving import TuningSave
from multicard.llm import int4_file, kept_model, kept_tokenizer, methods, models
from multicard.llm.drawn_weights import DTYPES, weights
from multicard.llm.kept_model import TunedModelInfo
from multicard.llm.method_options import QatConfig
from multicard.llm.parts import TensorPart, TrainedParts
from multicard.measure import timing
from multicard.messages import Message
from multicard.ranks.process import Rank, max_over_ranks
from multicard.records import kept
from multicard.records.schema_parts import SavedModel

# safetensors' names of the types.
TYPES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.float64: "F64"}
TYPES |= {
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}


class WeightFile:
    """A safetensors file that is written tensor by tensor, in the order of `parts`."""

    def __init__(
        self, path: Path, parts: Mapping[str, TensorPart], metadata: Mapping[str, str] | None = None
    ) -> None:
        header: dict[str, Any] = {"__metadata__": {"format": "pt", **(metadata or {})}}
        end = 0
        for name, part in parts.items():
            for stored_name, (dtype, shape) in part.tensor_entries(name).items():
                start = end
                end += prod(shape) * dtype.itemsize
                header[stored_name] = {
                    "dtype": TYPES[dtype],
                    "shape": list(shape),
                    "data_offsets": [start, end],
                }
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        self._file = path.open("wb")
        self._file.write(len(text).to_bytes(8, "little") + text)

    def add_part(self, name: str, part: TensorPart, whole_tensor: torch.Tensor) -> None:
        for tensor in part.tensors_to_write(name, whole_tensor).values():
            self.add(tensor)

    def add(self, whole_tensor: torch.Tensor) -> None:
        content: Any = whole_tensor.contiguous().flatten().view(torch.uint8).numpy()
        self._file.write(content)

    def close(self) -> None:
        self._file.close()


def _stored_bytes(part: TensorPart) -> int:
    return sum(prod(shape) * dtype.itemsize for dtype, shape in part.tensor_entries("").values())


def write_weights(
    path: Path,
    parts: Mapping[str, TensorPart],
    is_writer: bool,
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Gather and write the tensors, one after the other.

    Every rank gathers all of them, even if the writer fails. Its error is raised at the end, when
    no rank waits for it any more.
    """
    failure: Exception | None = None
    file: WeightFile | None = None
    if is_writer:
        try:
            file = WeightFile(path, parts, metadata)
        except Exception as error:
            failure = error
    for name, part in parts.items():
        whole_tensor = None  # Free this tensor before the next one is gathered.
        try:
            whole_tensor = part.gather()
            if file is not None and failure is None:
                file.add_part(name, part, whole_tensor)
        except Exception as error:
            failure = failure or error.with_traceback(None)  # A traceback would keep the tensor.
    try:
        if file is not None:
            file.close()  # Some file systems only report here that they are full.
    except OSError as error:
        failure = failure or error
    if failure is not None:
        raise failure


def write_trained(
    get_trained: Callable[[], TrainedParts],
    config: LlmConfig,
    cfg: dict[str, Any],
    rank: Rank,
    folder: Path,
) -> SavedModel:
    """Write what was tuned to the run folder: `adapter`, `model` or `int4`.

    If nothing else holds an adapter's base model, it is written to `base`. A full disk or any other
    failure is reported in the result's `problem`, and leaves no files. The run's figures stay
    valid.

    Args:
        get_trained: Returns what the engine trained.
        cfg: torchtune's configuration of the run.
        folder: The run folder.
    """
    started_s = timing.clock_s()
    saved_folder = folder / config.save
    is_writer = rank.rank == 0
    contents: dict[Path, dict[str, TensorPart]] = {}
    trained: TrainedParts | None = None
    failure: Exception | None = None
    try:
        trained = get_trained()
        if config.save is TuningSave.int4:
            trained = replace(trained, parts=int4_file.quantised_parts(trained))
        base = base_parts(trained, config, cfg, rank)
        contents = {saved_folder: trained.parts} | (
            {folder / kept_model.BASE: base} if base is not None else {}
        )
        if is_writer:
            every_part = chain.from_iterable(parts.values() for parts in contents.values())
            kept.require_room(folder, sum(map(_stored_bytes, every_part)))
    except Exception as error:  # Several libraries may raise. The run itself was measured.
        failure = error
    if max_over_ranks(rank, int(failure is not None)):
        failure = failure or RuntimeError("another rank could not prepare it")
    elif trained is not None:
        for target, parts in contents.items():
            try:
                _write_folder(
                    target, parts, trained, config, cfg, is_writer, is_base=target != saved_folder
                )
            except Exception as error:
                failure = failure or error
    save_s = timing.clock_s() - started_s
    form = str(config.save)
    if failure is not None or trained is None:
        if is_writer:
            for target in (saved_folder, folder / kept_model.BASE):
                shutil.rmtree(target, ignore_errors=True)
                shutil.rmtree(_unfinished(target), ignore_errors=True)
        reason = kept.reason_of(failure or RuntimeError())
        sentence = f"save={form}: the {form} was not saved ({reason})"
        problem = Message("save.failed-tuned", sentence, key="save", form=form, reason=reason)
        return SavedModel(form=form, save_s=save_s, problem=str(problem))
    size_bytes = sum(map(_stored_bytes, trained.parts.values()))
    return SavedModel(form=form, folder=saved_folder.name, bytes=size_bytes, save_s=save_s)


def base_parts(
    trained: TrainedParts, config: LlmConfig, cfg: dict[str, Any], rank: Rank
) -> dict[str, TensorPart] | None:
    """Return the random weights of an adapter's base model, which no folder holds.

    Returns None if there are none to write. For decoders that torchtune builds, the seed determines
    the weights, so the writer alone draws them again.
    """
    if trained.adapter is None or config.model.folder is not None:
        return None
    if isinstance(config.model, HfConfig):
        return trained.others
    if rank.rank > 0:
        return {}
    random_weights = weights(config, cfg, rank.device)
    return {
        name: TensorPart(random_weight.weight, random_weight.to_transformers_order)
        for name, random_weight in random_weights.items()
        if ".lora_" not in name
    }


def _unfinished(target: Path) -> Path:
    return target.with_name(target.name + kept.PART)


def _write_folder(
    target: Path,
    parts: dict[str, TensorPart],
    trained: TrainedParts,
    config: LlmConfig,
    cfg: dict[str, Any],
    is_writer: bool,
    is_base: bool,
) -> None:
    """Write weights, configuration and tokenizer. The folder only appears once it is complete."""
    unfinished = _unfinished(target)
    is_adapter = trained.adapter is not None and not is_base
    weights_name = kept_model.ADAPTER_WEIGHTS if is_adapter else kept_model.WEIGHTS
    metadata: dict[str, str] | None = None
    quantised: dict[str, Any] = {}
    if config.save is TuningSave.int4:
        metadata = int4_file.metadata(parts)
        quantised = {"quantization_config": int4_file.quantization_config(trained)}
    failure: Exception | None = None
    if is_writer:
        try:
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir()
        except OSError as error:
            failure = error
    try:
        write_weights(unfinished / weights_name, parts, is_writer and failure is None, metadata)
    except Exception as error:
        failure = failure or error
    if failure is not None:
        raise failure
    if not is_writer:
        return
    inputs = target.parent / "inputs"
    if is_adapter:
        _write_json(unfinished / kept_model.ADAPTER_CONFIG, adapter_config(trained, config, target))
    else:
        _write_json(
            unfinished / kept_model.MODEL_CONFIG, model_config(config, cfg, inputs) | quantised
        )
    kept_tokenizer.write(config, inputs, unfinished)
    if not is_base:
        _write_json(
            unfinished / kept.TUNED_MODEL, msgspec.to_builtins(tuned_model_info(trained, config))
        )
    shutil.rmtree(target, ignore_errors=True)
    unfinished.replace(target)


def _write_json(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2) + "\n")


def dtype_name(config: LlmConfig) -> str:
    return str(DTYPES[config.formats.weights]).removeprefix("torch.")


def tuned_model_info(trained: TrainedParts, config: LlmConfig) -> TunedModelInfo:
    options = config.method
    folder = config.model.folder
    is_adapter = trained.adapter is not None
    return TunedModelInfo(
        form=str(config.save),
        reader=trained.reader,
        dtype=dtype_name(config),
        base=(
            str(Path(folder).expanduser().absolute()) if is_adapter and folder is not None else None
        ),
        nf4=methods.chosen(config).nf4,
        groupsize=(
            options.groupsize
            if isinstance(options, QatConfig) and config.save is TuningSave.model
            else None
        ),
        tied=trained.tied,
    )


def adapter_config(trained: TrainedParts, config: LlmConfig, saved_folder: Path) -> dict[str, Any]:
    """Return PEFT's configuration of the adapters, which names their base model."""
    base = kept_model.base_folder(saved_folder.absolute(), tuned_model_info(trained, config))
    return {**(trained.adapter or {}), "base_model_name_or_path": base, "inference_mode": True}


def model_config(config: LlmConfig, cfg: dict[str, Any], inputs: Path) -> dict[str, Any]:
    """Return the config.json for a whole model.

    It is the config.json of the folder that the weights came from, or is made from the decoder's
    sizes.
    """
    model = config.model
    values: dict[str, Any] = {}
    if isinstance(model, HfConfig) or model.folder is not None:
        folder = model.path if isinstance(model, HfConfig) else model.folder
        values = json.loads(
            (Path(str(folder)).expanduser() / kept_model.MODEL_CONFIG).read_text("utf-8")
        )
        values.pop("quantization_config", None)  # It describes the folder's weights, not these.
    else:
        sizes = models.hugging_face_config(model, cfg["model"]["vocab_size"])
        values = {"architectures": [ARCHITECTURES[sizes["model_type"]]], **sizes}
        values |= kept_tokenizer.special_ids(config, inputs)
    values.pop("torch_dtype", None)  # The older name of "dtype".
    return values | {"dtype": dtype_name(config)}
