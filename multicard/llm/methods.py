"""The tuning methods: their options, what they add to torchtune's configuration, and what they refuse. No torch."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from multicard.config.keys import key, require
from multicard.config.llm import DATASETS, PAPERS_WARMUP, Engine, HfConfig, LlmConfig, MethodConfig, Recipe
from multicard.config.roles import Role
from multicard.llm import models

NF4_BLOCK = 64 * 256  # weights that share torchao's two levels of scales
ATTENTION = ("q_proj", "k_proj", "v_proj", "output_proj")
FEED_FORWARD = ("mlp.w1", "mlp.w2", "mlp.w3")


@dataclass
class LoraConfig(MethodConfig):
    """Low-rank adapters (Hu et al., 2021) beside the named linears."""

    lora_rank: int = key(8, "rank of the adapters", Role.identity | Role.learning | Role.memory | Role.speed, least=1)
    lora_alpha: float = key(
        16.0, "adapters are scaled by lora_alpha / lora_rank", Role.identity | Role.learning, above=0
    )
    lora_dropout: float = key(
        0.0,
        "share of inputs that an adapter drops, in [0, 1)",
        Role.identity | Role.learning | Role.memory | Role.speed,
    )
    lora_attn_modules: list[str] = key(
        list,
        "layers with adapters: q_proj, k_proj, v_proj, output_proj; of model=hf any",
        Role.identity | Role.learning | Role.memory | Role.speed,
    )
    apply_lora_to_mlp: bool = key(
        True, "adapters in the MLP layers too", Role.identity | Role.learning | Role.memory | Role.speed
    )
    apply_lora_to_output: bool = key(
        False, "an adapter in the output layer too", Role.identity | Role.learning | Role.memory | Role.speed
    )

    def __post_init__(self) -> None:
        in_range = 0 <= self.lora_dropout < 1
        require(in_range, f"method.lora_dropout={self.lora_dropout}: is a share; give a value in [0, 1)")
        require(bool(self.lora_attn_modules), f"method.lora_attn_modules=[]: name one or more, as {ATTENTION[0]}")


@dataclass
class DpoConfig(LoraConfig):
    """Direct preference optimisation (Rafailov et al., 2023) of the adapters; the base model is the reference."""

    beta: float = key(
        0.1,
        "how strongly the tuned model is held to the base model",
        Role.identity | Role.learning | Role.loss,
        above=0,
    )


@dataclass
class QatConfig(MethodConfig):
    """All weights, with int4 weights in groups of `groupsize` and int8 activations simulated in each linear."""

    groupsize: int = key(
        256,
        "weights that share a scale; must divide the width of every linear layer",
        Role.identity | Role.learning | Role.memory | Role.speed,
        least=1,
    )


@dataclass(frozen=True)
class Method:
    """A tuning method.

    Fields:
        schema: its options, as under `conf/method/`.
        adapters: LoRA adapters are trained and the model's weights are frozen; otherwise all weights are trained.
            FSDP reduces the gradients of what is trained, and gathers all weights.
        nf4: the frozen weights are held, and gathered, in NF4.
        fake_quantised: the linears simulate quantisation.
        pairs: it reads a chosen and a rejected answer a row, which cannot be packed.
        reference_passes: forward passes of a frozen reference model a step: FSDP gathers the weights for each, as it
            does for the forward and the backward pass.
        compiles, compiles_distributed: torchtune's recipes take `compile`.
        optimizer_in_bwd: the recipes take it.
        scheduled: the recipe has a learning-rate schedule.
        builder_arguments: what the builder of the model takes for it, from its options, beside those of the adapters.
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
    builder_arguments: Callable[[Any], dict[str, Any]] = lambda _: {}
    components: Callable[[Any], dict[str, Any]] = lambda _: {}
    check: Callable[[LlmConfig], None] = lambda _: None


def dpo_loss(options: DpoConfig) -> dict[str, Any]:
    return {"loss": {"_component_": "torchtune.rlhf.loss.DPOLoss", "beta": options.beta, "label_smoothing": 0}}


