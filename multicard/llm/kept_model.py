"""Describe and load the model that a tuning run saved.

`tuned.json` describes the weights. Loading them needs transformers, and PEFT for adapters, but not
multicard: `lines_to_load` shows how. Imports torch only inside functions.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from multicard.llm import peft_layers
from multicard.messages import Refusal, install
from multicard.records import kept

if TYPE_CHECKING:
    from torch import nn

# PEFT's file names.
ADAPTER_WEIGHTS = "adapter_model.safetensors"
ADAPTER_CONFIG = "adapter_config.json"
# transformers' file names.
WEIGHTS = "model.safetensors"
MODEL_CONFIG = "config.json"
BASE = "base"  # Folder of an adapter's base model that only this run has. A sibling of `adapter`.


class TunedModelInfo(msgspec.Struct, frozen=True):
    """The content of `tuned.json`, which describes the weights next to it.

    Attributes:
        form: "adapter" (read by PEFT), "model", or "int4" (quantised; both read by transformers).
        reader: The class of transformers that reads the model, or the adapter's base model.
        dtype: The type in which the run held its weights, by torch's name.
        base: The folder of the adapter's base model. None if this is the folder `base` next to the
            adapter's, or if there is no adapter.
        nf4: True if the run held the base model in NF4.
        groupsize: Number of weights that share a scale, for a model that was trained for
            quantisation (method=qat) and is to be quantised after loading. Otherwise None.
        tied: True if the output is tied to the embeddings, and is thus not quantised.
    """

    form: str
    reader: str
    dtype: str
    base: str | None = None
    nf4: bool = False
    groupsize: int | None = None
    tied: bool = False


def read_info(model_folder: Path) -> TunedModelInfo:
    """Return the description of the weights in a folder.

    Raises:
        Refusal: The folder is not complete.
    """
    weights = {"adapter": ADAPTER_WEIGHTS, "model": WEIGHTS, "int4": WEIGHTS}
    try:
        info = msgspec.json.decode(
            (model_folder / kept.TUNED_MODEL).read_bytes(), type=TunedModelInfo
        )
        (model_folder / weights[info.form]).stat()
    except (OSError, KeyError, msgspec.MsgspecError) as error:
        raise _unreadable(model_folder, error) from None
    return info


def _unreadable(model_folder: Path, error: Exception) -> Refusal:
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    sentence = (
        f"{model_folder}: the model cannot be read ({reason}); train it again by `rerun=true` in"
        " its command"
    )
    return Refusal(
        "save.unreadable-model", sentence, key="save", folder=str(model_folder), reason=reason
    )


def base_folder(model_folder: Path, info: TunedModelInfo) -> str:
    """Return the folder of an adapter's base model."""
    return str((model_folder.parent / BASE).absolute()) if info.base is None else info.base


def load_tuned(model_folder: Path) -> "nn.Module":
    """Load the tuned model, with its `tokenizer`, for evaluation.

    It is on the CPU; in NF4, it is on the GPU if there is one. Adapters are loaded on their base
    model, which is in NF4 if the run had it so. A model of `method=qat` is quantised.

    Raises:
        Refusal: The folder is not complete, or a library is not installed.
    """
    info = read_info(model_folder)
    try:
        import peft
        import torch
        import transformers
    except ImportError as error:
        sentence = f"{model_folder}: loading it needs {error.name}; run `{install('trl')}`"
        raise Refusal(
            "save.no-library", sentence, folder=str(model_folder), missing=[error.name]
        ) from None
    reader = getattr(transformers, info.reader)
    dtype = getattr(torch, info.dtype)
    options: dict[str, Any] = {"dtype": dtype}
    if info.nf4:
        options["quantization_config"] = transformers.BitsAndBytesConfig(**_nf4_options(info))
    try:
        if info.form == "adapter":
            base = reader.from_pretrained(base_folder(model_folder, info), **options)
            # Without autocast_adapter_dtype=False, PEFT would convert adapters to float32.
            with peft_layers.adapted_as_named():
                model = peft.PeftModel.from_pretrained(
                    base, str(model_folder), autocast_adapter_dtype=False
                )
        else:
            model = reader.from_pretrained(model_folder, **options)
        tokenizer = transformers.AutoTokenizer.from_pretrained(model_folder)
    except Exception as error:  # Several libraries may raise.
        raise _unreadable(model_folder, error) from None
    if info.groupsize is not None:
        from torchao.quantization.linear_quant_modules import Int8DynActInt4WeightQuantizer

        quantizer = Int8DynActInt4WeightQuantizer(groupsize=info.groupsize, precision=dtype)
        quantizer.quantize(model.base_model if info.tied else model)
    model.tokenizer = tokenizer
    return model.eval()


def _nf4_options(info: TunedModelInfo) -> dict[str, Any]:
    """Return transformers' options for holding a base model in NF4 as the run did."""
    return {
        "load_in_4bit": True,
        "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_use_double_quant": True,
        "bnb_4bit_compute_dtype": info.dtype,
    }


def lines_to_load(folder: Path) -> list[str]:
    """Return lines of Python that load a run's tuned model and tokenizer without multicard."""
    model_folder = kept.place_of(folder).absolute()
    info = read_info(model_folder)
    options = f'dtype="{info.dtype}"'
    tokenizer = f"tokenizer = transformers.AutoTokenizer.from_pretrained({str(model_folder)!r})"
    if info.form != "adapter":
        model = (
            f"model = transformers.{info.reader}.from_pretrained({str(model_folder)!r}, {options})"
        )
        return ["import transformers", model, *_quantising_lines(info), tokenizer]
    lines = peft_layers.python_lines()
    if info.nf4:
        values = ", ".join(f"{name}={value!r}" for name, value in _nf4_options(info).items())
        lines.append(f"nf4 = transformers.BitsAndBytesConfig({values})")
        options += ", quantization_config=nf4"
    base = base_folder(model_folder, info)
    return [
        *lines,
        f"base = transformers.{info.reader}.from_pretrained({base!r}, {options})",
        f"model = peft.PeftModel.from_pretrained(base, {str(model_folder)!r})",
        tokenizer,
    ]


def _quantising_lines(info: TunedModelInfo) -> list[str]:
    """Return lines that quantise a loaded model, if it was trained for this.

    Such a model is saved unquantised.
    """
    if info.groupsize is None:
        return []
    part = "model.base_model" if info.tied else "model"
    return [
        "from torchao.quantization.linear_quant_modules import Int8DynActInt4WeightQuantizer",
        (
            f"Int8DynActInt4WeightQuantizer(groupsize={info.groupsize},"
            f" precision=model.dtype).quantize({part})"
        ),
    ]
