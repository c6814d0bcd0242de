"""Define the tuning methods: what each adds to torchtune's configuration, and what it refuses.

Imports no torch.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from multicard.config.llm import PAPERS_WARMUP, LlmConfig, MethodConfig, Recipe
from multicard.config.llm_models import HfConfig
from multicard.config.llm_texts import DATASETS
from multicard.config.saving import TuningSave
from multicard.llm import models
from multicard.llm.method_options import (
    ALL_LINEAR,
    ATTENTION,
    FEED_FORWARD,
    DpoConfig,
    LoraConfig,
    QatConfig,
)
from multicard.messages import Refusal


@dataclass(frozen=True)
class Method:
    """A tuning method.

    Attributes:
        schema: The type of the method's options, which are set under `conf/method/`.
        adapters: True if the method trains LoRA adapters and freezes the model's weights. If
            False, it trains all weights. FSDP reduces the gradients of the trained weights only,
            and gathers all weights.
        nf4: True if the frozen weights are stored, and gathered, in NF4.
        fake_quantised: True if the linears simulate quantisation.
        pairs: True if each row holds a chosen and a rejected answer. Such rows cannot be packed.
        reference_passes: Number of forward passes through a frozen reference model in a step.
            FSDP gathers the weights for each of them, as for the forward and the backward pass.
        compiles: True if torchtune's recipe for one GPU supports `compile`.
        compiles_distributed: True if torchtune's distributed recipe supports `compile`.
        optimizer_in_bwd: True if the recipes support `optimizer_in_bwd`.
        scheduled: True if the recipe has a learning-rate schedule.
        clips: True if the recipes support `clip_grad_norm`.
        builder_arguments: Returns, from the method's options, the arguments that the model's
            builder needs in addition to the arguments of the adapters.
        components: Returns, from the method's options, what to add to torchtune's configuration.
        check: Refuses options that torchao would ignore in silence, or that would fail during the
            run.
    """

    schema: type[MethodConfig]
    adapters: bool = False
    nf4: bool = False
    fake_quantised: bool = False
    pairs: bool = False
    reference_passes: int = 0
    compiles: bool = True
    compiles_distributed: bool = True
    optimizer_in_bwd: bool = False
    scheduled: bool = True
    clips: bool = True
    builder_arguments: Callable[[Any], dict[str, Any]] = lambda _: {}
    components: Callable[[Any], dict[str, Any]] = lambda _: {}
    check: Callable[[LlmConfig], None] = lambda _: None


def dpo_loss(options: DpoConfig) -> dict[str, Any]:
    return {
        "loss": {
            "_component_": "torchtune.rlhf.loss.DPOLoss",
            "beta": options.beta,
            "label_smoothing": 0,
        }
    }


def qat_quantizer(options: QatConfig) -> dict[str, Any]:
    quantizer = "torchtune.training.quantization.Int8DynActInt4WeightQATQuantizer"
    return {"quantizer": {"_component_": quantizer, "groupsize": options.groupsize}}


def check_groups(config: LlmConfig) -> None:
    """Refuse a group size that does not divide the width of every linear.

    torchao would leave the other linears unquantised without a word.
    """
    assert isinstance(config.method, QatConfig)
    groupsize = config.method.groupsize
    widths = {name: shape[1] for name, shape in models.linears(config.model).items()}
    uneven_widths = {name: width for name, width in widths.items() if width % groupsize}
    if uneven_widths:
        divisible = math.gcd(*widths.values())
        listed = ", ".join(f"{name} ({width})" for name, width in uneven_widths.items())
        raise Refusal(
            "llm.groupsize",
            f"method.groupsize={groupsize}: does not divide the width of {listed}. method=qat would"
            f" leave them unquantised; use a divisor of {divisible}",
            key="method.groupsize",
            value=groupsize,
            uneven=uneven_widths,
            divisible=divisible,
        )


METHODS: dict[str, Method] = {
    "lora": Method(LoraConfig, adapters=True),
    "qlora": Method(LoraConfig, adapters=True, nf4=True),
    "dpo": Method(
        DpoConfig,
        adapters=True,
        pairs=True,
        reference_passes=1,
        compiles_distributed=False,
        clips=False,
        components=dpo_loss,
    ),
    "qat": Method(
        QatConfig,
        fake_quantised=True,
        compiles=False,
        compiles_distributed=False,
        optimizer_in_bwd=True,
        scheduled=False,
        components=qat_quantizer,
        check=check_groups,
    ),
    "full": Method(MethodConfig, optimizer_in_bwd=True),
}


def recipe_file(name: str) -> Path:
    """Return the path of a torchtune recipe.

    torchtune's package of recipes raises an error if it is imported, so the file is found by path.
    """
    torchtune = find_spec("torchtune")
    assert torchtune is not None and torchtune.origin is not None
    return Path(torchtune.origin).parents[1] / "recipes" / f"{name}.py"


def check_recipes(options: MethodConfig) -> None:
    """Refuse recipes that torchtune does not have."""
    for kind, name in (
        ("single_device", options.single_device),
        ("distributed", options.distributed),
    ):
        if name is None or (name.endswith(f"_{kind}") and recipe_file(name).is_file()):
            continue
        recipes = sorted(path.stem for path in recipe_file("x").parent.glob(f"*_{kind}.py"))
        raise Refusal(
            "llm.no-such-recipe",
            f"method.{kind}={name}: torchtune has no such recipe; leave the key out, or use one of"
            f" {', '.join(recipes)}",
            key=f"method.{kind}",
            value=name,
            recipes=recipes,
        )


def chosen(config: LlmConfig) -> Method:
    """Return the method that the configuration selects."""
    return METHODS[config.method.name]


def adapted_linears(options: LoraConfig) -> list[str]:
    """Return the names of the linears in a layer that get an adapter."""
    attention = [f"attn.{name}" for name in options.attention]
    return [*attention, *(FEED_FORWARD if options.apply_lora_to_mlp else ())]


def adapter_parameters(config: LlmConfig, vocabulary: int) -> int | None:
    """Return the number of adapter parameters, or None for a method without adapters.

    An adapter of a linear has rank x (in + out) parameters.
    """
    options = config.method
    model = config.model
    if not isinstance(options, LoraConfig):
        return None
    shapes = models.linears(model)
    layer = sum(sum(shapes[name]) for name in adapted_linears(options))
    output = vocabulary + model.embed_dim if options.apply_lora_to_output else 0
    return options.lora_rank * (model.num_layers * layer + output)


def model_component(config: LlmConfig, vocabulary: int) -> dict[str, Any]:
    """Return torchtune's component for the model: its builder, with adapters, and the arguments."""
    model = config.model
    options = config.method
    family = models.family(config.model)
    component: dict[str, Any] = {"_component_": f"{family.package}.{family.name}"}
    if isinstance(options, LoraConfig):
        component = {
            "_component_": f"{family.package}.lora_{family.name}",
            "lora_attn_modules": options.attention,
            "apply_lora_to_mlp": options.apply_lora_to_mlp,
            "apply_lora_to_output": options.apply_lora_to_output,
            "lora_rank": options.lora_rank,
            "lora_alpha": (
                options.scale * options.lora_rank if options.rslora else options.lora_alpha
            ),
            "lora_dropout": options.lora_dropout,
            "quantize_base": chosen(config).nf4,
        }
    component |= chosen(config).builder_arguments(options)
    return component | {"vocab_size": vocabulary} | models.builder_arguments(model)


