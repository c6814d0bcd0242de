"""Define what TRL's trainers support. Imports no torch."""

from importlib.util import find_spec

from multicard.config.llm import LlmConfig, Recipe
from multicard.llm import methods
from multicard.llm.engine_kind import EngineKind
from multicard.llm.method_options import LoraConfig
from multicard.messages import Refusal, install

METHODS = ("lora", "qlora", "full", "dpo", "qat")


class TrlKind(EngineKind):
    """The trainers of TRL, with PEFT, accelerate and transformers."""

    module = "multicard.llm.trl.engine"
    memory_module = "multicard.estimate.memory.trl_step"
    memory_note = "engine=trl: compared only on CPU ranks, as if all tokens were labelled"
    masks_padding = True

    def compiles(self, config: LlmConfig) -> bool:
        """The layers must be plain linears with adapters."""
        method = methods.chosen(config)
        return not method.nf4 and not method.fake_quantised

    def check_own(self, config: LlmConfig) -> None:
        missing = [name for name in ("trl", "peft", "bitsandbytes") if find_spec(name) is None]
        if missing:
            raise Refusal(
                "llm.no-trl",
                f"engine=trl: needs {', '.join(missing)}; run `{install('trl')}`",
                key="engine",
                missing=missing,
            )
        method = config.method
        if method.name not in METHODS:
            options = ", ".join(f"`method={other}`" for other in METHODS)
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
                f"custom_sharded_layers={config.custom_sharded_layers}: accelerate shards each"
                " layer separately, and all other weights together; leave the key out, or use"
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
