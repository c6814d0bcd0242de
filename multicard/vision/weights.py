"""Load the weights that a model starts from: torchvision's or timm's, or those in a file.

Only tensors and plain values are unpickled.
"""

import math
import re
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from multicard.config.vision import ModelConfig
from multicard.machine import network
from multicard.messages import Message, Refusal
from multicard.vision import (
    checkpoint_classes,
    checkpoint_file,
    last_layer,
    model_names,
    models,
    older_names,
)
from multicard.vision.checkpoint_file import State
from multicard.vision.kept_model import saved_classes

if TYPE_CHECKING:
    from torch import nn

TOP = "."  # The name of a set of weights that has no prefix.
# A word in the prefix of weights that were averaged over training.
AVERAGED = re.compile(r"(?<![a-z])(ema|swa|avg|averaged?|teacher|shadow)(?![a-z])", re.IGNORECASE)
# torchvision's GoogLeNet and Inception have further classifiers, which the models here do without.
AUXILIARY_CLASSIFIERS = ("aux1.", "aux2.", "AuxLogits.")
# The names of a transformer's tensor with a position for each patch of an image. It may have a few
# other positions, such as one for the class.
POSITIONS = re.compile(r"pos_embed(ding)?$")
MAX_OTHER_POSITIONS = 5
# BatchNorm counts batches in this buffer. A fixed momentum does not use it, so it may be missing.
OPTIONAL_BUFFER = "num_batches_tracked"


def build_with_weights(
    config: ModelConfig, class_names: Sequence[str], image_size: int
) -> "nn.Module":
    """Build the model, and load the weights that it starts from."""
    classes = len(class_names)
    model = models.build(config, classes, image_size)
    load(model, config, classes, image_size, class_names)
    return model


def load(
    model: "nn.Module",
    config: ModelConfig,
    classes: int,
    image_size: int,
    class_names: Sequence[str] = (),
) -> list[Message]:
    """Load the weights that `config` names into a model.

    Weights that do not exist, or that belong to another model, are refused. The last layer stays
    random if the weights have no such layer.

    Args:
        model: The result of `models.build` for the same arguments.
        class_names: The names of the data's classes in their order, if they are known.

    Returns:
        Notes for the user on the weights.
    """
    if config.weights == models.RANDOM:
        return []
    if (file := models.weights_file(config)) is not None:
        checkpoint = checkpoint_file.read_checkpoint(file, config.weights)
        saved_names = saved_classes(file)
        saved_names = saved_names or checkpoint_classes.names_for(checkpoint.names, class_names)
        return fit(model, checkpoint.tensors, config, saved_names, class_names, image_size)
    if not model_names.has(config.name):
        raise Refusal(
            "weights.none-of-model",
            f"model.weights={config.weights}: neither torchvision nor timm has weights of"
            f" {config.name}; give a file with weights",
            key="model.weights",
            model=config.name,
        )
    fetch = _timm_state if model_names.is_timm(config.name) else _torchvision_state
    return fit(model, fetch(config, classes, image_size), config)