def check_options(config: LlmConfig) -> None:
    """Refuse (ValueError) options that the method's recipe rejects or ignores in silence."""
    _check_layers(config)
    check_recipes(config.method)
    _check_recipe_options(config)
    if config.model.tied:
        _check_tied(config)
    _check_dataset(config)
    _check_save(config)
    chosen(config).check(config)


def _check_layers(config: LlmConfig) -> None:
    if not isinstance(config.method, LoraConfig) or isinstance(config.model, HfConfig):
        return
    modules = config.method.attention
    if not {*modules} <= {*ATTENTION}:
        raise Refusal(
            "llm.unknown-layers",
            f"method.lora_attn_modules={modules}: name one or more of {', '.join(ATTENTION)}, "
            f"or `method.lora_attn_modules={ALL_LINEAR}`",
            key="method.lora_attn_modules",
            value=list(modules),
            known=list(ATTENTION),
        )


def _check_recipe_options(config: LlmConfig) -> None:
    method = chosen(config)
    name = config.method.name
    if config.recipe is Recipe.single_device and config.world_size > 1:
        raise Refusal(
            "llm.recipe-of-one-gpu",
            f"recipe=single_device: is for one GPU, not gpus={config.gpus}; use `gpus=1`",
            key="recipe",
            gpus=config.gpus,
        )
    if config.recipe is Recipe.single_device and config.method.single_device is None:
        raise Refusal(
            "llm.no-recipe-of-one-gpu",
            f"recipe=single_device: torchtune has no such recipe for method={name}; use"
            " `recipe=auto`",
            key="recipe",
            method=name,
        )
    if config.packed and method.pairs:
        raise Refusal(
            "llm.packed-pairs",
            f"packed=true: method={name} reads pairs, which cannot be packed; use `packed=false`",
            key="packed",
            method=name,
        )
    if config.optimizer_in_bwd and not method.optimizer_in_bwd:
        raise Refusal(
            "llm.recipe-optimizer-in-bwd",
            f"optimizer_in_bwd=true: the recipe of method={name} has no such option; use"
            " `optimizer_in_bwd=false`",
            key="optimizer_in_bwd",
            method=name,
        )
    accumulation_steps = config.gradient_accumulation_steps
    if config.optimizer_in_bwd and accumulation_steps > 1:
        raise Refusal(
            "llm.accumulation-in-bwd",
            f"gradient_accumulation_steps={accumulation_steps}: optimizer_in_bwd=true updates the"
            " weights after each batch; use `gradient_accumulation_steps=1`, or"
            " `optimizer_in_bwd=false`",
            key="gradient_accumulation_steps",
            value=accumulation_steps,
        )
    # A sweep over several methods may set the papers' number for all of them. The record of a
    # method without a schedule then says that there were no warm-up steps.
    if not method.scheduled and config.warmup_steps not in (None, PAPERS_WARMUP):
        raise Refusal(
            "llm.recipe-warmup",
            f"warmup_steps={config.warmup_steps}: the recipe of method={name} has a constant"
            " learning rate; use `warmup_steps=null`",
            key="warmup_steps",
            value=config.warmup_steps,
            method=name,
        )


