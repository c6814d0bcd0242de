"""What a tuning run kept: what `tuned.json` says of it, and how it is loaded.
Imports torch only inside functions.

Whoever loads it needs transformers, and of adapters PEFT; `lines_to_load` shows how.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from multicard.messages import Refusal, install
from multicard.records import kept

if TYPE_CHECKING:
    from torch import nn

# PEFT's names
ADAPTER_WEIGHTS = "adapter_model.safetensors"
ADAPTER_CONFIG = "adapter_config.json"
# those of transformers
WEIGHTS = "model.safetensors"
MODEL_CONFIG = "config.json"
BASE = "base"  # beside the adapter's folder, where its base model lies nowhere else
# PEFT refuses the torchao that torchtune needs, whatever the adapter. It needs none of it
PEFT_LINES = (
    "import peft.tuners.lora.torchao",
    "peft.tuners.lora.torchao.is_torchao_available = lambda: False",
)


class TunedModelInfo(msgspec.Struct, frozen=True):
    """What `tuned.json` says of the weights beside it.

    form: adapter, which PEFT reads, or model, or int4, both of which transformers reads; int4 is
    quantised.
    reader: the class of transformers that reads the model, or the adapter's base.
    dtype: in which the run held its weights, as torch names it.
    base: the folder of the adapter's base model; None: `base` beside the adapter's own folder, or
    no adapter.
    nf4: the run held the base in NF4.
    groupsize: weights that share a scale, of a model that was trained to be quantised (method=qat)
    and is to be once it
        is read; None of others.
    tied: the output is the embeddings, which are not quantised.
    """

    form: str
    reader: str
    dtype: str
    base: str | None = None
    nf4: bool = False
    groupsize: int | None = None
    tied: bool = False


def read(place: Path) -> TunedModelInfo:
    """What is said of the weights in a folder.

    Raises:
        Refusal: it is not whole.
    """
    weights = {"adapter": ADAPTER_WEIGHTS, "model": WEIGHTS, "int4": WEIGHTS}
    try:
        about = msgspec.json.decode((place / kept.TUNED_MODEL).read_bytes(), type=TunedModelInfo)
        (place / weights[about.form]).stat()
    except (OSError, KeyError, msgspec.MsgspecError) as error:
        raise _unreadable(place, error) from None
    return about


def _unreadable(place: Path, error: Exception) -> Refusal:
    why = (str(error).splitlines() or [type(error).__name__])[0]
    said = (
        f"{place}: the model cannot be read ({why}); train it again by `rerun=true` in its command"
    )
    return Refusal("save.unreadable-model", said, key="save", folder=str(place), reason=why)


def base_of(place: Path, about: TunedModelInfo) -> str:
    """The folder of an adapter's base model."""
    return str((place.parent / BASE).absolute()) if about.base is None else about.base


def load(place: Path) -> "nn.Module":
    """The tuned model, for evaluation on the CPU (NF4: on the GPU, where there is one),
    with its `tokenizer`.

    Adapters are on their base model, in NF4 where the run had it so;
    a model of `method=qat` is quantised.

    Raises:
        Refusal: it is not whole, or a library that reads it is not installed.
    """
    about = read(place)
    try:
        import peft.tuners.lora.torchao
        import torch
        import transformers
    except ImportError as error:
        said = f"{place}: loading it needs {error.name}; run `{install('trl')}`"
        raise Refusal("save.no-library", said, folder=str(place), missing=[error.name]) from None
    reader = getattr(transformers, about.reader)
    dtype = getattr(torch, about.dtype)
    options: dict[str, Any] = {"dtype": dtype}
    if about.nf4:
        options["quantization_config"] = transformers.BitsAndBytesConfig(**_nf4(about))
    try:
        if about.form == "adapter":
            peft.tuners.lora.torchao.is_torchao_available = lambda: False  # pyright: ignore[reportPrivateImportUsage]
            base = reader.from_pretrained(base_of(place, about), **options)
            # without the last option PEFT holds adapters in float32, whatever the run had
            model = peft.PeftModel.from_pretrained(base, str(place), autocast_adapter_dtype=False)
        else:
            model = reader.from_pretrained(place, **options)
        tokenizer = transformers.AutoTokenizer.from_pretrained(place)
    except Exception as error:  # of several libraries
        raise _unreadable(place, error) from None
    if about.groupsize is not None:
        from torchao.quantization.linear_quant_modules import Int8DynActInt4WeightQuantizer

        quantizer = Int8DynActInt4WeightQuantizer(groupsize=about.groupsize, precision=dtype)
        quantizer.quantize(model.base_model if about.tied else model)
    model.tokenizer = tokenizer
    return model.eval()


def _nf4(about: TunedModelInfo) -> dict[str, Any]:
    """transformers' name of how a run held its base in NF4."""
    return {
        "load_in_4bit": True,
        "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_use_double_quant": True,
        "bnb_4bit_compute_dtype": about.dtype,
    }


def lines_to_load(folder: Path) -> list[str]:
    """Lines of Python that load the tuned model of a run and its tokenizer,
    without this project.
    """
    place = kept.place_of(folder).absolute()
    about = read(place)
    options = f'dtype="{about.dtype}"'
    tokenizer = f"tokenizer = transformers.AutoTokenizer.from_pretrained({str(place)!r})"
    if about.form != "adapter":
        model = f"model = transformers.{about.reader}.from_pretrained({str(place)!r}, {options})"
        return ["import transformers", model, *_quantising(about), tokenizer]
    lines = [f"{PEFT_LINES[0]}, transformers", PEFT_LINES[1]]
    if about.nf4:
        values = ", ".join(f"{name}={value!r}" for name, value in _nf4(about).items())
        lines.append(f"nf4 = transformers.BitsAndBytesConfig({values})")
        options += ", quantization_config=nf4"
    return [
        *lines,
        f"base = transformers.{about.reader}.from_pretrained({base_of(place, about)!r}, {options})",
        f"model = peft.PeftModel.from_pretrained(base, {str(place)!r})",
        tokenizer,
    ]


def _quantising(about: TunedModelInfo) -> list[str]:
    """Lines that quantise a model as it was trained to be: its
    weights are kept as they were before that.
    """
    if about.groupsize is None:
        return []
    part = "model.base_model" if about.tied else "model"
    return [
        "from torchao.quantization.linear_quant_modules import Int8DynActInt4WeightQuantizer",
        (
            f"Int8DynActInt4WeightQuantizer(groupsize={about.groupsize},"
            f" precision=model.dtype).quantize({part})"
        ),
    ]
