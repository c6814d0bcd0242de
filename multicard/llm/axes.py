"""Check the keys that change how steps compute, apart from method and engine.

These are precision, attention, kernels, optimizer and clipping. Imports no torch.
"""

from importlib.util import find_spec

from multicard.config.llm import Attention, Kernels, LlmConfig, Sharding
from multicard.config.placement import Placement
from multicard.llm import methods
from multicard.messages import Refusal, install


def check_axes(config: LlmConfig) -> None:
    """Refuse (ValueError) values that do not fit each other. Engines refuse what they lack."""
    if config.formats.are_mixed:
        _check_mixed(config)
    if config.clip_grad_norm is not None:
        _check_clipping(config)
    if config.attention is not Attention.auto:
        _check_attention(config)
    if config.optimizer.has_8_bits:
        _check_eight_bits(config)
        _check_paged_offload(config)


def fits(config: LlmConfig, placement: Placement) -> None:
    """Refuse (ValueError) values that this machine's software or devices do not support."""
    if config.attention is Attention.flash:
        _fit_flash(config, placement)
    if config.attention is Attention.flex and placement.device == "cpu":
        raise Refusal(
            "llm.flex-cpu",
            "attention=flex: torch has no backward pass for it on CPU ranks; use `attention=sdpa`",
            key="attention",
        )
    if config.kernels is Kernels.liger:
        _fit_liger(placement)
    if config.optimizer.is_paged and placement.device == "cpu":
        raise Refusal(
            "llm.paged-cpu",
            "optimizer=paged_adamw_8bit: moves memory between GPU and host, and CPU ranks have no"
            " GPU; use `optimizer=adamw_8bit`",
            key="optimizer",
        )


def _check_paged_offload(config: LlmConfig) -> None:
    """Refuse (ValueError) paged optimizer states that already lie on the host."""
    if config.offloads and config.optimizer.is_paged:
        raise Refusal(
            "llm.paged-offload",
            "optimizer=paged_adamw_8bit: sharding=fsdp_offload already holds its states on the"
            " host; use `optimizer=adamw_8bit`, or `sharding=fsdp`",
            key="optimizer",
        )


def _check_mixed(config: LlmConfig) -> None:
    name = config.precision.name
    # FSDP shards NF4 as numbers in the weights' format, and would convert them to the products'.
    is_sharded = config.world_size > 1 and config.sharding is not Sharding.ddp
    if methods.chosen(config).nf4 and is_sharded:
        raise Refusal(
            "llm.mixed-nf4-sharded",
            f"precision={name}: FSDP cannot gather the NF4 weights of"
            f" method={config.method.name} in another format; use `sharding=ddp`, or"
            " `precision=bf16`",
            key="precision",
            value=name,
            method=config.method.name,
        )


def _check_clipping(config: LlmConfig) -> None:
    norm = config.clip_grad_norm
    if config.optimizer_in_bwd:
        raise Refusal(
            "llm.clipping-in-bwd",
            f"clip_grad_norm={norm}: with optimizer_in_bwd=true, weights are updated before all"
            " gradients are known; use `optimizer_in_bwd=false`, or `clip_grad_norm=null`",
            key="clip_grad_norm",
            value=norm,
        )


def _check_attention(config: LlmConfig) -> None:
    if config.attention is Attention.flash and config.formats.products != "bf16":
        raise Refusal(
            "llm.flash-precision",
            f"attention=flash: only computes in bf16, not in precision={config.precision.name}; "
            "use `precision=bf16`, or `attention=sdpa`",
            key="attention",
            precision=config.precision.name,
        )


def _fit_flash(config: LlmConfig, placement: Placement) -> None:
    if placement.device == "cpu":
        raise Refusal(
            "llm.flash-cpu",
            "attention=flash: does not run on CPU ranks; use `attention=sdpa`",
            key="attention",
        )
    if find_spec("flash_attn") is None:
        raise Refusal(
            "llm.no-flash",
            "attention=flash: needs flash-attn; run `pip install flash-attn --no-build-isolation`, "
            "or use `attention=sdpa`",
            key="attention",
        )


def _check_eight_bits(config: LlmConfig) -> None:
    name = str(config.optimizer.name)
    if find_spec("bitsandbytes") is None:
        raise Refusal(
            "llm.no-bitsandbytes",
            f"optimizer={name}: needs bitsandbytes; run `{install('trl')}`, or use"
            " `optimizer=adamw`",
            key="optimizer",
            value=name,
        )
    if config.optimizer_in_bwd:
        raise Refusal(
            "llm.eight-bit-in-bwd",
            f"optimizer={name}: optimizer_in_bwd=true needs an optimizer for each weight, each with"
            " its own tables; use `optimizer_in_bwd=false`, or `optimizer=adamw`",
            key="optimizer",
            value=name,
        )


def _fit_liger(placement: Placement) -> None:
    if placement.device == "cpu":
        raise Refusal(
            "llm.liger-cpu",
            "kernels=liger: its Triton kernels do not run on CPU ranks; use `kernels=torch`",
            key="kernels",
        )
    if find_spec("liger_kernel") is None:
        raise Refusal(
            "llm.no-liger",
            f"kernels=liger: needs liger-kernel; run `{install('liger')}`, or use `kernels=torch`",
            key="kernels",
        )
