"""Find the text part of a model. Only this part is tuned.

A model that also reads images or sounds has encoders for them, and layers that project the
encoders' outputs. These are frozen, because rows of text never call them.
"""

from itertools import chain
from typing import Any

import transformers
from torch import nn


def reader_of(sizes: Any) -> Any:
    """Return the auto class of transformers that reads a model with this configuration.

    Models of text alone and models of text and images have different ones.
    """
    if type(sizes) in transformers.MODEL_FOR_CAUSAL_LM_MAPPING:
        return transformers.AutoModelForCausalLM
    if type(sizes) in transformers.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING:
        return transformers.AutoModelForImageTextToText
    return transformers.AutoModelForCausalLM  # Its error says that there is no such model.


def reads_text_alone(model: Any) -> bool:
    return model.config.get_text_config() is model.config


def text_modules(model: Any) -> dict[str, nn.Module]:
    """Return the modules of the text part, by their names in the whole model."""
    modules = dict(model.named_modules())
    if reads_text_alone(model):
        return modules
    roots = (model.get_decoder(), model.get_input_embeddings(), model.get_output_embeddings())
    text_ids = {id(part) for part in chain.from_iterable(root.modules() for root in roots)}
    return {name: part for name, part in modules.items() if id(part) in text_ids}


def text_parameters(model: Any) -> set[int]:
    """Return the `id` of each parameter in the text part."""
    modules = text_modules(model).values()
    parameters = chain.from_iterable(part.parameters(recurse=False) for part in modules)
    return {id(parameter) for parameter in parameters}


def freeze_outside_text(model: Any) -> None:
    """Freeze all parameters outside the text part.

    DDP would wait forever for the gradients of unused parameters.
    """
    text_ids = text_parameters(model)
    for parameter in model.parameters():
        if id(parameter) not in text_ids:
            parameter.requires_grad_(False)


def layers(model: Any) -> list[nn.Module]:
    """Return the layers of the text part."""
    classes = layer_classes(model)
    return [part for part in text_modules(model).values() if type(part).__name__ in classes]


def layer_classes(model: Any) -> list[str]:
    """Return the class names of the layers, as units for FSDP's sharding.

    transformers lists the classes of all layers that such a model can have. Only the classes in
    this model are returned, because accelerate rejects the others.
    """
    present_classes = {type(part).__name__ for part in model.modules()}
    return sorted(present_classes & set(model._no_split_modules or ()))