def _check_save(config: LlmConfig) -> None:
    """Refuse a form of `save` that does not fit the weights that the method trains."""
    save = config.save
    name = config.method.name
    method = chosen(config)
    if save is TuningSave.adapter and not method.adapters:
        raise Refusal(
            "llm.save-no-adapter",
            f"save=adapter: method={name} trains all weights, and has no adapters; use"
            " `save=model`",
            key="save",
            method=name,
        )
    if save is TuningSave.model and method.adapters:
        raise Refusal(
            "llm.save-adapter-alone",
            f"save=model: method={name} trains adapters, and leaves the model unchanged; use"
            " `save=adapter`",
            key="save",
            method=name,
        )
    if save is TuningSave.int4 and method.adapters:
        raise Refusal(
            "llm.save-int4-adapter",
            f"save=int4: method={name} trains adapters, which are not quantised; use"
            " `save=adapter`",
            key="save",
            method=name,
        )
    model = config.model
    if (
        save is TuningSave.adapter
        and method.nf4
        and isinstance(model, HfConfig)
        and model.folder is None
    ):
        raise Refusal(
            "llm.save-random-nf4",
            "save=adapter: the base model has random weights, which the run only holds in NF4; use"
            " `save=none`, `model.weights=own`, or `method=lora`",
            key="save",
            method=name,
        )


def _check_tied(config: LlmConfig) -> None:
    """Refuse options for the output layer of a model that shares it with the embeddings."""
    name = config.model.name
    sharded_layers = config.custom_sharded_layers
    if sharded_layers:
        raise Refusal(
            "llm.tied-sharded-layers",
            f"custom_sharded_layers={sharded_layers}: the output layer of model={name} is its"
            " embeddings, and cannot be gathered separately; use `custom_sharded_layers=[]`",
            key="custom_sharded_layers",
            value=list(sharded_layers),
            model=name,
        )
    if isinstance(config.method, LoraConfig) and config.method.apply_lora_to_output:
        raise Refusal(
            "llm.tied-output-adapter",
            f"method.apply_lora_to_output=true: the output layer of model={name} is its embeddings;"
            " use `method.apply_lora_to_output=false`",
            key="method.apply_lora_to_output",
            model=name,
        )


def _check_dataset(config: LlmConfig) -> None:
    data = config.dataset.name
    name = config.method.name
    facts = DATASETS[data]
    pairs = chosen(config).pairs
    if pairs and not facts.has_pairs:
        others = [other for other in sorted(DATASETS) if DATASETS[other].has_pairs]
        options = " or ".join(f"`dataset={other}`" for other in others)
        raise Refusal(
            "llm.dataset-without-pairs",
            f"dataset={data}: method={name} needs chosen and rejected answers; use {options}",
            key="dataset",
            value=data,
            method=name,
            others=others,
        )
    if not pairs and not facts.has_answers:
        others = [other for other in METHODS if METHODS[other].pairs]
        options = " or ".join(f"`method={other}`" for other in others)
        raise Refusal(
            "llm.dataset-of-pairs",
            f"dataset={data}: holds pairs, which method={name} cannot read; use {options}, or"
            " another dataset",
            key="dataset",
            value=data,
            method=name,
            others=others,
        )