def fit(
    model: "nn.Module",
    tensors: State,
    config: ModelConfig,
    saved_names: Sequence[str] = (),
    class_names: Sequence[str] = (),
    image_size: int | None = None,
) -> list[Message]:
    """Load tensors into a model. They must have each key of the model in its shape, and no other.

    The last layer is an exception, as in `load`. The names of the tensors may share a prefix, such
    as `model.` or `state_dict_ema.`. If there are several sets of weights, one is taken.

    Args:
        saved_names: The names of the file's classes in their order. Empty if they are not known.
        class_names: The same for the data.
        image_size: Side of the model's images, if weights for another size are to be named so.
    """
    model_state = model.state_dict()
    tensors = {older_names.current_name(name, config): value for name, value in tensors.items()}
    layers = models.heads(model)
    heads = tuple(f"{name}." for name in layers)
    body = [
        name
        for name in model_state
        if not name.startswith(heads) and not name.endswith(OPTIONAL_BUFFER)
    ]
    prefixes = _sets_of_weights(tensors, model_state, body)
    prefix = _chosen_prefix(prefixes, config)
    state = {
        name.removeprefix(prefix): value
        for name, value in tensors.items()
        if name.startswith(prefix)
    }
    state = {
        name: value for name, value in state.items() if not name.startswith(AUXILIARY_CLASSIFIERS)
    }
    other_prefixes = [other for other in prefixes if other != prefix]
    # An empty prefix of another set would claim every name, so it is left out.
    used_prefixes = (prefix, *[other for other in other_prefixes if other])
    unused_names = [name for name in tensors if not name.startswith(used_prefixes)]
    notes = []
    unused_tensors = {}
    if not other_prefixes:
        unused_tensors = {name: tensors[name] for name in unused_names}
    head = last_layer.head_from_file(model_state, state, unused_tensors, heads)
    if saved_names and class_names:
        head = last_layer.head_for_classes(head, model_state, saved_names, class_names)
    state = {
        name: value
        for name, value in state.items()
        if name not in head.read and not name.startswith(heads)
    }
    state |= head.state
    unused_names = [name for name in unused_names if name not in head.read]
    if prefix and (other_prefixes or unused_names):
        notes.append(
            checkpoint_file.note_of_choice(
                config.weights, _set_name(prefix), [*map(_set_name, other_prefixes)], unused_names
            )
        )
    elif other_prefixes:
        state = {
            name: value
            for name, value in state.items()
            if not name.startswith(tuple(other_prefixes))
        }
        notes.append(
            checkpoint_file.note_of_choice(
                config.weights, _set_name(prefix), [*map(_set_name, other_prefixes)], []
            )
        )
    problems = [
        f"lacks {name}"
        for name in model_state
        if name not in state and not name.endswith(OPTIONAL_BUFFER)
    ]
    problems += [f"has {name} in addition" for name in state if name not in model_state]
    mismatched = [
        name
        for name in model_state
        if name in state and model_state[name].shape != state[name].shape
    ]
    if image_size is not None and not problems:
        _require_positions_of_size(model_state, state, mismatched, image_size, config)
    problems += [
        f"{n} is {tuple(state[n].shape)}, not {tuple(model_state[n].shape)}" for n in mismatched
    ]
    if problems:
        more = f" and {len(problems) - 3} more" if len(problems) > 3 else ""
        raise Refusal(
            "weights.of-another-model",
            f"model.weights={config.weights}: these are not the weights of this model=:"
            f" {', '.join(problems[:3])}{more}; use weights of the same model",
            key="model.weights",
            problems=problems[:3],
            count=len(problems),
        )
    _require_real_numbers(model_state, state, config)
    # Some modules (MNASNet) refuse tensors without the version of their names and shapes. They have
    # those of this model.
    versioned = OrderedDict(state)
    versioned._metadata = model_state._metadata  # pyright: ignore[reportAttributeAccessIssue]
    model.load_state_dict(versioned, strict=False)
    if head.note is not None:
        notes.append(last_layer.note_of(config.weights, layers, head.note))
    return notes


def _require_positions_of_size(
    model_state: State, state: State, mismatched: list[str], image_size: int, config: ModelConfig
) -> None:
    """Refuse a transformer's weights for images of another size, with the size that they have."""
    if len(mismatched) != 1 or POSITIONS.search(mismatched[0]) is None:
        return
    name = mismatched[0]
    if state[name].ndim != 3 or state[name].shape[-1] != model_state[name].shape[-1]:
        return
    saved = state[name].shape[1]
    wanted = model_state[name].shape[1]
    for others in range(MAX_OTHER_POSITIONS + 1):
        side, saved_side = (math.isqrt(max(0, count - others)) for count in (wanted, saved))
        is_square = side**2 + others == wanted and saved_side**2 + others == saved
        if is_square and side and image_size % side == 0:
            size = saved_side * image_size // side
            raise Refusal(
                "weights.of-another-size",
                f"model.weights={config.weights}: {name} has positions for images of {size} px, not"
                f" {image_size}; use `dataset.image_size={size}`",
                key="model.weights",
                name=name,
                saved=size,
                size=image_size,
            )


def _require_real_numbers(model_state: State, state: State, config: ModelConfig) -> None:
    """Refuse quantized weights: without their scales, their whole numbers mean nothing."""
    for name, value in state.items():
        if model_state[name].is_floating_point() and not value.is_floating_point():
            kind = str(value.dtype).removeprefix("torch.")
            raise Refusal(
                "weights.whole-numbers",
                f"model.weights={config.weights}: {name} holds whole numbers ({kind}), as quantized"
                " weights do; use the weights from before they were quantized",
                key="model.weights",
                name=name,
                kind=kind,
            )


def _set_name(prefix: str) -> str:
    """Return the name of a set of weights for `model.weights_from`."""
    return prefix.removesuffix(".") or TOP


