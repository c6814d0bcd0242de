"""Weights that a model starts from: torchvision's and timm's own, or a file's. Nothing is unpickled but tensors."""

from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from multicard.config.vision import ModelConfig
from multicard.machine import network
from multicard.messages import Message, Refusal
from multicard.vision import model_names, models

if TYPE_CHECKING:
    from torch import nn

State = dict[str, torch.Tensor]
NOT_BUILT = ("aux1.", "aux2.", "AuxLogits.")  # classifiers of torchvision's GoogLeNet and Inception beside the last
WITHOUT = "num_batches_tracked"  # BatchNorm's count, which its momentum does without


def built(config: ModelConfig, classes: int, image_size: int, grey: bool) -> "nn.Module":
    """The model with the weights that it starts from; `grey` as in `models.build`."""
    model = models.build(config, classes, image_size, grey)
    load(model, config, classes, image_size)
    return model


def load(model: "nn.Module", config: ModelConfig, classes: int, image_size: int) -> Message | None:
    """Load the weights that `config` names into `model`, which `models.build` made of the same arguments. Those that
    are not there, or of another model, are refused. The last layer stays random where the weights have other classes,
    and what is returned says so.
    """
    if config.weights == models.RANDOM:
        return None
    if (file := models.weights_file(config)) is not None:
        return fit(model, _read(file, config.weights), config.weights)
    if not model_names.has(config.name):
        raise Refusal(
            "weights.none-of-model",
            f"model.weights={config.weights}: no library has weights of {config.name}; give a file of them",
            key="model.weights",
            model=config.name,
        )
    fetch = _timm_state if model_names.is_timm(config.name) else _torchvision_state
    return fit(model, fetch(config, classes, image_size), config.weights)


def fit(model: "nn.Module", state: State, weights: str) -> Message | None:
    """Load `state`, which has to have each key of `model` in its shape and no other, but for `load`'s last layer."""
    own, heads = model.state_dict(), tuple(f"{name}." for name in models.heads(model))
    state = {name: value for name, value in state.items() if not name.startswith(NOT_BUILT)}
    is_new = any(n.startswith(heads) and (n not in state or state[n].shape != own[n].shape) for n in own)
    if is_new:
        state = {n: own[n] for n in own if n.startswith(heads)} | {
            name: value for name, value in state.items() if not name.startswith(heads)
        }
    problems = [f"lacks {name}" for name in own if name not in state and not name.endswith(WITHOUT)]
    problems += [f"has {name} beside them" for name in state if name not in own]
    other = [name for name in own if name in state and own[name].shape != state[name].shape]
    problems += [f"{n} is {tuple(state[n].shape)} and not {tuple(own[n].shape)}" for n in other]
    if problems:
        more = f" and {len(problems) - 3} more" if len(problems) > 3 else ""
        raise Refusal(
            "weights.of-another-model",
            f"model.weights={weights}: not the weights of this model=: {', '.join(problems[:3])}{more}; use its own",
            key="model.weights",
            problems=problems[:3],
            count=len(problems),
        )
    model.load_state_dict(state, strict=False)
    if not is_new:
        return None
    layers = models.heads(model)
    return Message(
        "weights.new-last-layer",
        f"model.weights={weights}: the last layer ({', '.join(layers)}) is new: the classes are others",
        key="model.weights",
        layers=list(layers),
    )


def _read(path: Path, weights: str) -> State:
    """The tensors of a file, of what training scripts save around them too (timm's own reader)."""
    from timm.models import load_state_dict

    try:
        state = load_state_dict(str(path), weights_only=True)
        if not state or not all(isinstance(value, torch.Tensor) for value in state.values()):
            raise ValueError("other things than tensors")
    except Exception as error:  # of several libraries, which have no common base
        why = f"{type(error).__name__}: {error}".splitlines()[0].partition(". ")[0]
        raise Refusal(
            "weights.unreadable",
            f"model.weights={weights}: cannot be read as tensors by name ({why}); save model.state_dict()",
            key="model.weights",
            file=str(path),
            why=why,
        ) from None
    return state


def _torchvision_state(config: ModelConfig, _: int, image_size: int) -> State:
    from torchvision.models import get_model_weights, vision_transformer

    weights = get_model_weights(config.name)["DEFAULT"]
    _require_file(weights.url)
    state = weights.get_state_dict(progress=False, check_hash=True, weights_only=True)
    if not config.name.startswith("vit_"):
        return state
    return dict(
        vision_transformer.interpolate_embeddings(image_size, state["conv_proj.weight"].shape[-1], OrderedDict(state))
    )


def _require_file(url: str) -> None:
    """Refuse weights that are neither in torch's cache nor to be fetched."""
    path = Path(torch.hub.get_dir()) / "checkpoints" / Path(url).name
    why = None if path.is_file() else network.problem(url)
    if why is not None:
        raise Refusal(
            "weights.not-fetched",
            f"model.weights=pretrained: no {path}, and it cannot be fetched ({why}); fetch {url} elsewhere and put it "
            "there, or give it as `model.weights=FILE`",
            key="model.weights",
            file=str(path),
            url=url,
            why=why,
        )


def _timm_state(config: ModelConfig, classes: int, image_size: int) -> State:
    """What timm makes of its weights for this model; nothing is asked of the network for what is in the cache."""
    import timm
    from huggingface_hub import constants, try_to_load_from_cache

    name, before = config.name.removeprefix(model_names.TIMM), constants.HF_HUB_OFFLINE
    own = timm.get_pretrained_cfg(name)
    if own is None or not own.has_weights:
        raise Refusal(
            "weights.none-of-timm",
            f"model.weights=pretrained: timm has no weights of {name}; use `model.weights=random`, or give a file",
            key="model.weights",
            model=name,
        )
    files = own.hf_hub_filename or "pytorch_model.bin", "model.safetensors"
    cached = own.hf_hub_id and any(isinstance(try_to_load_from_cache(own.hf_hub_id, file), str) for file in files)
    if not own.hf_hub_id:
        _require_file(str(own.url))
    elif not cached:
        why = "HF_HUB_OFFLINE is set" if before else network.problem(constants.ENDPOINT)
        if why is not None:
            raise Refusal(
                "weights.not-fetched-from-hub",
                f"model.weights=pretrained: {own.hf_hub_id} cannot be fetched ({why}); on a machine with network, "
                f"run `hf download {own.hf_hub_id}`, and copy its cache, or give `model.weights=FILE`",
                key="model.weights",
                repository=own.hf_hub_id,
                why=why,
            )
    try:
        constants.HF_HUB_OFFLINE = bool(cached) or before
        state = models.timm_model(config, classes, image_size, pretrained=True)
    finally:
        constants.HF_HUB_OFFLINE = before
    is_own = own.num_classes == classes  # else timm's last layer is random
    return {n: v for n, v in state.state_dict().items() if is_own or not n.startswith(tuple(models.heads(state)))}
