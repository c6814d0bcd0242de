"""The text part of a model, which is tuned.

A model that reads images or sounds too has towers for them, and layers that project what they give.
These are frozen, as rows of text never call them.
"""

from itertools import chain
from typing import Any

import transformers
from torch import nn


def reader_of(sizes: Any) -> Any:
    """transformers' class that reads models of this configuration: of text alone,
    or of text and images.
    """
    if type(sizes) in transformers.MODEL_FOR_CAUSAL_LM_MAPPING:
        return transformers.AutoModelForCausalLM
    if type(sizes) in transformers.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING:
        return transformers.AutoModelForImageTextToText
    return transformers.AutoModelForCausalLM  # which says that it knows no such model


def reads_text_alone(model: Any) -> bool:
    return model.config.get_text_config() is model.config


def text_modules(model: Any) -> dict[str, nn.Module]:
    """The modules of the text part, by their names in the
    model: all of a model that reads text alone.
    """
    modules = dict(model.named_modules())
    if reads_text_alone(model):
        return modules
    tops = (model.get_decoder(), model.get_input_embeddings(), model.get_output_embeddings())
    own = {id(part) for part in chain.from_iterable(top.modules() for top in tops)}
    return {name: part for name, part in modules.items() if id(part) in own}


def text_parameters(model: Any) -> set[int]:
    """The `id` of each parameter of the text part."""
    own = text_modules(model).values()
    parameters = chain.from_iterable(part.parameters(recurse=False) for part in own)
    return {id(parameter) for parameter in parameters}


def freeze_others(model: Any) -> None:
    """Freeze what is no part of the text part.
    Unused weights that wait for gradients would stop DDP.
    """
    own = text_parameters(model)
    for parameter in model.parameters():
        if id(parameter) not in own:
            parameter.requires_grad_(False)


def layers(model: Any) -> list[nn.Module]:
    """The layers of the text part."""
    classes = layer_classes(model)
    return [part for part in text_modules(model).values() if type(part).__name__ in classes]


def layer_classes(model: Any) -> list[str]:
    """Names of the layers' classes, by which FSDP shards. transformers lists them for all that such
    models can have: accelerate refuses the names of layers that this one has not.
    """
    there = {type(part).__name__ for part in model.modules()}
    return sorted(there & set(model._no_split_modules or ()))
