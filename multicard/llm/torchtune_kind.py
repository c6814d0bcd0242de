"""Define what torchtune's recipes support. Imports no torch."""

import math

from multicard.config.llm import Attention, Kernels, LlmConfig, Sharding
from multicard.config.llm_models import HfConfig
from multicard.llm import methods, models
from multicard.llm.engine_kind import EngineKind
from multicard.llm.method_options import ATTENTION, LoraConfig
from multicard.messages import Refusal

NF4_BLOCK = 64 * 256  # This number of weights shares both levels of torchao's scales.


class TorchtuneKind(EngineKind):
    """torchtune's recipes."""

    module = "multicard.llm.torchtune_engine"
    memory_module = "multicard.estimate.memory.tuning_step"
    has_recipes = True
    sums_pair_losses = True

    def compiles(self, config: LlmConfig) -> bool:
        method = methods.chosen(config)
        return method.compiles_distributed if config.distributed else method.compiles

    def check_own(self, config: LlmConfig) -> None:
        method = methods.chosen(config)
        if isinstance(config.model, HfConfig):
            raise Refusal(
                "llm.torchtune-model",
                "model=hf: torchtune only has its own models; use `engine=trl`",
                key="model",
            )
        if config.sharding is Sharding.ddp:
            raise Refusal(
                "llm.torchtune-sharding",
                f"sharding={config.sharding}: torchtune's recipes only support FSDP2; use"
                " `engine=trl`, or `sharding=fsdp`",
                key="sharding",
                value=config.sharding,
            )
        if config.formats.are_mixed:
            raise Refusal(
                "llm.torchtune-precision",
                f"precision={config.precision.name}: torchtune's recipes compute in the format of"
                " the weights; use `engine=trl`, or `precision=bf16`",
                key="precision",
                value=config.precision.name,
            )
        if config.clip_grad_norm is not None and not method.clips:
            raise Refusal(
                "llm.recipe-clipping",
                f"clip_grad_norm={config.clip_grad_norm}: the recipe of method={config.method.name}"
                " does not clip gradients; use `engine=trl`, or `clip_grad_norm=null`",
                key="clip_grad_norm",
                value=config.clip_grad_norm,
                method=config.method.name,
            )
        if config.attention is not Attention.auto:
            raise Refusal(
                "llm.torchtune-attention",
                f"attention={config.attention}: torchtune chooses its attention itself; "
                "use `engine=trl`, or `attention=auto`",
                key="attention",
                value=config.attention,
            )
        if config.kernels is Kernels.liger:
            raise Refusal(
                "llm.torchtune-kernels",
                "kernels=liger: patches layers of transformers, not torchtune's; use `engine=trl`,"
                " or `kernels=torch`",
                key="kernels",
            )
        if method.nf4:
            _check_nf4(config)


def _check_nf4(config: LlmConfig) -> None:
    """Refuse weights that NF4 cannot hold, or that torchtune would not quantise."""
    method = config.method
    model = config.model
    ranks = config.world_size
    assert isinstance(method, LoraConfig)
    if ranks == 1 and config.distributed:
        raise Refusal(
            "llm.nf4-distributed-alone",
            "recipe=distributed: torchtune's FSDP on one GPU cannot hold the NF4 weights of"
            " method=qlora; use `recipe=auto`, or `gpus=2`",
            key="recipe",
        )
    shapes = models.linears(model)
    linears_without_adapter = []
    if not models.family(model).quantizes_all:
        with_adapter = methods.adapted_linears(method)
        linears_without_adapter = [name for name in shapes if name not in with_adapter]
    if linears_without_adapter:
        overrides = []
        if not {*ATTENTION} <= {*method.attention}:
            overrides.append(f"method.lora_attn_modules=[{','.join(ATTENTION)}]")
        if not method.apply_lora_to_mlp:
            overrides.append("method.apply_lora_to_mlp=true")
        remedy = " ".join(overrides)
        raise Refusal(
            "llm.nf4-without-adapters",
            f"method=qlora: torchtune only quantises linears of model={model.name} that have an"
            f" adapter, and {', '.join(linears_without_adapter)} have none; use `{remedy}`",
            key="method",
            model=model.name,
            plain=linears_without_adapter,
        )

    def divides(shape: tuple[int, int]) -> bool:
        return math.prod(shape) % (NF4_BLOCK * ranks) == 0 and shape[0] % ranks == 0

    uneven_linears = {
        name: math.prod(shape) for name, shape in shapes.items() if not divides(shape)
    }
    if uneven_linears:
        listed = ", ".join(f"{name} ({weights})" for name, weights in uneven_linears.items())
        raise Refusal(
            "llm.nf4-blocks",
            f"method=qlora: NF4 needs the weights of each layer to be a multiple of {NF4_BLOCK} x"
            f" {ranks} rank(s), but model={model.name} has {listed}; use fewer GPUs,"
            " `method=lora`, or other sizes",
            key="method",
            model=model.name,
            block=NF4_BLOCK,
            ranks=ranks,
            uneven=uneven_linears,
        )