def qat_quantizer(options: QatConfig) -> dict[str, Any]:
    quantizer = "torchtune.training.quantization.Int8DynActInt4WeightQATQuantizer"
    return {"quantizer": {"_component_": quantizer, "groupsize": options.groupsize}}


def check_groups(config: LlmConfig) -> None:
    """Refuse a group size that does not divide the width of every linear: torchao would skip the others."""
    assert isinstance(config.method, QatConfig)
    groupsize = config.method.groupsize
    widths = {name: shape[1] for name, shape in models.linears(config.model).items()}
    uneven = [f"{name} ({width})" for name, width in widths.items() if width % groupsize]
    remedy = f"use a divisor of {math.gcd(*widths.values())}"
    problem = f"method.groupsize={groupsize}: does not divide the width of {', '.join(uneven)}"
    require(not uneven, f"{problem}, which method=qat would not quantise; {remedy}")


def check_nf4(config: LlmConfig) -> None:
    """Refuse weights that NF4 cannot hold, or that torchtune would not quantise."""
    method, model, ranks = config.method, config.model, config.world_size
    assert isinstance(method, LoraConfig)
    if config.engine is Engine.trl:  # bitsandbytes quantises weights of any size, on one rank under FSDP too
        return
    alone = ranks == 1 and config.distributed
    remedy = "use recipe=auto, or gpus=2"
    require(not alone, f"recipe=distributed: torchtune's FSDP cannot hold method=qlora's NF4 weights alone; {remedy}")
    shapes = models.linears(model)
    plain = [] if models.family(model).quantizes_all else [name for name in shapes if name not in adapted(method)]
    remedy = f"use method.lora_attn_modules=[{','.join(ATTENTION)}] method.apply_lora_to_mlp=true"
    problem = f"method=qlora: torchtune quantises only linears with an adapter of model={model.name}"
    require(not plain, f"{problem}, and {', '.join(plain)} have none; {remedy}")

    def divides(shape: tuple[int, int]) -> bool:
        return math.prod(shape) % (NF4_BLOCK * ranks) == 0 and shape[0] % ranks == 0

    uneven = [f"{name} ({math.prod(shape)})" for name, shape in shapes.items() if not divides(shape)]
    problem = f"method=qlora: NF4 needs each layer's weights to divide by {NF4_BLOCK} x {ranks} rank(s)"
    remedy = "use fewer gpus, method=lora, or other sizes"
    require(not uneven, f"{problem}; {', '.join(uneven)} of model={model.name} do not; {remedy}")


