"""Checkpoints whose weights are quantised already, by their headers and config.json. No torch.

transformers reads them as what they are, so that their weights stay quantised under any method:
LoRA on a 4-bit checkpoint is QLoRA in truth, and all weights cannot be trained. They are refused,
by the name of what they are.
"""

import json
from pathlib import Path
from typing import Any

from multicard.config.llm import LlmConfig
from multicard.config.llm_models import HfConfig
from multicard.messages import Refusal

KEYS = ("quantization_config", "compression_config")  # of config.json
# Types of weights, as safetensors name them, that hold no plain numbers;
# masks and positions may have them too
NARROW = ("U8", "I8", "F8", "F4", "I4", "U4", "I32", "F6")
PACKED = ("weight", "weight_packed", "qweight", "_blocks")


def check(config: LlmConfig) -> None:
    """Refuse (ValueError) a folder of weights that are quantised."""
    model = config.model
    if model.folder is None:
        return
    folder = Path(model.folder).expanduser()
    kind = _of_configuration(folder) or _of_headers(folder)
    if kind is None:
        return
    key, value = (
        ("model.path", model.path)
        if isinstance(model, HfConfig)
        else ("model.weights", model.weights)
    )
    raise Refusal(
        "llm.weights-quantised",
        f"{key}={value}: its weights are quantised already ({kind}), so that"
        f" method={config.method.name} would not be what it says; give the folder of the model"
        " before that, which method=qlora quantises itself",
        key=key,
        value=value,
        kind=kind,
        method=config.method.name,
    )


def _of_configuration(folder: Path) -> str | None:
    """How config.json says that the weights are quantised; None where it says nothing."""
    try:
        values = json.loads((folder / "config.json").read_text("utf-8"))
        parts = [values, *(part for part in values.values() if isinstance(part, dict))]
    except (OSError, ValueError, AttributeError):
        return None  # refused elsewhere
    found = list[dict[str, Any]]()
    for part in parts:
        found.extend(part[key] for key in KEYS if isinstance(part.get(key), dict))
    if not found:
        return None
    said = found[0]
    name = str(said.get("quant_method") or "quantized")
    bits = said.get("bits") or said.get("w_bit")
    if said.get("load_in_4bit") or said.get("_load_in_4bit"):
        bits = 4
    elif said.get("load_in_8bit") or said.get("_load_in_8bit"):
        bits = 8
    return name if bits is None else f"{name}, {bits} bits"


def _of_headers(folder: Path) -> str | None:
    """The type of the first weight that holds no plain numbers; None where all do,
    or cannot be read.
    """
    from safetensors import SafetensorError, safe_open

    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, framework="np") as file:
                for name in file.keys():  # noqa: SIM118
                    kind = file.get_slice(name).get_dtype() if name.endswith(PACKED) else ""
                    if kind.startswith(NARROW):
                        return f"{name} is {kind}"
        except SafetensorError:
            return None  # refused elsewhere
    return None
