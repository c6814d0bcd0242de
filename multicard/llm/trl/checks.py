"""What is tried of a model before it is tuned: refusals of models
that would be tuned otherwise than asked for.

What is tried leaves no trace: the model is afterwards as it was built (`tried`).
"""

from typing import Any

import torch
from bitsandbytes.nn.modules import Linear4bit
from torchao.quantization.qat.linear import Int8DynActInt4WeightQATLinear

from multicard.config.llm import Kernels, LlmConfig
from multicard.config.llm_models import HfConfig
from multicard.llm import methods
from multicard.llm.no_trace import tried
from multicard.llm.trl.models import linears, reading
from multicard.llm.trl.text_part import text_parameters
from multicard.messages import Refusal


def check_quantised(model: Any, config: LlmConfig) -> None:
    """Refuse (ValueError) a method that would leave layers as they are: it knows linears, not the
    weights of experts that are one tensor, and torchao passes over linears whose width no group
    divides.
    """
    method = methods.chosen(config)
    if method.nf4 or method.fake_quantised:
        kind = Linear4bit if method.nf4 else Int8DynActInt4WeightQATLinear
        own = text_parameters(model)
        left = [name for name, part in linears(model).items() if not isinstance(part, kind)]
        left += [
            name
            for name, weight in model.named_parameters()
            if weight.dim() == 3 and "conv" not in name and id(weight) in own
        ]
        if left:
            another = ", or another method.groupsize" if method.fake_quantised else ""
            raise Refusal(
                "llm.folder-unquantised",
                f"method={config.method.name}: would not quantise {left[0]} ({len(left)} such); "
                f"use `method=lora` or `method=full`{another}",
                key="method",
                value=config.method.name,
                first=left[0],
                count=len(left),
                groups=method.fake_quantised,
            )


def check_kernels(model: Any, config: LlmConfig) -> None:
    """Refuse (ValueError) Liger's kernels of a model that it does not know,
    which it would leave as it is.
    """
    if config.kernels is not Kernels.liger:
        return
    from liger_kernel.transformers import (
        monkey_patch,
    )  # pyright: ignore[reportMissingImports]  an extra

    kind = model.config.model_type
    if kind not in monkey_patch.MODEL_TYPE_TO_APPLY_LIGER_FN:
        raise Refusal(
            "llm.liger-model",
            f"kernels=liger: liger-kernel has none for {kind}; use `kernels=torch`",
            key="kernels",
            model=kind,
        )


def check_rows(model: Any, config: LlmConfig) -> None:
    """Refuse (ValueError) a model whose tokens read later ones or, of packed rows, those of another
    row: many that transformers has (Falcon, OPT, Mamba) do not tell rows apart by their positions.
    Refuse one too whose own logits are not those of TRL's loss, which scales and caps them by the
    names that configurations have for it.
    """
    tokens = torch.arange(8, device=next(model.parameters()).device)[None]  # two rows of four
    options = {"use_cache": False} | ({"position_ids": tokens % 4} if config.packed else {})
    others = [torch.where(part, tokens + 8, tokens) for part in (tokens < 4, tokens >= 4)]
    assert isinstance(config.model, HfConfig)
    path = config.model.path
    with tried(model), reading(config.model, "TRL"):
        own, *changed = (
            model(input_ids=each, **options).logits[0].float() for each in (tokens, *others)
        )
        scored = model(input_ids=tokens, labels=tokens, fused_lm_head=True, **options).log_probs[0]
    rounding = (1e-3 if config.formats.products == "fp32" else 0.05) * own.std()
    first, second = ((own - other).abs().amax(1) < rounding for other in changed)
    if not second[:4].all():
        raise Refusal(
            "llm.folder-not-causal",
            f"model.path={path}: the model is not causal, as its tokens attend to later ones; "
            "give the folder of a causal language model",
            key="model.path",
            value=path,
        )
    if config.packed and not first[4:].all():
        raise Refusal(
            "llm.folder-packed",
            "packed=true: the model reads all rows of a packed sequence as one row; use"
            " `packed=false`",
            key="packed",
        )
    expected = own[:-1].log_softmax(1).gather(1, tokens[0, 1:, None])[:, 0]
    if not ((scored - expected).abs() < rounding).all():
        raise Refusal(
            "llm.folder-logits",
            f"model.path={path}: TRL's loss reads other logits than the model's own; give another"
            " folder",
            key="model.path",
            value=path,
        )