def _sets_of_weights(tensors: State, model_state: State, body: list[str]) -> list[str]:
    """Return the prefixes under which the file has all of the model's tensors in their shapes.

    The last layer may be missing. Averaged weights come first, as timm takes them. If no prefix
    has all tensors, only the prefix that has most is returned.

    Args:
        body: The names of all tensors that a set must have.
    """
    counts: dict[str, int] = {"": 0}
    body_names = {*body}
    for name, value in tensors.items():
        parts = name.split(".")
        for start in range(len(parts)):
            name_in_model = ".".join(parts[start:])
            if name_in_model in body_names:
                prefix = name.removesuffix(name_in_model)
                counts[prefix] = counts.get(prefix, 0) + (
                    value.shape == model_state[name_in_model].shape
                )
    most_matches = max(counts.values())
    best_prefixes = [prefix for prefix, count in counts.items() if count == most_matches > 0] or [
        ""
    ]
    if most_matches < len(body):
        best_prefixes = best_prefixes[:1]
    return sorted(best_prefixes, key=lambda prefix: AVERAGED.search(prefix) is None)


def _chosen_prefix(prefixes: list[str], config: ModelConfig) -> str:
    """Return the prefix of the set that `model.weights_from` names, or the first one."""
    if config.weights_from is None:
        return prefixes[0]
    names = [*map(_set_name, prefixes)]
    if config.weights_from not in names:
        raise Refusal(
            "weights.no-set",
            f"model.weights_from={config.weights_from}: {config.weights} has no weights of this"
            f" model under this name; it has {', '.join(names)}",
            key="model.weights_from",
            value=config.weights_from,
            names=names,
        )
    return prefixes[names.index(config.weights_from)]


def _torchvision_state(config: ModelConfig, _: int, image_size: int) -> State:
    from torchvision.models import get_model_weights, vision_transformer

    weights = get_model_weights(config.name)["DEFAULT"]
    _require_file(weights.url)
    state = weights.get_state_dict(progress=False, check_hash=True, weights_only=True)
    if not config.name.startswith("vit_"):
        return state
    return dict(
        vision_transformer.interpolate_embeddings(
            image_size, state["conv_proj.weight"].shape[-1], OrderedDict(state)
        )
    )


def _require_file(url: str) -> None:
    """Refuse weights that are not in torch's cache and cannot be fetched."""
    path = Path(torch.hub.get_dir()) / "checkpoints" / Path(url).name
    why = None if path.is_file() else network.problem(url)
    if why is not None:
        raise Refusal(
            "weights.not-fetched",
            f"model.weights=pretrained: {path} does not exist, and cannot be fetched ({why}); fetch"
            f" {url} on another machine and put it there, or give it as `model.weights=FILE`",
            key="model.weights",
            file=str(path),
            url=url,
            why=why,
        )


def _timm_state(config: ModelConfig, classes: int, image_size: int) -> State:
    """Return the tensors that timm makes of its weights for this model.

    If the weights are in the cache, no request goes over the network.
    """
    import timm
    from huggingface_hub import constants, try_to_load_from_cache

    name = config.name.removeprefix(model_names.TIMM)
    was_offline = constants.HF_HUB_OFFLINE
    timm_config = timm.get_pretrained_cfg(name)
    if timm_config is None or not timm_config.has_weights:
        raise Refusal(
            "weights.none-of-timm",
            f"model.weights=pretrained: timm has no weights of {name}; use `model.weights=random`,"
            " or give a file",
            key="model.weights",
            model=name,
        )
    files = timm_config.hf_hub_filename or "pytorch_model.bin", "model.safetensors"
    cached = timm_config.hf_hub_id and any(
        isinstance(try_to_load_from_cache(timm_config.hf_hub_id, file), str) for file in files
    )
    if not timm_config.hf_hub_id:
        _require_file(str(timm_config.url))
    elif not cached:
        why = "HF_HUB_OFFLINE is set" if was_offline else network.problem(constants.ENDPOINT)
        if why is not None:
            raise Refusal(
                "weights.not-fetched-from-hub",
                f"model.weights=pretrained: {timm_config.hf_hub_id} cannot be fetched ({why});"
                f" on a machine with network, run `hf download {timm_config.hf_hub_id}`, and copy"
                " its cache, or give `model.weights=FILE`",
                key="model.weights",
                repository=timm_config.hf_hub_id,
                why=why,
            )
    try:
        constants.HF_HUB_OFFLINE = bool(cached) or was_offline
        timm_model = models.timm_model(config, classes, image_size, pretrained=True)
    finally:
        constants.HF_HUB_OFFLINE = was_offline
    state = timm_model.state_dict()
    heads = tuple(models.heads(timm_model))
    if timm_config.num_classes == classes:
        return state
    # timm left the last layer random. Give it the shape of timm's classes, so that `fit` drops it.
    return {
        name: (
            value.new_empty((timm_config.num_classes, *value.shape[1:]), device="meta")
            if name.startswith(heads)
            else value
        )
        for name, value in state.items()
    }
