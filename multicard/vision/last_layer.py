"""Find the last layer of a model in a file of weights, and fit it to the classes of the data."""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from multicard.messages import Message
from multicard.vision.checkpoint_file import State

# A last layer under another name has at most this number of tensors. If a file has more that the
# model does not know, they belong to another model.
MAX_HEAD_TENSORS = 8


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


def head_from_file(
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
    layers = sorted({name.rpartition(".")[0] or name for name in candidates})
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


def head_for_classes(
    head: Head, model_state: State, saved_names: Sequence[str], class_names: Sequence[str]
) -> Head:
    """Give the outputs of a loaded last layer the order of the data's classes.

    If the file has other classes, the layer stays random: its outputs mean something else.
    """
    is_loaded = head.note is None or head.note.code == "weights.head-renamed"
    if not is_loaded or [*saved_names] == [*class_names]:
        return head
    if {*saved_names} == {*class_names}:
        order = torch.tensor([saved_names.index(name) for name in class_names])
        state = {
            name: value[order] if len(value) == len(order) else value
            for name, value in head.state.items()
        }
        note = Message("weights.head-reordered", "the file has the classes in another order")
        return Head(state, head.read, note)
    others = [name for name in saved_names if name not in class_names]
    note = Message(
        "weights.head-of-other-names",
        f"the data lack classes of the file ({', '.join(others[:3])})",
        lacking=others[:20],
    )
    return Head({name: model_state[name] for name in head.state}, head.read, note)


def note_of(weights: str, layers: list[str], why: Message) -> Message:
    """Return the note for the user on the last layer."""
    if why.code == "weights.head-renamed":
        return Message(
            "weights.last-layer-renamed",
            f"model.weights={weights}: the last layer ({', '.join(layers)}) is loaded too: {why}",
            key="model.weights",
            layers=layers,
            why=why,
        )
    if why.code == "weights.head-reordered":
        return Message(
            "weights.last-layer-reordered",
            f"model.weights={weights}: the last layer ({', '.join(layers)}) gets the order of the"
            f" data's classes: {why}",
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
