"""The work of a tuning step: operations of its products, and bytes that its GPU moves whatever else
happens. No torch.

Records count it of what ran (`summary`), and predictions of what would (`estimate.roofline`).
"""

from multicard.config.llm import LlmConfig, Sharding
from multicard.llm import methods, models
from multicard.records.rank_files import ModelSizes

BYTES = {"fp32": 4, "bf16": 2}  # of a number
NF4_BYTES = 0.5 + 1 / 64  # of a weight, with its share of a block's scale in 8 bits
CAST_BYTES = 4.0  # of a weight that autocast turns into bf16 for a pass: written, then read


def of_decoder(config: LlmConfig, vocabulary: int) -> ModelSizes:
    """The sizes of a model that is known by its name."""
    model = config.model
    layer = sum(rows * columns for rows, columns in models.linears(model).values())
    output = vocabulary * model.embed_dim
    biases = model.num_kv_heads * model.head_dim * 2 + model.embed_dim
    norms = 2 * model.embed_dim
    own = layer + norms + (biases if models.family(model).qkv_bias else 0)
    embeddings = output if model.tied else 2 * output
    return ModelSizes(
        layers=model.num_layers,
        weights=model.num_layers * layer + output,
        output=output,
        width=model.num_layers * model.embed_dim,
        parameters=model.num_layers * own + model.embed_dim + embeddings,
        adapters=methods.adapter_parameters(config, vocabulary),
    )


def model_flops(sizes: ModelSizes, length: float, reference_passes: int) -> float:
    """Operations that training on a token takes (`models.flops`).

    Args:
        length: mean over the tokens of their row's length, in tokens, padding included.
        reference_passes: forward passes of a frozen reference model a step.
    """
    return models.flops(sizes.weights, sizes.width, length, sizes.adapters, reference_passes)


def executed_flops(config: LlmConfig, sizes: ModelSizes, length: float, is_causal: bool) -> float:
    """Operations that a GPU executes for a token.

    With activation checkpointing a forward pass more than the model's own work: with the output,
    which is not recomputed, and so up to a tenth too many.

    Args:
        is_causal: attention leaves out what a token does not attend to, which is half of it.
    """
    passes = methods.chosen(config).reference_passes
    attention = 4 * sizes.width * length
    flops = model_flops(sizes, length, passes)
    attended = 3 + passes
    if config.activation_checkpointing:
        flops += 2 * sizes.weights + 2 * (sizes.adapters or 0) + attention
        attended += 1
    return flops - attended * attention / 2 if is_causal else flops


def passes(config: LlmConfig) -> int:
    """How often a batch's products read all weights: forward, backward, recomputed,
    of a reference.
    """
    return 2 + int(config.activation_checkpointing) + methods.chosen(config).reference_passes


def weight_bytes(config: LlmConfig) -> float:
    """Bytes that a weight takes where it is held."""
    return NF4_BYTES if methods.chosen(config).nf4 else BYTES[config.formats.weights]


def read_bytes(config: LlmConfig, sizes: ModelSizes) -> float:
    """Bytes of weights that products of a step read at the least: all of them in each pass."""
    a_weight = weight_bytes(config) + (CAST_BYTES if config.formats.are_mixed else 0.0)
    return config.gradient_accumulation_steps * passes(config) * sizes.weights * a_weight


def update_bytes(config: LlmConfig, sizes: ModelSizes) -> float:
    """Bytes that gradients and the optimiser move in a step of a rank.

    Of each value that is trained: its gradient is written and read with each batch; AdamW reads
    the weight, the gradient and two states, and writes the weight and the states, of the rank's
    shard where weights are sharded.
    """
    held = BYTES[config.formats.weights]
    state = 1 if config.optimizer.has_8_bits else held
    shards = config.world_size if config.distributed and config.sharding is not Sharding.ddp else 1
    gradients = 2 * held * config.gradient_accumulation_steps
    return sizes.trained * (gradients + (3 * held + 4 * state) / shards)


def exchanged_bytes(config: LlmConfig, sizes: ModelSizes) -> float:
    """Bytes that a rank receives in a step, by the ring.

    FSDP gathers the weights for the forward and the backward pass of each batch (and for a
    reference's), and scatters the sums of gradients; DDP sums gradients once a step.
    """
    ranks = config.world_size
    if ranks == 1:
        return 0.0
    held = BYTES[config.formats.weights]
    gradients = sizes.trained * held * (ranks - 1) / ranks
    if config.sharding is Sharding.ddp:
        return 2 * gradients
    gathered = BYTES[config.formats.products] if config.formats.are_mixed else weight_bytes(config)
    gathers = 2 + methods.chosen(config).reference_passes
    weights = gathers * sizes.parameters * gathered * (ranks - 1) / ranks
    return config.gradient_accumulation_steps * (weights + gradients)
