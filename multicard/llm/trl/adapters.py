"""PEFT's adapters of a model of transformers, with the weights that torchtune draws for them."""

import re
from typing import Any

import torch
import transformers
from peft import LoraConfig
from torch import nn

from multicard.config.llm import LlmConfig
from multicard.config.llm_models import HfConfig
from multicard.llm import methods, models
from multicard.llm.drawn_weights import DTYPES, weights
from multicard.llm.torchtune_components import RandomWeight
from multicard.llm.trl.text_part import text_modules
from multicard.messages import Refusal


def linears(model: Any) -> dict[str, nn.Module]:
    """Return the linears of the tuned layers, by name.

    GPT-2's linears are of a class Conv1D. The output is not among them, because TRL's loss reads
    its weights without calling the layer.
    """
    output = model.get_output_embeddings()
    kinds = (nn.Linear, transformers.pytorch_utils.Conv1D)
    tuned = text_modules(model)
    return {
        name: part for name, part in tuned.items() if isinstance(part, kinds) and part is not output
    }


def adapter_config(model: nn.Module, config: LlmConfig) -> LoraConfig | None:
    """Return PEFT's configuration of the method's adapters, which only adapt the text part.

    Raises:
        ValueError: The model lacks the linears that the configuration names.
    """
    options = config.method
    if not isinstance(options, methods.LoraConfig):
        return None
    model_linears = linears(model)
    short_names = {name: name.rpartition(".")[2] for name in model_linears}
    if options.adapts_all:
        targets = list(model_linears)
    else:
        names = [
            models.hugging_face_name(f"layers.0.{name}.weight").split(".")[-2]
            for name in methods.adapted_linears(options)
        ]
        model_names = sorted(filter(str.isidentifier, set(short_names.values())))
        if not {*names} <= {*model_names}:
            offered_names = ",".join(
                "output_proj" if name == "o_proj" else name for name in model_names
            )
            raise Refusal(
                "llm.folder-layers",
                f"method={config.method.name}: adapts {', '.join(names)}, but the model"
                f" has {', '.join(model_names)}; choose from them with"
                f" `method.lora_attn_modules=[{offered_names}]` and"
                " `method.apply_lora_to_mlp=false`, or use"
                " `method.lora_attn_modules=all-linear` or `method=full`",
                key="method",
                value=config.method.name,
                asked=names,
                has=model_names,
            )
        targets = [name for name in model_linears if short_names[name] in names]
    return LoraConfig(
        r=options.lora_rank,
        lora_alpha=options.lora_alpha,  # pyright: ignore[reportArgumentType]  PEFT accepts any number.
        use_rslora=options.rslora,
        lora_dropout=options.lora_dropout,
        target_modules=targets,
        task_type="CAUSAL_LM",
    )


def initialise_adapters(
    model: Any, config: LlmConfig, cfg: dict[str, Any], device: torch.device
) -> None:
    """Initialise adapters as torchtune does, and in the run's precision instead of float32."""
    if not isinstance(config.method, methods.LoraConfig):
        return
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.to(DTYPES[config.formats.weights])
    initial_weights = adapter_weights(model, config, cfg, device)
    for name, parameter in model.named_parameters():
        if "lora_A" in name:  # On "meta", the copy has no effect.
            with torch.no_grad():
                parameter.copy_(initial_weights[transformers_name(name)][...])


def adapter_weights(
    model: nn.Module, config: LlmConfig, cfg: dict[str, Any], device: torch.device
) -> dict[str, Any]:
    """Return the initial weights of the adapters by PEFT's names.

    They are torchtune's weights. A model that torchtune cannot build gets weights that are drawn
    in the same way.
    """
    if not isinstance(config.model, HfConfig):
        return {
            name: weight for name, weight in weights(config, cfg, device).items() if "lora_" in name
        }
    dtype = DTYPES[config.formats.weights]
    return {
        transformers_name(name): RandomWeight(
            transformers_name(name).lower(), config.seed, parameter.shape, dtype, device
        )
        for name, parameter in model.named_parameters()
        if "lora_" in name
    }


def transformers_name(name: str) -> str:
    """Return transformers' name of a parameter inside the wrappers of PEFT and accelerate."""
    return re.sub(r"^base_model\.model\.|base_layer\.|_checkpoint_wrapped_module\.", "", name)
