"""The tuning methods: what they add to torchtune's configuration, and what they refuse.
No torch.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from multicard.config.llm import PAPERS_WARMUP, Engine, LlmConfig, MethodConfig, Recipe
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

NF4_BLOCK = 64 * 256  # weights that share torchao's two levels of scales


@dataclass(frozen=True)
class Method:
    """A tuning method.

    Fields:
        schema: its options, as under `conf/method/`.
        adapters: LoRA adapters are trained and the model's weights are frozen; otherwise all
            weights are trained. FSDP reduces the gradients of what is trained, and gathers all
            weights.
        nf4: the frozen weights are held, and gathered, in NF4.
        fake_quantised: the linears simulate quantisation.
        pairs: it reads a chosen and a rejected answer a row, which cannot be packed.
        reference_passes: forward passes of a frozen reference model a step: FSDP gathers the
            weights for each, as it does for the forward and the backward pass.
        compiles, compiles_distributed: torchtune's recipes take `compile`.
        optimizer_in_bwd: the recipes take it.
        scheduled: the recipe has a learning-rate schedule.
        clips: the recipes take `clip_grad_norm`.
        builder_arguments: what the builder of the model takes for it, from its options, beside
            those of the adapters.
        components: what it adds to torchtune's configuration, from its options.
        check: refuses what torchao would pass over in silence, or break on during the run.
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
    """Refuse a group size that does not divide the width of
    every linear: torchao would skip the others.
    """
    assert isinstance(config.method, QatConfig)
    groupsize = config.method.groupsize
    widths = {name: shape[1] for name, shape in models.linears(config.model).items()}
    uneven = {name: width for name, width in widths.items() if width % groupsize}
    if uneven:
        divisible = math.gcd(*widths.values())
        listed = ", ".join(f"{name} ({width})" for name, width in uneven.items())
        raise Refusal(
            "llm.groupsize",
            f"method.groupsize={groupsize}: does not divide the width of {listed}, "
            f"which method=qat would not quantise; use a divisor of {divisible}",
            key="method.groupsize",
            value=groupsize,
            uneven=uneven,
            divisible=divisible,
        )


def check_nf4(config: LlmConfig) -> None:
    """Refuse weights that NF4 cannot hold, or that torchtune would not quantise."""
    method = config.method
    model = config.model
    ranks = config.world_size
    assert isinstance(method, LoraConfig)
    # bitsandbytes quantises weights of any size, on one rank under FSDP too
    if config.engine is Engine.trl:
        return
    if ranks == 1 and config.distributed:
        raise Refusal(
            "llm.nf4-distributed-alone",
            "recipe=distributed: torchtune's FSDP on one GPU cannot hold the NF4 weights of"
            " method=qlora; use `recipe=auto`, or `gpus=2`",
            key="recipe",
        )
    shapes = models.linears(model)
    plain = (
        []
        if models.family(model).quantizes_all
        else [name for name in shapes if name not in adapted(method)]
    )
    if plain:
        wanted = {
            f"lora_attn_modules=[{','.join(ATTENTION)}]": not {*ATTENTION} <= {*method.attention}
        }
        wanted["apply_lora_to_mlp=true"] = not method.apply_lora_to_mlp
        remedy = " ".join(f"method.{word}" for word, is_lacking in wanted.items() if is_lacking)
        raise Refusal(
            "llm.nf4-without-adapters",
            f"method=qlora: torchtune only quantises linears of model={model.name} that have an"
            f" adapter, and {', '.join(plain)} have none; use `{remedy}`",
            key="method",
            model=model.name,
            plain=plain,
        )

    def divides(shape: tuple[int, int]) -> bool:
        return math.prod(shape) % (NF4_BLOCK * ranks) == 0 and shape[0] % ranks == 0

    uneven = {name: math.prod(shape) for name, shape in shapes.items() if not divides(shape)}
    if uneven:
        listed = ", ".join(f"{name} ({weights})" for name, weights in uneven.items())
        raise Refusal(
            "llm.nf4-blocks",
            f"method=qlora: NF4 needs the weights of each layer to be a multiple of {NF4_BLOCK} x"
            f" {ranks} rank(s), unlike {listed} of model={model.name}; use fewer GPUs,"
            " `method=lora`, or other sizes",
            key="method",
            model=model.name,
            block=NF4_BLOCK,
            ranks=ranks,
            uneven=uneven,
        )


