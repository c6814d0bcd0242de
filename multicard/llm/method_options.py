"""Define the options of the tuning methods, which are set under `conf/method/`.

Imports no torch.
"""

import math
from dataclasses import dataclass
from typing import Any

from multicard.config.keys import key
from multicard.config.llm import MethodConfig
from multicard.config.roles import WAY_TO_TRAIN, Role
from multicard.messages import Refusal

ATTENTION = ("q_proj", "k_proj", "v_proj", "output_proj")
# PEFT's word for every linear layer but the output layer.
ALL_LINEAR = "all-linear"
FEED_FORWARD = ("mlp.w1", "mlp.w2", "mlp.w3")


@dataclass
class LoraConfig(MethodConfig):
    """Low-rank adapters (Hu et al., 2021) for the named linears.

    `rslora` is from Kalajdzievski, 2023 (arXiv:2312.03732).
    """

    lora_rank: int = key(
        8, "rank of the adapters", WAY_TO_TRAIN, least=1, also=("r", "lora_r", "rank", "lora_dim")
    )
    lora_alpha: float = key(
        16.0,
        "adapters are scaled by lora_alpha / lora_rank",
        Role.identity | Role.learning,
        above=0,
    )
    rslora: bool = key(
        False,
        "scale adapters by lora_alpha / sqrt(lora_rank), so that a higher rank learns as fast",
        Role.identity | Role.learning,
        since=("lora_alpha", False),
    )
    lora_dropout: float = key(
        0.0,
        "share of inputs that an adapter drops, in [0, 1)",
        WAY_TO_TRAIN,
    )
    lora_attn_modules: Any = key(
        list,
        "layers with adapters: q_proj, k_proj, v_proj, output_proj or all-linear; model=hf: any",
        WAY_TO_TRAIN,
    )
    apply_lora_to_mlp: bool = key(True, "adapters in the MLP layers too", WAY_TO_TRAIN)
    apply_lora_to_output: bool = key(False, "an adapter in the output layer too", WAY_TO_TRAIN)

    def __post_init__(self) -> None:
        if not 0 <= self.lora_dropout < 1:
            raise Refusal(
                "llm.lora-dropout",
                f"method.lora_dropout={self.lora_dropout}: is a share; give a value in [0, 1)",
                key="method.lora_dropout",
                value=self.lora_dropout,
            )
        layer_names = self.lora_attn_modules
        if isinstance(layer_names, str):  # PEFT's "all-linear", or one layer without brackets.
            self.lora_attn_modules = [layer_names]
        elif (
            not isinstance(layer_names, list)
            or not layer_names
            or not all(isinstance(name, str) for name in layer_names)
        ):
            raise Refusal(
                "llm.no-adapted-layers",
                f"method.lora_attn_modules={layer_names}: name one or more layers, for example"
                f" `method.lora_attn_modules=[{ATTENTION[0]}]` or"
                f" `method.lora_attn_modules={ALL_LINEAR}`",
                key="method.lora_attn_modules",
            )
        self._check_all_linear()

    def _check_all_linear(self) -> None:
        if not self.adapts_all:
            return
        others = [name for name in self.lora_attn_modules if name != ALL_LINEAR]
        if others:
            raise Refusal(
                "llm.all-linear-and-others",
                f"method.lora_attn_modules={self.lora_attn_modules}: {ALL_LINEAR} names"
                f" {', '.join(others)} too; use `method.lora_attn_modules={ALL_LINEAR}`",
                key="method.lora_attn_modules",
                others=others,
            )
        if not self.apply_lora_to_mlp:
            raise Refusal(
                "llm.all-linear-without-mlp",
                f"method.apply_lora_to_mlp=false: method.lora_attn_modules={ALL_LINEAR} adapts"
                " these layers too; use `method.apply_lora_to_mlp=true`, or"
                f" `method.lora_attn_modules=[{','.join(ATTENTION)}]`",
                key="method.apply_lora_to_mlp",
            )

    @property
    def scale(self) -> float:
        """The factor by which an adapter's product is multiplied."""
        return self.lora_alpha / (math.sqrt(self.lora_rank) if self.rslora else self.lora_rank)

    @property
    def adapts_all(self) -> bool:
        """True if every linear of the layers has an adapter, whatever its name."""
        return ALL_LINEAR in self.lora_attn_modules

    @property
    def attention(self) -> list[str]:
        """The linears of the attention that have adapters, in a decoder that torchtune builds."""
        return list(ATTENTION) if self.adapts_all else list(self.lora_attn_modules)


@dataclass
class DpoConfig(LoraConfig):
    """Direct preference optimisation (Rafailov et al., 2023) of adapters.

    The base model is the reference.
    """

    beta: float = key(
        0.1,
        "how strongly the tuned model is held to the base model",
        Role.identity | Role.learning | Role.loss,
        above=0,
    )


@dataclass
class QatConfig(MethodConfig):
    """Quantisation-aware training of all weights.

    Each linear simulates int4 weights, in groups of `groupsize`, and int8 activations.
    """

    groupsize: int = key(
        256,
        "weights that share a scale; must divide the width of every linear layer",
        WAY_TO_TRAIN,
        least=1,
    )
