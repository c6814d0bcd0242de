"""Check a built model before it is tuned, and refuse models that would not be tuned as configured.

The checks that run the model do so within `without_trace`, which leaves the model unchanged.
"""

from typing import Any

import torch
from bitsandbytes.nn.modules import Linear4bit
from torchao.quantization.qat.linear import Int8DynActInt4WeightQATLinear

from multicard.config.llm import Kernels, LlmConfig
from multicard.config.llm_models import HfConfig
from multicard.llm import methods
from multicard.llm.no_trace import without_trace
from multicard.llm.trl.adapters import linears
from multicard.llm.trl.models import refuse_unreadable
from multicard.llm.trl.text_part import text_parameters
from multicard.messages import Refusal


def check_quantised(model: Any, config: LlmConfig) -> None:
    """Refuse (ValueError) a method that would leave layers unquantised.

    It quantises linears, but not experts whose weights are one tensor. torchao also skips linears
    whose width the group size does not divide.
    """
    method = methods.chosen(config)
    if method.nf4 or method.fake_quantised:
        layer_type = Linear4bit if method.nf4 else Int8DynActInt4WeightQATLinear
        text_ids = text_parameters(model)
        unquantised = [
            name for name, part in linears(model).items() if not isinstance(part, layer_type)
        ]
        unquantised += [
            name
            for name, weight in model.named_parameters()
            if weight.dim() == 3 and "conv" not in name and id(weight) in text_ids
        ]
        if unquantised:
            further_remedy = ", or another method.groupsize" if method.fake_quantised else ""
            raise Refusal(
                "llm.folder-unquantised",
                f"method={config.method.name}: would not quantise {unquantised[0]}"
                f" (layers: {len(unquantised)}); use `method=lora` or"
                f" `method=full`{further_remedy}",
                key="method",
                value=config.method.name,
                first=unquantised[0],
                count=len(unquantised),
                groups=method.fake_quantised,
            )


def check_kernels(model: Any, config: LlmConfig) -> None:
    """Refuse (ValueError) Liger's kernels for a model that Liger would ignore in silence."""
    if config.kernels is not Kernels.liger:
        return
    from liger_kernel.transformers import (
        monkey_patch,
    )  # pyright: ignore[reportMissingImports]  an extra

    model_type = model.config.model_type
    if model_type not in monkey_patch.MODEL_TYPE_TO_APPLY_LIGER_FN:
        raise Refusal(
            "llm.liger-model",
            f"kernels=liger: liger-kernel has no kernels for {model_type}; use `kernels=torch`",
            key="kernels",
            model=model_type,
        )


def check_rows(model: Any, config: LlmConfig) -> None:
    """Refuse (ValueError) a model whose training would compute something else than asked for.

    A token may attend to later tokens. With packing, a token may attend to another row: many models
    of transformers (Falcon, OPT, Mamba) do not separate rows by their positions. TRL's loss may
    also compute other logits than the model itself: it scales and caps them if the configuration
    has certain keys.
    """
    tokens = torch.arange(8, device=next(model.parameters()).device)[None]  # Two rows of 4 tokens.
    options = {"use_cache": False} | ({"position_ids": tokens % 4} if config.packed else {})
    first_row_changed = torch.where(tokens < 4, tokens + 8, tokens)
    second_row_changed = torch.where(tokens >= 4, tokens + 8, tokens)

    def logits_of(row_tokens: torch.Tensor) -> torch.Tensor:
        return model(input_ids=row_tokens, **options).logits[0].float()

    assert isinstance(config.model, HfConfig)
    path = config.model.path
    with without_trace(model), refuse_unreadable(config.model, "TRL"):
        own_logits = logits_of(tokens)
        first_logits = logits_of(first_row_changed)
        second_logits = logits_of(second_row_changed)
        trl_log_probs = model(
            input_ids=tokens, labels=tokens, fused_lm_head=True, **options
        ).log_probs[0]
    rounding = (1e-3 if config.formats.products == "fp32" else 0.05) * own_logits.std()
    # For each token, True if its logits stay the same when the tokens of a row change.
    unchanged_by_first = (own_logits - first_logits).abs().amax(1) < rounding
    unchanged_by_second = (own_logits - second_logits).abs().amax(1) < rounding
    if not unchanged_by_second[:4].all():
        raise Refusal(
            "llm.folder-not-causal",
            f"model.path={path}: the model is not causal, because its tokens attend to later ones;"
            " give the folder of a causal language model",
            key="model.path",
            value=path,
        )
    if config.packed and not unchanged_by_first[4:].all():
        raise Refusal(
            "llm.folder-packed",
            "packed=true: the model reads all rows of a packed sequence as one row; use"
            " `packed=false`",
            key="packed",
        )
    model_log_probs = own_logits[:-1].log_softmax(1).gather(1, tokens[0, 1:, None])[:, 0]
    if not ((trl_log_probs - model_log_probs).abs() < rounding).all():
        raise Refusal(
            "llm.folder-logits",
            f"model.path={path}: the logits in TRL's loss differ from the model's own; give another"
            " folder",
            key="model.path",
            value=path,
        )
