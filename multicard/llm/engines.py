"""List the engines, which run the training loop, and refuse options that an engine lacks.

Imports no torch.
"""

from multicard.config.llm import Engine, LlmConfig, Sharding
from multicard.config.llm_models import HfConfig
from multicard.llm.engine_kind import EngineKind
from multicard.llm.torchtune_kind import TorchtuneKind
from multicard.llm.trl_kind import TrlKind
from multicard.messages import Refusal

KINDS: dict[Engine, EngineKind] = {Engine.torchtune: TorchtuneKind(), Engine.trl: TrlKind()}


def kind_of(config: LlmConfig) -> EngineKind:
    """Return what is known about the engine that the configuration selects."""
    return KINDS[config.engine]


def check_engine(config: LlmConfig) -> None:
    """Refuse (ValueError) options that no engine, or not the selected one, supports."""
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
    kind_of(config).check(config)
