"""The keys that change how steps compute, beside method and engine: which values go with which others. No torch."""

from multicard.config.llm import Engine, LlmConfig, Sharding
from multicard.llm import methods
from multicard.messages import Refusal


def check(config: LlmConfig) -> None:
    """Refuse (ValueError) values that an engine does not have, or that would mean something else in silence."""
    if config.formats.are_mixed:
        _check_mixed(config)
    if config.clip_grad_norm is not None:
        _check_clipping(config)


def _check_mixed(config: LlmConfig) -> None:
    name = config.precision.name
    if config.engine is Engine.torchtune:
        raise Refusal(
            "llm.torchtune-precision",
            f"precision={name}: torchtune's recipes compute in the format of the weights; "
            "use `engine=trl`, or `precision=bf16`",
            key="precision",
            value=name,
        )
    # FSDP shards NF4 as numbers of the weights' format, and would convert those to the products'
    is_sharded = config.world_size > 1 and config.sharding is Sharding.fsdp
    if methods.chosen(config).nf4 and is_sharded:
        raise Refusal(
            "llm.mixed-nf4-sharded",
            f"precision={name}: FSDP cannot gather the NF4 weights of method={config.method.name} in another format; "
            "use `sharding=ddp`, or `precision=bf16`",
            key="precision",
            value=name,
            method=config.method.name,
        )


def _check_clipping(config: LlmConfig) -> None:
    norm, method = config.clip_grad_norm, config.method.name
    if config.engine is Engine.torchtune and not methods.chosen(config).clips:
        raise Refusal(
            "llm.recipe-clipping",
            f"clip_grad_norm={norm}: the recipe of method={method} does not clip gradients; "
            "use `engine=trl`, or `clip_grad_norm=null`",
            key="clip_grad_norm",
            value=norm,
            method=method,
        )
    if config.optimizer_in_bwd:
        raise Refusal(
            "llm.clipping-in-bwd",
            f"clip_grad_norm={norm}: optimizer_in_bwd=true steps before all gradients are there; "
            "use `optimizer_in_bwd=false`, or `clip_grad_norm=null`",
            key="clip_grad_norm",
            value=norm,
        )
