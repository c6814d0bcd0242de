"""Refuse checkpoints whose weights are already quantised, by their headers and config.json.

transformers keeps such weights quantised under any method: LoRA on a 4-bit checkpoint is really
QLoRA, and full tuning is impossible. The refusal names the quantisation. Imports no torch.
"""

import json
from pathlib import Path
from typing import Any

from multicard.config.llm import LlmConfig
from multicard.config.llm_models import HfConfig
from multicard.messages import Refusal

QUANTISATION_KEYS = ("quantization_config", "compression_config")  # Keys of config.json.
# safetensors' types of quantised weights. Masks and positions may also have them, so only the
# tensors with names in WEIGHT_SUFFIXES are checked.
QUANTISED_TYPES = ("U8", "I8", "F8", "F4", "I4", "U4", "I32", "F6")
WEIGHT_SUFFIXES = ("weight", "weight_packed", "qweight", "_blocks")


def check_unquantised(config: LlmConfig) -> None:
    """Refuse (ValueError) a folder whose weights are quantised."""
    model = config.model
    if model.folder is None:
        return
    folder = Path(model.folder).expanduser()
    kind = _kind_by_configuration(folder) or _kind_by_headers(folder)
    if kind is None:
        return
    key, value = (
        ("model.path", model.path)
        if isinstance(model, HfConfig)
        else ("model.weights", model.weights)
    )
    raise Refusal(
        "llm.weights-quantised",
        f"{key}={value}: its weights are already quantised ({kind}), so that"
        f" method={config.method.name} would not do what it says; give the folder of the original"
        " model, which method=qlora quantises itself",
        key=key,
        value=value,
        kind=kind,
        method=config.method.name,
    )


def _kind_by_configuration(folder: Path) -> str | None:
    """Return how config.json says the weights are quantised, or None if it does not say so."""
    try:
        values = json.loads((folder / "config.json").read_text("utf-8"))
        parts = [values, *(part for part in values.values() if isinstance(part, dict))]
    except (OSError, ValueError, AttributeError):
        return None  # Another check refuses an unreadable config.json.
    entries = list[dict[str, Any]]()
    for part in parts:
        entries.extend(part[key] for key in QUANTISATION_KEYS if isinstance(part.get(key), dict))
    if not entries:
        return None
    entry = entries[0]
    name = str(entry.get("quant_method") or "quantized")
    bits = entry.get("bits") or entry.get("w_bit")
    if entry.get("load_in_4bit") or entry.get("_load_in_4bit"):
        bits = 4
    elif entry.get("load_in_8bit") or entry.get("_load_in_8bit"):
        bits = 8
    return name if bits is None else f"{name}, {bits} bits"


def _kind_by_headers(folder: Path) -> str | None:
    """Return the name and type of the first quantised weight.

    Returns None if there is none, or if a file cannot be read.
    """
    from safetensors import SafetensorError, safe_open

    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, framework="np") as file:
                for name in file.keys():  # noqa: SIM118
                    kind = (
                        file.get_slice(name).get_dtype() if name.endswith(WEIGHT_SUFFIXES) else ""
                    )
                    if kind.startswith(QUANTISED_TYPES):
                        return f"{name} is {kind}"
        except SafetensorError:
            return None  # Another check refuses unreadable files.
    return None
