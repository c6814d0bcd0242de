"""Weights that a model starts from: torchvision's and timm's own, or a file's.
Nothing is unpickled but tensors.
"""

import re
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch

from multicard.config.vision import ModelConfig
from multicard.machine import network
from multicard.messages import Message, Refusal
from multicard.vision import checkpoint_file, model_names, models
from multicard.vision.checkpoint_file import State

if TYPE_CHECKING:
    from torch import nn

TOP = "."  # the name of weights that have no prefix
# a word of a name
AVERAGED = re.compile(r"(?<![a-z])(ema|swa|avg|averaged?|teacher|shadow)(?![a-z])", re.IGNORECASE)
MOST_OF_HEAD = 8  # tensors that are no part of the model otherwise; more are of another model
# classifiers of torchvision's GoogLeNet and Inception beside the last
NOT_BUILT = ("aux1.", "aux2.", "AuxLogits.")
WITHOUT = "num_batches_tracked"  # BatchNorm's count, which its momentum does without


def built(config: ModelConfig, classes: int, image_size: int) -> "nn.Module":
    """The model with the weights that it starts from."""
    model = models.build(config, classes, image_size)
    load(model, config, classes, image_size)
    return model


def load(model: "nn.Module", config: ModelConfig, classes: int, image_size: int) -> list[Message]:
    """Load the weights that `config` names into `model`, which `models.build` made of the same
    arguments. Those that are not there, or of another model, are refused.
    The last layer stays random where the weights have no such layer.

    Returns:
        What has to be said of them.
    """
    if config.weights == models.RANDOM:
        return []
    if (file := models.weights_file(config)) is not None:
        return fit(model, checkpoint_file.read(file, config.weights), config)
    if not model_names.has(config.name):
        raise Refusal(
            "weights.none-of-model",
            f"model.weights={config.weights}: no library has weights of {config.name}; give a file"
            " of them",
            key="model.weights",
            model=config.name,
        )
    fetch = _timm_state if model_names.is_timm(config.name) else _torchvision_state
    return fit(model, fetch(config, classes, image_size), config)


def fit(model: "nn.Module", tensors: State, config: ModelConfig) -> list[Message]:
    """Load tensors, which have to have each key of `model` in its shape and no other,
    but for `load`'s last layer.

    Their names may have a prefix in common, as `model.` or `state_dict_ema.`;
    of several sets one is taken.
    """
    own = model.state_dict()
    layers = models.heads(model)
    heads = tuple(f"{name}." for name in layers)
    body = [name for name in own if not name.startswith(heads) and not name.endswith(WITHOUT)]
    found = _sets_of_weights(tensors, own, body)
    prefix = _chosen(found, config)
    state = {
        name.removeprefix(prefix): value
        for name, value in tensors.items()
        if name.startswith(prefix)
    }
    state = {name: value for name, value in state.items() if not name.startswith(NOT_BUILT)}
    others = [other for other in found if other != prefix]
    beside = [
        name
        for name in tensors
        if not name.startswith(prefix) and not any(o and name.startswith(o) for o in others)
    ]
    notes = []
    head = _head(own, state, {name: tensors[name] for name in beside if not others}, heads)
    state = {
        name: value
        for name, value in state.items()
        if name not in head.read and not name.startswith(heads)
    }
    state |= head.state
    beside = [name for name in beside if name not in head.read]
    if prefix and (others or beside):
        notes.append(
            checkpoint_file.note_of_choice(
                config.weights, _named(prefix), [*map(_named, others)], beside
            )
        )
    elif others:
        state = {name: value for name, value in state.items() if not name.startswith(tuple(others))}
        notes.append(
            checkpoint_file.note_of_choice(
                config.weights, _named(prefix), [*map(_named, others)], []
            )
        )
    problems = [f"lacks {name}" for name in own if name not in state and not name.endswith(WITHOUT)]
    problems += [f"has {name} beside them" for name in state if name not in own]
    other = [name for name in own if name in state and own[name].shape != state[name].shape]
    problems += [f"{n} is {tuple(state[n].shape)} and not {tuple(own[n].shape)}" for n in other]
    if problems:
        more = f" and {len(problems) - 3} more" if len(problems) > 3 else ""
        raise Refusal(
            "weights.of-another-model",
            f"model.weights={config.weights}: not the weights of this model=:"
            f" {', '.join(problems[:3])}{more}; use its own",
            key="model.weights",
            problems=problems[:3],
            count=len(problems),
        )
    model.load_state_dict(state, strict=False)
    if head.note is not None:
        notes.append(_of_last_layer(config.weights, layers, head.note))
    return notes


def _named(prefix: str) -> str:
    """A set of weights as `model.weights_from` names it."""
    return prefix.removesuffix(".") or TOP


def _sets_of_weights(tensors: State, own: State, body: list[str]) -> list[str]:
    """The prefixes with which tensors have all names of the model but its last layer's, in their
    shapes; averaged ones first, as timm takes them. Where none has all, the one that has most.
    """
    counts: dict[str, int] = {"": 0}
    known = {*body}
    for name, value in tensors.items():
        parts = name.split(".")
        for start in range(len(parts)):
            rest = ".".join(parts[start:])
            if rest in known:
                prefix = name.removesuffix(rest)
                counts[prefix] = counts.get(prefix, 0) + (value.shape == own[rest].shape)
    most = max(counts.values())
    whole = [prefix for prefix, count in counts.items() if count == most > 0] or [""]
    if most < len(body):
        whole = whole[:1]
    return sorted(whole, key=lambda prefix: AVERAGED.search(prefix) is None)


