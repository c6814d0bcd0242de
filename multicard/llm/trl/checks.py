"""Check a built model before it is tuned, and refuse models that would not be tuned as configured.

A refusal is a ValueError. The checks that run the model do so within `without_trace`, which leaves
the model unchanged.
"""

from typing import Any

import torch
from bitsandbytes.nn.modules import Linear4bit
from torch import nn
from torchao.quantization.qat.linear import Int8DynActInt4WeightQATLinear

from multicard.config.llm import Kernels, LlmConfig
from multicard.config.llm_models import HfConfig
from multicard.config.saving import TuningSave
from multicard.llm import methods
from multicard.llm.no_trace import without_trace
from multicard.llm.trl.adapters import linears
from multicard.llm.trl.models import refuse_unreadable
from multicard.llm.trl.text_part import text_parameters
from multicard.messages import Refusal


def check_quantised(model: Any, config: LlmConfig) -> None:
    """Refuse a method, or an int4 model to keep, that would leave layers unquantised."""
    method = methods.chosen(config)
    if method.nf4 or method.fake_quantised:
        layer_type = Linear4bit if method.nf4 else Int8DynActInt4WeightQATLinear
        unquantised = unquantised_layers(model, layer_type)
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
    elif config.save is TuningSave.int4:
        unquantised = unquantised_layers(model, nn.Linear)
        if unquantised:
            raise Refusal(
                "llm.save-unquantised",
                f"save=int4: would not quantise {unquantised[0]} (layers: {len(unquantised)});"
                " use `save=model`",
                key="save",
                first=unquantised[0],
                count=len(unquantised),
            )


def unquantised_layers(model: Any, layer_type: type[nn.Module]) -> list[str]:
    """Return the layers that are not quantised if layers of this type are.

    Experts whose weights are stacked in one tensor are no linears. torchao also skips linears whose
    width the group size does not divide, and the layers of GPT-2.
    """
    text_ids = text_parameters(model)
    unquantised = [
        name for name, part in linears(model).items() if not isinstance(part, layer_type)
    ]
    unquantised += [
        name
        for name, weight in model.named_parameters()
        # Stacked experts have three dimensions, and so have the kernels of convolutions.
        if weight.dim() == 3 and "conv" not in name and id(weight) in text_ids
    ]
    return unquantised


def check_kernels(model: Any, config: LlmConfig) -> None:
    """Refuse Liger's kernels for a model that Liger would silently ignore."""
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


def check_logits(model: Any, config: LlmConfig) -> None:
    """Refuse a model whose training would not compute what was asked for.

    Three things may be wrong:

    - The model is not causal: its tokens attend to later ones.
    - With packing, tokens attend to the row before theirs. Many models of transformers (Falcon,
      OPT, Mamba) ignore the positions that separate rows.
    - TRL's loss computes other logits than the model itself: it scales and caps them if the
      configuration has certain keys.

    To find out, the tokens of one half of a sequence are changed: in which places of the other half
    do the logits change?
    """
    tokens = torch.arange(8, device=next(model.parameters()).device)[None]
    options: dict[str, Any] = {"use_cache": False}
    if config.packed:
        options["position_ids"] = tokens % 4  # Two rows of 4 tokens.
    with_other_first_half = torch.where(tokens < 4, tokens + 8, tokens)
    with_other_second_half = torch.where(tokens >= 4, tokens + 8, tokens)

    def logits_of(row_tokens: torch.Tensor) -> torch.Tensor:
        return model(input_ids=row_tokens, **options).logits[0].float()

    assert isinstance(config.model, HfConfig)
    path = config.model.path
    with without_trace(model), refuse_unreadable(config.model, "TRL"):
        own_logits = logits_of(tokens)
        first_logits = logits_of(with_other_first_half)
        second_logits = logits_of(with_other_second_half)
        trl_log_probs = model(
            input_ids=tokens, labels=tokens, fused_lm_head=True, **options
        ).log_probs[0]
    tolerance = (1e-3 if config.formats.products == "fp32" else 0.05) * own_logits.std()
    # For each place, True if its logits stay the same when the tokens of a half change.
    same_without_first_half = (own_logits - first_logits).abs().amax(1) < tolerance
    same_without_second_half = (own_logits - second_logits).abs().amax(1) < tolerance
    if not same_without_second_half[:4].all():
        raise Refusal(
            "llm.folder-not-causal",
            f"model.path={path}: the model is not causal, because its tokens attend to later ones;"
            " give the folder of a causal language model",
            key="model.path",
            value=path,
        )
    if config.packed and not same_without_first_half[4:].all():
        raise Refusal(
            "llm.folder-packed",
            "packed=true: the model reads all rows of a packed sequence as one row; use"
            " `packed=false`",
            key="packed",
        )
    model_log_probs = own_logits[:-1].log_softmax(1).gather(1, tokens[0, 1:, None])[:, 0]
    if not ((trl_log_probs - model_log_probs).abs() < tolerance).all():
        raise Refusal(
            "llm.folder-logits",
            f"model.path={path}: the logits in TRL's loss differ from the model's own; give another"
            " folder",
            key="model.path",
            value=path,
        )
