"""Compute the work of a tuning step: the FLOPs of its products, and the bytes that it must move.

Records compute it for the run that was measured (`summary`), and predictions for a run to come
(`estimate.roofline`). Imports no torch.
"""

from multicard.config.llm import LlmConfig, Sharding
from multicard.llm import methods, models
from multicard.records.rank_files import ModelSizes

BYTES_OF_FORMAT = {"fp32": 4, "bf16": 2}  # Bytes of a number.
NF4_BYTES = 0.5 + 1 / 64  # Bytes of a weight, with its share of its block's 8-bit scale.
CAST_BYTES = 4.0  # Autocast writes a weight in bf16 for a pass, and then reads it.


def sizes_of_decoder(config: LlmConfig, vocabulary: int) -> ModelSizes:
    """Return the sizes of a decoder, computed from its configuration."""
    model = config.model
    linear_weights = sum(rows * columns for rows, columns in models.linears(model).values())
    output = vocabulary * model.embed_dim
    biases = model.num_kv_heads * model.head_dim * 2 + model.embed_dim
    norms = 2 * model.embed_dim
    layer_parameters = linear_weights + norms + (biases if models.family(model).qkv_bias else 0)
    embeddings = output if model.tied else 2 * output
    return ModelSizes(
        layers=model.num_layers,
        weights=model.num_layers * linear_weights + output,
        output=output,
        width=model.num_layers * model.embed_dim,
        parameters=model.num_layers * layer_parameters + model.embed_dim + embeddings,
        adapters=methods.adapter_parameters(config, vocabulary),
    )


def model_flops(sizes: ModelSizes, length: float, reference_passes: int) -> float:
    """Return the operations that training takes for one token (see `models.flops`).

    Args:
        length: Length of the token's row in tokens, with padding: the mean over all tokens.
        reference_passes: Number of forward passes through a frozen reference model in a step.
    """
    return models.flops(sizes.weights, sizes.width, length, sizes.adapters, reference_passes)


def executed_flops(config: LlmConfig, sizes: ModelSizes, length: float, is_causal: bool) -> float:
    """Return the operations that a GPU executes for one token.

    With activation checkpointing, this is one more forward pass than the model's own work. The
    output is not really recomputed, so the result may be up to a tenth too high.

    Args:
        is_causal: True if the attention skips the half that a token does not attend to.
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
    """Return how often the products of a batch read all weights.

    They do so in the forward and the backward pass, for recomputation, and in the passes of a
    reference model.
    """
    return 2 + int(config.activation_checkpointing) + methods.chosen(config).reference_passes


def weight_bytes(config: LlmConfig) -> float:
    """Return the bytes of a stored weight."""
    return NF4_BYTES if methods.chosen(config).nf4 else BYTES_OF_FORMAT[config.formats.weights]


def read_bytes(config: LlmConfig, sizes: ModelSizes) -> float:
    """Return the bytes of weights that the products of a step read: all weights in each pass."""
    bytes_of_weight = weight_bytes(config) + (CAST_BYTES if config.formats.are_mixed else 0.0)
    return config.gradient_accumulation_steps * passes(config) * sizes.weights * bytes_of_weight


def update_bytes(config: LlmConfig, sizes: ModelSizes) -> float:
    """Return the bytes that a rank's gradients and optimizer move in a step.

    Each gradient is written and read once a batch. AdamW reads the weight, the gradient and two
    states, and writes the weight and the states. If weights are sharded, it only does so for the
    rank's shard.
    """
    number_bytes = BYTES_OF_FORMAT[config.formats.weights]
    state_bytes = 1 if config.optimizer.has_8_bits else number_bytes
    shards = config.world_size if config.distributed and config.sharding is not Sharding.ddp else 1
    gradients = 2 * number_bytes * config.gradient_accumulation_steps
    return sizes.trained * (gradients + (3 * number_bytes + 4 * state_bytes) / shards)


def exchanged_bytes(config: LlmConfig, sizes: ModelSizes) -> float:
    """Return the bytes that a rank receives in a step with ring collectives.

    For each batch, FSDP gathers the weights for the forward pass, the backward pass and the passes
    of a reference model, and scatters the sums of the gradients. DDP sums gradients once a step.
    """
    ranks = config.world_size
    if ranks == 1:
        return 0.0
    number_bytes = BYTES_OF_FORMAT[config.formats.weights]
    gradients = sizes.trained * number_bytes * (ranks - 1) / ranks
    if config.sharding is Sharding.ddp:
        return 2 * gradients
    gathered_bytes = (
        BYTES_OF_FORMAT[config.formats.products]
        if config.formats.are_mixed
        else weight_bytes(config)
    )
    gathers = 2 + methods.chosen(config).reference_passes
    weights = gathers * sizes.parameters * gathered_bytes * (ranks - 1) / ranks
    return config.gradient_accumulation_steps * (weights + gradients)