METHODS: dict[str, Method] = {
    "lora": Method(LoraConfig, adapters=True),
    "qlora": Method(LoraConfig, adapters=True, nf4=True, check=check_nf4),
    "dpo": Method(
        DpoConfig, adapters=True, pairs=True, reference_passes=1, compiles_distributed=False, components=dpo_loss
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
    for kind, name in (("single_device", options.single_device), ("distributed", options.distributed)):
        there = name is None or (name.endswith(f"_{kind}") and recipe_file(name).is_file())
        has = ", ".join(sorted(path.stem for path in recipe_file("x").parent.glob(f"*_{kind}.py")))
        require(there, f"method.{kind}={name}: torchtune has no such recipe; leave it out, or use one of {has}")


def chosen(config: LlmConfig) -> Method:
    return METHODS[config.method.name]


def adapted(options: LoraConfig) -> list[str]:
    """The linears of a layer that have an adapter."""
    attention = [f"attn.{name}" for name in options.lora_attn_modules]
    return [*attention, *(FEED_FORWARD if options.apply_lora_to_mlp else ())]


def adapter_parameters(config: LlmConfig, vocabulary: int) -> int | None:
    """rank x (in + out) of each linear that has an adapter; None for a method without adapters."""
    options, model = config.method, config.model
    if not isinstance(options, LoraConfig):
        return None
    shapes = models.linears(model)
    layer = sum(sum(shapes[name]) for name in adapted(options))
    output = vocabulary + model.embed_dim if options.apply_lora_to_output else 0
    return options.lora_rank * (model.num_layers * layer + output)


def model_component(config: LlmConfig, vocabulary: int) -> dict[str, Any]:
    """torchtune's builder of the model, with the method's adapters, and its arguments."""
    model, options, family = config.model, config.method, models.family(config.model)
    component: dict[str, Any] = {"_component_": f"{family.package}.{family.name}"}
    if isinstance(options, LoraConfig):
        component = {
            "_component_": f"{family.package}.lora_{family.name}",
            "lora_attn_modules": list(options.lora_attn_modules),
            "apply_lora_to_mlp": options.apply_lora_to_mlp,
            "apply_lora_to_output": options.apply_lora_to_output,
            "lora_rank": options.lora_rank,
            "lora_alpha": options.lora_alpha,
            "lora_dropout": options.lora_dropout,
            "quantize_base": chosen(config).nf4,
        }
    component |= chosen(config).builder_arguments(options)
    return component | {"vocab_size": vocabulary} | models.builder_arguments(model)


def check(config: LlmConfig) -> None:
    """Refuse (ValueError) options that the method's recipe refuses, or would pass over in silence."""
    method, name, data, model = chosen(config), config.method.name, config.dataset.name, config.model
    if isinstance(config.method, LoraConfig) and not isinstance(model, HfConfig):
        modules = config.method.lora_attn_modules
        problem = f"method.lora_attn_modules={modules}: name one or more of {', '.join(ATTENTION)}"
        require({*modules} <= {*ATTENTION}, problem)
    check_recipes(config.method)
    if config.recipe is Recipe.single_device:
        require(config.world_size == 1, f"recipe=single_device: is for one GPU; use gpus=1 (it is {config.gpus})")
        exists = config.method.single_device is not None
        require(exists, f"recipe=single_device: torchtune has none for method={name}; use recipe=auto")
    if config.compile:
        compiles = method.compiles_distributed if config.distributed else method.compiles
        require(compiles, f"compile=true: method={name}'s recipe does not compile; use compile=false")
    packs = not (method.pairs and config.packed)
    require(packs, f"packed=true: method={name} reads pairs, which cannot be packed; use packed=false")
    if config.optimizer_in_bwd:
        remedy, accumulation = "use optimizer_in_bwd=false", config.gradient_accumulation_steps
        require(method.optimizer_in_bwd, f"optimizer_in_bwd=true: method={name}'s recipe has no such option; {remedy}")
        require(accumulation == 1, f"gradient_accumulation_steps={accumulation}: must be 1; or {remedy}")
    # The papers' number may be set for several methods: this one's record says that it took none
    scheduled = method.scheduled or config.warmup_steps in (None, PAPERS_WARMUP)
    problem = f"warmup_steps={config.warmup_steps}: method={name}'s recipe keeps its learning rate"
    require(scheduled, f"{problem}; leave warmup_steps at null")
    if model.tied:
        apart, embeddings = config.custom_sharded_layers, f"the output of model={model.name} is its embeddings"
        remedy = "which cannot be gathered apart; use custom_sharded_layers=[]"
        require(not apart, f"custom_sharded_layers={apart}: {embeddings}, {remedy}")
        adapts = isinstance(config.method, LoraConfig) and config.method.apply_lora_to_output
        require(not adapts, f"method.apply_lora_to_output=true: {embeddings}; use method.apply_lora_to_output=false")
    facts = DATASETS[data]
    if method.pairs:
        options = " or ".join(f"dataset={other}" for other in sorted(DATASETS) if DATASETS[other].has_pairs)
        problem = f"dataset={data}: method={name} needs chosen and rejected answers"
        require(facts.has_pairs, f"{problem}; use {options}")
    else:
        options = " or ".join(f"method={other}" for other in METHODS if METHODS[other].pairs)
        problem = f"dataset={data}: holds pairs, which method={name} cannot read"
        require(facts.has_answers, f"{problem}; use {options}, or another dataset")
    method.check(config)