METHODS: dict[str, Method] = {
    "lora": Method(LoraConfig, adapters=True),
    "qlora": Method(LoraConfig, adapters=True, nf4=True, check=check_nf4),
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
    """torchtune's file of a recipe; the package of the recipes cannot be imported, by intent."""
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
            f"method.{kind}={name}: torchtune has no such recipe; leave it out, or use one of"
            f" {', '.join(recipes)}",
            key=f"method.{kind}",
            value=name,
            recipes=recipes,
        )


def chosen(config: LlmConfig) -> Method:
    return METHODS[config.method.name]


def compiles(config: LlmConfig) -> bool:
    """True where the engine takes `compile` with the method: TRL
    where its layers are plain linears with adapters.
    """
    method = chosen(config)
    if config.engine is Engine.trl:
        return not method.nf4 and not method.fake_quantised
    return method.compiles_distributed if config.distributed else method.compiles


def adapted(options: LoraConfig) -> list[str]:
    """The linears of a layer that have an adapter."""
    attention = [f"attn.{name}" for name in options.attention]
    return [*attention, *(FEED_FORWARD if options.apply_lora_to_mlp else ())]


def adapter_parameters(config: LlmConfig, vocabulary: int) -> int | None:
    """rank x (in + out) of each linear that has an adapter; None for a method without adapters."""
    options = config.method
    model = config.model
    if not isinstance(options, LoraConfig):
        return None
    shapes = models.linears(model)
    layer = sum(sum(shapes[name]) for name in adapted(options))
    output = vocabulary + model.embed_dim if options.apply_lora_to_output else 0
    return options.lora_rank * (model.num_layers * layer + output)


def model_component(config: LlmConfig, vocabulary: int) -> dict[str, Any]:
    """torchtune's builder of the model, with the method's adapters, and its arguments."""
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


def check(config: LlmConfig) -> None:
    """Refuse (ValueError) options that the method's recipe refuses,
    or would pass over in silence.
    """
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
            f"recipe=single_device: torchtune has none for method={name}; use `recipe=auto`",
            key="recipe",
            method=name,
        )
    if config.compile and not compiles(config):
        raise Refusal(
            "llm.recipe-compile",
            f"compile=true: the recipe of method={name} does not compile; use `compile=false`",
            key="compile",
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
    accumulated = config.gradient_accumulation_steps
    if config.optimizer_in_bwd and accumulated > 1:
        raise Refusal(
            "llm.accumulation-in-bwd",
            f"gradient_accumulation_steps={accumulated}: optimizer_in_bwd=true steps after each"
            " batch; use `gradient_accumulation_steps=1`, or `optimizer_in_bwd=false`",
            key="gradient_accumulation_steps",
            value=accumulated,
        )
    # The papers' number may be set for several methods: this one's record says that it took none
    if not method.scheduled and config.warmup_steps not in (None, PAPERS_WARMUP):
        raise Refusal(
            "llm.recipe-warmup",
            f"warmup_steps={config.warmup_steps}: the recipe of method={name} keeps its learning"
            " rate; use `warmup_steps=null`",
            key="warmup_steps",
            value=config.warmup_steps,
            method=name,
        )


def _check_save(config: LlmConfig) -> None:
    """What is kept is what the method trains."""
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
            f"save=model: method={name} trains adapters beside a model that stays as it was; use"
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
            "save=adapter: the base has random weights, of which the run only has their NF4; use"
            " `save=none`, `model.weights=own`, or `method=lora`",
            key="save",
            method=name,
        )


def _check_tied(config: LlmConfig) -> None:
    """The output of such a model is its embeddings."""
    name = config.model.name
    apart = config.custom_sharded_layers
    if apart:
        raise Refusal(
            "llm.tied-sharded-layers",
            f"custom_sharded_layers={apart}: the output of model={name} is its embeddings, "
            "which cannot be gathered apart; use `custom_sharded_layers=[]`",
            key="custom_sharded_layers",
            value=list(apart),
            model=name,
        )
    if isinstance(config.method, LoraConfig) and config.method.apply_lora_to_output:
        raise Refusal(
            "llm.tied-output-adapter",
            f"method.apply_lora_to_output=true: the output of model={name} is its embeddings; "
            "use `method.apply_lora_to_output=false`",
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
