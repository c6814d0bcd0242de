"""The engines, whose loops tune: what each of them refuses. No torch."""

from importlib.util import find_spec

from multicard.config.keys import require
from multicard.config.llm import Engine, HfConfig, LlmConfig, Recipe, Sharding
from multicard.llm.methods import LoraConfig

# By engine the module with `prepared`, which yields its loop, ready to train, with the attributes of torchtune's
# recipes, and `check_built`, which counts what is trained
WORK = {Engine.torchtune: "multicard.llm.recipes", Engine.trl: "multicard.llm.trl.engine"}
TRL_METHODS = ("lora", "qlora", "full", "dpo", "qat")


def check(config: LlmConfig) -> None:
    """Refuse (ValueError) what the engine cannot do, or would do otherwise in silence."""
    several = config.world_size > 1
    problem = f"sharding={config.sharding}: one GPU shares nothing with others"
    require(several or config.sharding is Sharding.fsdp, f"{problem}; leave it out, or use gpus=2")
    is_hf, own = isinstance(config.model, HfConfig), config.tokenizer.name == "own"
    problem = f"tokenizer={config.tokenizer.name}: does not go with model={config.model.name}"
    require(is_hf == own, f"{problem}; leave it out, since model=hf has its own and no other model has one")
    if config.engine is Engine.torchtune:
        require(not is_hf, "model=hf: torchtune has its own models alone; use engine=trl")
        problem = f"sharding={config.sharding}: torchtune's recipes know FSDP2 alone"
        require(config.sharding is Sharding.fsdp, f"{problem}; use engine=trl, or sharding=fsdp")
        return
    missing = [name for name in ("trl", "peft", "bitsandbytes") if find_spec(name) is None]
    require(not missing, f"engine=trl: needs {', '.join(missing)}; run: pip install -e '.[trl]'")
    name, remedy = config.method.name, "or use engine=torchtune"
    problem = f"method={name}: is not built for engine=trl"
    require(name in TRL_METHODS, f"{problem}; use {', '.join(TRL_METHODS)}, {remedy}")
    problem = f"recipe={config.recipe}: is torchtune's"
    require(config.recipe is Recipe.auto, f"{problem}; leave it out, {remedy}")
    problem = "compile=true: transformers' layers compile again within measured steps"
    require(not config.compile, f"{problem}; use compile=false, {remedy}")
    require(not config.optimizer_in_bwd, f"optimizer_in_bwd=true: TRL has no such option; leave it out, {remedy}")
    problem = f"custom_sharded_layers={config.custom_sharded_layers}: accelerate shards each layer and the rest alone"
    require(not config.custom_sharded_layers, f"{problem}; leave it out, {remedy}")
    adapts_output = isinstance(config.method, LoraConfig) and config.method.apply_lora_to_output
    problem = "method.apply_lora_to_output=true: TRL's loss reads the output's weights past an adapter"
    require(not adapts_output, f"{problem}; leave it out, {remedy}")