def _chosen(found: list[str], config: ModelConfig) -> str:
    if config.weights_from is None:
        return found[0]
    names = [*map(_named, found)]
    if config.weights_from not in names:
        raise Refusal(
            "weights.no-set",
            f"model.weights_from={config.weights_from}: {config.weights} has no weights of this"
            f" model under that name; it has {', '.join(names)}",
            key="model.weights_from",
            value=config.weights_from,
            names=names,
        )
    return found[names.index(config.weights_from)]


class Head(NamedTuple):
    """What the last layer gets of a file.

    state: its tensors, by the model's names. read: the names in the file that were taken for it, or
    left out.
    note: why it is new, or under which name it was saved; None where all is as in the model.
    """

    state: State
    read: set[str]
    note: Message | None


def _head(own: State, state: State, beside: State, heads: tuple[str, ...]) -> Head:
    """The last layer from tensors of its own name,
    else from the only layer of another name that has its inputs.

    Args:
        state: tensors by the model's names. beside: others of the file, by their own.
    """
    mine = {name: own[name] for name in own if name.startswith(heads)}
    if all(name in state and state[name].shape == value.shape for name, value in mine.items()):
        return Head({name: state[name] for name in mine}, set(), None)
    under = {name for name in state if name.startswith(heads)}
    saved = {name: value for name, value in state.items() if name in under or name not in own}
    saved |= {name: value for name, value in beside.items() if value.ndim}
    if len(saved) > MOST_OF_HEAD:  # others than those under its name are of another model
        saved = {name: saved[name] for name in under}
    layers = sorted({name.rpartition(".")[0] for name in saved})
    weight = next((value for name, value in mine.items() if name.endswith("weight")), None)
    if not saved or weight is None:
        return Head(mine, {*saved}, Message("weights.head-absent", "the file has none"))
    (layer, *more) = layers
    matrix = saved.get(f"{layer}.weight")
    if more or matrix is None or matrix.shape[1:] != weight.shape[1:]:
        note = Message(
            "weights.head-of-other-layers",
            f"the file has {', '.join(layers[:3])} there",
            layers=layers,
        )
        return Head(mine, {*saved}, note)
    if matrix.shape != weight.shape:
        note = Message(
            "weights.head-of-other-classes",
            f"the file has {matrix.shape[0]} classes, and the data {weight.shape[0]}",
            saved=matrix.shape[0],
            classes=weight.shape[0],
        )
        return Head(mine, {*saved}, note)
    renamed = {
        name: saved.get(f"{layer}.{name.rpartition('.')[2]}", value) for name, value in mine.items()
    }
    return Head(
        renamed,
        {*saved},
        Message("weights.head-renamed", f"the file calls it {layer}", layer=layer),
    )


def _of_last_layer(weights: str, layers: list[str], why: Message) -> Message:
    """What became of the last layer."""
    if why.code == "weights.head-renamed":
        return Message(
            "weights.last-layer-renamed",
            f"model.weights={weights}: the last layer ({', '.join(layers)}) is read too: {why}",
            key="model.weights",
            layers=layers,
            why=why,
        )
    return Message(
        "weights.new-last-layer",
        f"model.weights={weights}: the last layer ({', '.join(layers)}) is new: {why}",
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
    """Refuse weights that are neither in torch's cache nor to be fetched."""
    path = Path(torch.hub.get_dir()) / "checkpoints" / Path(url).name
    why = None if path.is_file() else network.problem(url)
    if why is not None:
        raise Refusal(
            "weights.not-fetched",
            f"model.weights=pretrained: no {path}, and it cannot be fetched ({why}); fetch"
            f" {url} elsewhere and put it there, or give it as `model.weights=FILE`",
            key="model.weights",
            file=str(path),
            url=url,
            why=why,
        )


def _timm_state(config: ModelConfig, classes: int, image_size: int) -> State:
    """What timm makes of its weights for this model;
    nothing is asked of the network for what is in the cache.
    """
    import timm
    from huggingface_hub import constants, try_to_load_from_cache

    name = config.name.removeprefix(model_names.TIMM)
    before = constants.HF_HUB_OFFLINE
    own = timm.get_pretrained_cfg(name)
    if own is None or not own.has_weights:
        raise Refusal(
            "weights.none-of-timm",
            f"model.weights=pretrained: timm has no weights of {name}; use `model.weights=random`,"
            " or give a file",
            key="model.weights",
            model=name,
        )
    files = own.hf_hub_filename or "pytorch_model.bin", "model.safetensors"
    cached = own.hf_hub_id and any(
        isinstance(try_to_load_from_cache(own.hf_hub_id, file), str) for file in files
    )
    if not own.hf_hub_id:
        _require_file(str(own.url))
    elif not cached:
        why = "HF_HUB_OFFLINE is set" if before else network.problem(constants.ENDPOINT)
        if why is not None:
            raise Refusal(
                "weights.not-fetched-from-hub",
                f"model.weights=pretrained: {own.hf_hub_id} cannot be fetched ({why}); on a machine"
                f" with network, run `hf download {own.hf_hub_id}`, and copy its cache, or give"
                " `model.weights=FILE`",
                key="model.weights",
                repository=own.hf_hub_id,
                why=why,
            )
    try:
        constants.HF_HUB_OFFLINE = bool(cached) or before
        state = models.timm_model(config, classes, image_size, pretrained=True)
    finally:
        constants.HF_HUB_OFFLINE = before
    found = state.state_dict()
    heads = tuple(models.heads(state))
    if own.num_classes == classes:
        return found
    # timm's last layer is random then: it is left out for its shape, which is that of other classes
    return {
        name: (
            value.new_empty((own.num_classes, *value.shape[1:]), device="meta")
            if name.startswith(heads)
            else value
        )
        for name, value in found.items()
    }
