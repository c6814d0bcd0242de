"""The loss of rows by a plain loop of transformers, row by row,
with the weights of a model that an engine tuned.
"""

from collections.abc import Iterable
from copy import deepcopy
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.nn.functional import cross_entropy, logsigmoid
from torchtune.data import CROSS_ENTROPY_IGNORE_IDX
from torchtune.models import convert_weights

from multicard.config.llm import LlmConfig
from multicard.llm import models


def plain_model(config: LlmConfig, model: Any, vocabulary: int, adapted: bool = True) -> Any:
    """A Llama of transformers with the weights of torchtune's model, or of PEFT's;
    with or without its adapters.
    """
    import transformers

    sizes = models.hugging_face_config(config.model, vocabulary)
    plain: Any = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(**sizes)
    )
    if hasattr(model, "merge_and_unload"):  # PEFT's
        own = deepcopy(model)
        state = (own.merge_and_unload() if adapted else own.unload()).state_dict()
    elif hasattr(model, "tok_embeddings"):  # torchtune's
        sharded = model.state_dict()  # of QAT's recipe, which shards on one rank too
        state = {
            name: each.full_tensor() if isinstance(each, DTensor) else each
            for name, each in sharded.items()
        }
        state = merged(state, getattr(config.method, "scale", 0.0), adapted)
        heads, width = (config.model.num_heads, config.model.num_kv_heads), config.model.embed_dim
        state = convert_weights.tune_to_hf(
            state, num_heads=heads[0], num_kv_heads=heads[1], dim=width
        )
    else:
        state = model.state_dict()
    plain.load_state_dict(state)
    return plain.eval()


def merged(state: dict[str, torch.Tensor], scale: float, adapted: bool) -> dict[str, torch.Tensor]:
    """torchtune's weights with its adapters' products added."""
    whole = {name: weight.clone() for name, weight in state.items() if ".lora_" not in name}
    for name, down in state.items():
        if adapted and name.endswith(".lora_a.weight"):
            base = name.replace(".lora_a", "")
            up = state[name.replace("lora_a", "lora_b")]
            whole[base] += scale * (up @ down)
    return whole


@torch.no_grad()
def row_loss(model: Any, tokens: list[int], labels: list[int]) -> tuple[float, int]:
    """A row's sum of nats over its labelled tokens, and their number."""
    logits = model(input_ids=torch.tensor([tokens])).logits[0, :-1]
    following = torch.tensor(labels)[1:]
    nats = cross_entropy(logits, following, ignore_index=CROSS_ENTROPY_IGNORE_IDX, reduction="none")
    return nats.double().sum().item(), int((following != CROSS_ENTROPY_IGNORE_IDX).sum())


def loss(model: Any, rows: Iterable[dict[str, Any]]) -> float:
    """Nats a labelled token."""
    found = [row_loss(model, row["tokens"], row["labels"]) for row in rows]
    return sum(nats for nats, _ in found) / sum(count for _, count in found)


def pairs(
    model: Any, reference: Any, beta: float, rows: Iterable[dict[str, Any]]
) -> tuple[float, float, float]:
    """DPO's loss, the share of pairs with a margin above 0, and the margin: means over pairs."""
    margins = []
    for row in rows:
        margin = 0.0
        for side, sign in (("chosen", 1), ("rejected", -1)):
            own, base = (
                row_loss(m, row[f"{side}_input_ids"], row[f"{side}_labels"])[0]
                for m in (model, reference)
            )
            margin += sign * (base - own)
        margins.append(beta * margin)
    every = torch.tensor(margins, dtype=torch.float64)
    return -logsigmoid(every).mean().item(), (every > 0).double().mean().item(), every.mean().item()
