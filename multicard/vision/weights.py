"""Load the weights that a model starts from: torchvision's or timm's, or those in a file.

Only tensors and plain values are unpickled.
"""

import re
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch

from multicard.config.vision import ModelConfig
from multicard.machine import network
from multicard.messages import Message, Refusal
from multicard.vision import checkpoint_file, model_names, models, older_names
from multicard.vision.checkpoint_file import State

if TYPE_CHECKING:
    from torch import nn

TOP = "."  # The name of a set of weights that has no prefix.
# A word in the prefix of weights that were averaged over training.
AVERAGED = re.compile(r"(?<![a-z])(ema|swa|avg|averaged?|teacher|shadow)(?![a-z])", re.IGNORECASE)
# A last layer under another name has at most this number of tensors. If a file has more that the
# model does not know, they belong to another model.
MAX_HEAD_TENSORS = 8
# torchvision's GoogLeNet and Inception have further classifiers, which the models here do without.
AUXILIARY_CLASSIFIERS = ("aux1.", "aux2.", "AuxLogits.")
# BatchNorm counts batches in this buffer. A fixed momentum does not use it, so it may be missing.
OPTIONAL_BUFFER = "num_batches_tracked"


def build_with_weights(config: ModelConfig, classes: int, image_size: int) -> "nn.Module":
    """Build the model, and load the weights that it starts from."""
    model = models.build(config, classes, image_size)
    load(model, config, classes, image_size)
    return model


def load(model: "nn.Module", config: ModelConfig, classes: int, image_size: int) -> list[Message]:
    """Load the weights that `config` names into a model.

    Weights that do not exist, or that belong to another model, are refused. The last layer stays
    random if the weights have no such layer.

    Args:
        model: The result of `models.build` for the same arguments.

    Returns:
        Notes for the user on the weights.
    """
    if config.weights == models.RANDOM:
        return []
    if (file := models.weights_file(config)) is not None:
        return fit(model, checkpoint_file.read(file, config.weights), config)
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


def fit(model: "nn.Module", tensors: State, config: ModelConfig) -> list[Message]:
    """Load tensors into a model. They must have each key of the model in its shape, and no other.

    The last layer is an exception, as in `load`. The names of the tensors may share a prefix, such
    as `model.` or `state_dict_ema.`. If there are several sets of weights, one is taken.
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
    head = _head_from_file(model_state, state, unused_tensors, heads)
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
    # Some modules (MNASNet) refuse tensors without the version of their names and shapes. They have
    # those of this model.
    versioned = OrderedDict(state)
    versioned._metadata = model_state._metadata  # pyright: ignore[reportAttributeAccessIssue]
    model.load_state_dict(versioned, strict=False)
    if head.note is not None:
        notes.append(_last_layer_note(config.weights, layers, head.note))
    return notes


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


class Head(NamedTuple):
    """The last layer as it is loaded from a file.

    Attributes:
        state: The layer's tensors, by the model's names.
        read: The file's names that were used for it, or left out on purpose.
        note: Why the layer stays random, or under which name it was saved. None if the file has it
            under the model's name.
    """

    state: State
    read: set[str]
    note: Message | None


def _head_from_file(
    model_state: State, state: State, unused_tensors: State, heads: tuple[str, ...]
) -> Head:
    """Return the last layer from a file.

    It has the model's name there, or it is the only layer of another name with the same inputs.

    Args:
        model_state: The model's tensors.
        state: The file's tensors, by the model's names.
        unused_tensors: Other tensors of the file, by their own names.
        heads: The prefixes of the last layer's tensors in the model.
    """
    head_state = {name: model_state[name] for name in model_state if name.startswith(heads)}
    if all(
        name in state and state[name].shape == value.shape for name, value in head_state.items()
    ):
        return Head({name: state[name] for name in head_state}, set(), None)
    head_names = {name for name in state if name.startswith(heads)}
    candidates = {
        name: value
        for name, value in state.items()
        if name in head_names or name not in model_state
    }
    candidates |= {name: value for name, value in unused_tensors.items() if value.ndim}
    if len(candidates) > MAX_HEAD_TENSORS:  # Only the tensors under the layer's name can be meant.
        candidates = {name: candidates[name] for name in head_names}
    layers = sorted({name.rpartition(".")[0] for name in candidates})
    weight = next((value for name, value in head_state.items() if name.endswith("weight")), None)
    if not candidates or weight is None:
        return Head(head_state, {*candidates}, Message("weights.head-absent", "the file has none"))
    (layer, *other_layers) = layers
    matrix = candidates.get(f"{layer}.weight")
    if other_layers or matrix is None or matrix.shape[1:] != weight.shape[1:]:
        note = Message(
            "weights.head-of-other-layers",
            f"the file has {', '.join(layers[:3])} in its place",
            layers=layers,
        )
        return Head(head_state, {*candidates}, note)
    if matrix.shape != weight.shape:
        note = Message(
            "weights.head-of-other-classes",
            f"the file has {matrix.shape[0]} classes, and the data {weight.shape[0]}",
            saved=matrix.shape[0],
            classes=weight.shape[0],
        )
        return Head(head_state, {*candidates}, note)
    renamed = {
        name: candidates.get(f"{layer}.{name.rpartition('.')[2]}", value)
        for name, value in head_state.items()
    }
    return Head(
        renamed,
        {*candidates},
        Message("weights.head-renamed", f"the file calls this layer {layer}", layer=layer),
    )


def _last_layer_note(weights: str, layers: list[str], why: Message) -> Message:
    """Return the note for the user on the last layer."""
    if why.code == "weights.head-renamed":
        return Message(
            "weights.last-layer-renamed",
            f"model.weights={weights}: the last layer ({', '.join(layers)}) is loaded too: {why}",
            key="model.weights",
            layers=layers,
            why=why,
        )
    return Message(
        "weights.new-last-layer",
        f"model.weights={weights}: the last layer ({', '.join(layers)}) stays random: {why}",
        key="model.weights",
        layers=layers,
        why=why,
    )


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
