"""List the engines, which run the training loop, and refuse options that an engine lacks.

Imports no torch.
"""

from importlib.util import find_spec

from multicard.config.llm import Engine, LlmConfig, Recipe, Sharding
from multicard.config.llm_models import HfConfig
from multicard.llm.method_options import LoraConfig
from multicard.messages import Refusal, install

# The module of each engine that defines `prepared` (see `tuning_engine`).
MODULES = {
    Engine.torchtune: "multicard.llm.torchtune_engine",
    Engine.trl: "multicard.llm.trl.engine",
}
TRL_METHODS = ("lora", "qlora", "full", "dpo", "qat")


def check_engine(config: LlmConfig) -> None:
    """Refuse (ValueError) options that the engine does not support, or would ignore in silence."""
    if config.world_size == 1 and config.sharding is not Sharding.fsdp:
        raise Refusal(
            "llm.sharding-alone",
            f"sharding={config.sharding}: one GPU has no other GPU to share the model with; leave"
            " the key out, or use `gpus=2`",
            key="sharding",
            value=config.sharding,
        )
    is_hf = isinstance(config.model, HfConfig)
    if is_hf != (config.tokenizer.name == "own"):
        raise Refusal(
            "llm.tokenizer-of-another-model",
            f"tokenizer={config.tokenizer.name}: does not fit model={config.model.name}. Only"
            " model=hf has its own tokenizer, and accepts no other; leave the key out",
            key="tokenizer",
            value=config.tokenizer.name,
            model=config.model.name,
        )
    if config.engine is Engine.torchtune:
        _check_torchtune(config)
    elif config.engine is Engine.trl:
        _check_trl(config)


def _check_torchtune(config: LlmConfig) -> None:
    if isinstance(config.model, HfConfig):
        raise Refusal(
            "llm.torchtune-model",
            "model=hf: torchtune only has its own models; use `engine=trl`",
            key="model",
        )
    if config.sharding is Sharding.ddp:
        raise Refusal(
            "llm.torchtune-sharding",
            f"sharding={config.sharding}: torchtune's recipes only support FSDP2; use `engine=trl`,"
            " or `sharding=fsdp`",
            key="sharding",
            value=config.sharding,
        )


def _check_trl(config: LlmConfig) -> None:
    missing = [name for name in ("trl", "peft", "bitsandbytes") if find_spec(name) is None]
    if missing:
        raise Refusal(
            "llm.no-trl",
            f"engine=trl: needs {', '.join(missing)}; run `{install('trl')}`",
            key="engine",
            missing=missing,
        )
    method = config.method
    if method.name not in TRL_METHODS:
        options = ", ".join(f"`method={other}`" for other in TRL_METHODS)
        raise Refusal(
            "llm.trl-method",
            f"method={method.name}: is not supported by engine=trl; use {options}, or"
            " `engine=torchtune`",
            key="method",
            value=method.name,
        )
    if config.recipe is not Recipe.auto:
        raise Refusal(
            "llm.trl-recipe",
            f"recipe={config.recipe}: is an option of torchtune only; leave the key out, or use"
            " `engine=torchtune`",
            key="recipe",
            value=config.recipe,
        )
    if config.optimizer_in_bwd:
        raise Refusal(
            "llm.trl-optimizer-in-bwd",
            "optimizer_in_bwd=true: TRL has no such option; leave the key out, or use"
            " `engine=torchtune`",
            key="optimizer_in_bwd",
        )
    if config.custom_sharded_layers:
        raise Refusal(
            "llm.trl-sharded-layers",
            f"custom_sharded_layers={config.custom_sharded_layers}: accelerate shards each layer"
            " separately, and all other weights together; leave the key out, or use"
            " `engine=torchtune`",
            key="custom_sharded_layers",
            value=list(config.custom_sharded_layers),
        )
    if config.offloads and method.name == "qat":
        raise Refusal(
            "llm.trl-qat-offload",
            f"sharding={config.sharding}: with engine=trl, method=qat gathers the output on the"
            " GPU; use `sharding=fsdp`, or `engine=torchtune`",
            key="sharding",
            value=config.sharding,
        )
    if isinstance(method, LoraConfig) and method.apply_lora_to_output:
        raise Refusal(
            "llm.trl-output-adapter",
            "method.apply_lora_to_output=true: TRL's loss reads the output's weights, and would"
            " skip an adapter; leave the key out, or use `engine=torchtune`",
            key="method.apply_lora_to_output",
        )
