"""The time of a tuning step on a GPU without measurements, as an interval by its published rates.

    products = executed operations / (peak x efficiency)
    reads    = bytes of weights that products read / (memory's rate x share)
    moves    = bytes of the update, and of NF4 and simulated int4 / (memory's rate x share)
    GPU      = max(products, reads) + moves
    host     = layers x batches x launches of a layer
    exchange = bytes between ranks / (links' rate x share)

    low   = max(GPU, host, exchange)
    value = max(GPU, host) + exchange / 2
    high  = max(GPU, host) + min(GPU, host) / 2 + exchange

Each term has a range (the constants below). Kernels are launched ahead, so that the longer of GPU
and host counts. FSDP hides none, some or all of its exchange. The ranges span published tuning
steps (`tests/estimate/tuning_rates.csv`). The result is no measurement: on a machine with a slow
host, a step of few tokens takes ten times as long as on a fast one.
"""

from dataclasses import dataclass
from typing import NamedTuple

from multicard.config.llm import Attention, LlmConfig
from multicard.estimate.memory.facts import TextFacts
from multicard.llm import methods, step_work
from multicard.machine.gpu_models import GpuModel
from multicard.messages import Message
from multicard.records.rank_files import ModelSizes
from multicard.records.schema_parts import PredictedInterval


class Range(NamedTuple):
    """The least, the likely and the largest value of a quantity."""

    least: float
    likely: float
    most: float


# Share of the published peak that products reach while a GPU computes. The keys are the format and
# whether the layers are compiled. Pointwise kernels between the products are included.
EFFICIENCY = {
    ("bf16", False): Range(0.28, 0.42, 0.62),
    ("bf16", True): Range(0.32, 0.50, 0.70),
    ("fp32", False): Range(0.35, 0.60, 0.90),
    ("fp32", True): Range(0.35, 0.60, 0.90),
}
# Factor on the least efficiency if attention keeps matrices of S x S in memory.
EAGER_ATTENTION = 0.5
# Seconds in which a host launches a layer's forward and backward pass and its share of the update.
# The hosts of published figures take 5 ms. The host of an H200 took 10 ms with torchtune and 15 ms
# with TRL.
LAUNCH_S = {False: Range(1.5e-3, 5e-3, 16e-3), True: Range(0.4e-3, 1.5e-3, 6e-3)}
RECOMPUTED = 4 / 3  # Factor on the launches: each layer has one forward pass more.
MEMORY_SHARE = Range(0.5, 0.75, 0.95)  # Share of the memory's published rate.
LINKS_SHARE = Range(0.25, 0.6, 0.9)
# Per GPU, from Ethernet with 25 Gb/s to InfiniBand with 400 Gb/s.
BETWEEN_NODES_BYTES_PER_S = Range(3e9, 25e9, 50e9)
# Bytes that move per weight and pass. Turning NF4 into bf16 takes one kernel at least, and several
# in torchao. Simulating int4 takes torch's operators in fp32. No step of QAT is published.
FROM_NF4_BYTES = Range(2.5, 12.0, 60.0)
TO_INT4_BYTES = Range(30.0, 90.0, 300.0)
# Tokens of a row, padding included, if the rows are not available. The papers' extracts and Alpaca
# have 57 to 280.
ROW_TOKENS = Range(50.0, 200.0, 800.0)
# Half-width, as a share, of a mean step's tokens: rows are drawn at random.
STEPS_DIFFER = 0.1


@dataclass(frozen=True)
class Roofline:
    """A step by the roofline.

    Fields:
        step_s: the interval in seconds.
        tokens: tokens that a rank computes in the step, padding included.
        mfu: the record's `mfu`, for the slowest and the fastest step.
        tokens_per_s: tokens of all ranks, padding included, for the slowest and the fastest step.
    """

    step_s: PredictedInterval
    tokens: float
    mfu: tuple[float, float]
    tokens_per_s: tuple[float, float]

    def about(self, gpu: GpuModel) -> Message:
        """Return the basis of the interval, in words."""
        least, most = self.tokens_per_s
        lowest, highest = self.mfu
        sentence = (
            f"not measured, by the published rates of {gpu.name}: {self.tokens:,.0f} tokens a step"
            f" and GPU at {least:,.0f} to {most:,.0f} tokens/s (MFU {100 * lowest:.2g} to"
            f" {100 * highest:.2g} %)"
        )
        return Message(
            "estimate.roofline",
            sentence,
            gpu=gpu.name,
            tokens=self.tokens,
            tokens_per_s=[least, most],
            mfu=[lowest, highest],
        )


def step(
    config: LlmConfig, gpu: GpuModel, facts: TextFacts, sizes: ModelSizes
) -> Roofline | Message:
    """Return a rank's step on a GPU, or why there is no bound: a needed rate is not published."""
    peak = gpu.flops_per_s.get(config.formats.products)
    if peak is None:
        sentence = f"precision={config.precision.name}: no peak of {gpu.name} is published for it"
        return Message("roofline.no-peak", sentence, key="precision", gpu=gpu.name)
    if config.offloads:
        sentence = f"sharding={config.sharding}: the host updates the weights, at no published rate"
        return Message("roofline.offloaded", sentence, key="sharding", value=str(config.sharding))
    tokens = tokens_of_a_step(config, facts)
    length = row_length(config, facts)
    low = _terms(config, gpu, sizes, peak, tokens.least, length.least, fast=2)
    likely = _terms(config, gpu, sizes, peak, tokens.likely, length.likely, fast=1)
    high = _terms(config, gpu, sizes, peak, tokens.most, length.most, fast=0)
    step_s = PredictedInterval(
        value=max(likely.gpu_s, likely.host_s) + likely.exchange_s / 2,
        low=max(low.gpu_s, low.host_s, low.exchange_s),
        high=max(high.gpu_s, high.host_s) + min(high.gpu_s, high.host_s) / 2 + high.exchange_s,
    )
    # Tokens per second of one rank.
    slowest = tokens.most / step_s.high
    fastest = tokens.least / step_s.low
    passes = methods.chosen(config).reference_passes
    return Roofline(
        step_s=step_s,
        tokens=tokens.likely,
        mfu=(
            slowest * step_work.model_flops(sizes, length.most, passes) / peak,
            fastest * step_work.model_flops(sizes, length.least, passes) / peak,
        ),
        tokens_per_s=(config.world_size * slowest, config.world_size * fastest),
    )


class StepTerms(NamedTuple):
    gpu_s: float
    host_s: float
    exchange_s: float


def _terms(
    config: LlmConfig,
    gpu: GpuModel,
    sizes: ModelSizes,
    peak: float,
    tokens: float,
    length: float,
    fast: int,
) -> StepTerms:
    """Return the terms of a step at one end of their ranges, or at the likely values.

    Args:
        tokens: tokens of the step.
        length: tokens of a row.
        fast: index into a range of rates. Ranges of costs use the opposite index.
    """
    slow = 2 - fast
    efficiency = EFFICIENCY[config.formats.products, config.compile][fast]
    if config.attention is Attention.eager and fast == 0:
        efficiency *= EAGER_ATTENTION
    is_causal = config.attention is not Attention.eager
    flops = tokens * step_work.executed_flops(config, sizes, length, is_causal)
    memory = gpu.memory_bytes_per_s * MEMORY_SHARE[fast]
    moved = step_work.update_bytes(config, sizes) + _converted_bytes(config, sizes, slow)
    products_s = flops / (peak * efficiency)
    reads_s = step_work.read_bytes(config, sizes) / memory
    launches = sizes.layers * config.gradient_accumulation_steps
    if config.activation_checkpointing:
        launches *= RECOMPUTED
    links = gpu.links_bytes_per_s * LINKS_SHARE[fast]
    if config.nodes > 1:
        links = min(links, BETWEEN_NODES_BYTES_PER_S[fast])
    return StepTerms(
        gpu_s=max(products_s, reads_s) + moved / memory,
        host_s=launches * LAUNCH_S[config.compile][slow],
        exchange_s=step_work.exchanged_bytes(config, sizes) / links,
    )


def _converted_bytes(config: LlmConfig, sizes: ModelSizes, index: int) -> float:
    """Return the bytes that move when frozen weights leave NF4, or when weights simulate int4.

    The output layer does neither.
    """
    method = methods.chosen(config)
    bytes_per_weight = 0.0
    if method.nf4:
        bytes_per_weight = FROM_NF4_BYTES[index]
    elif method.fake_quantised:
        bytes_per_weight = TO_INT4_BYTES[index]
    passes = step_work.passes(config) * config.gradient_accumulation_steps
    return bytes_per_weight * passes * (sizes.weights - sizes.output)


def tokens_of_a_step(config: LlmConfig, facts: TextFacts) -> Range:
    """Return the tokens that a rank computes in a step, padding included."""
    rows = config.batch_size * config.gradient_accumulation_steps
    if config.packed:
        whole = float(rows * (config.max_seq_len or 0))
        return Range(whole, whole, whole)
    if methods.chosen(config).pairs:
        rows *= 2
    row_tokens = padded_row(config, facts)
    return Range(*(rows * tokens for tokens in row_tokens))


def row_length(config: LlmConfig, facts: TextFacts) -> Range:
    """Return the length over which a token attends. In packed sequences, it is its own row's."""
    if not config.packed or facts.rows is None:
        return padded_row(config, facts)
    cut = [min(tokens, config.max_seq_len or tokens) for tokens in facts.rows]
    mean = sum(tokens * tokens for tokens in cut) / sum(cut)
    return Range(mean, mean, mean)


def padded_row(config: LlmConfig, facts: TextFacts) -> Range:
    """Return the mean tokens of a row once its batch is padded to the longest row."""
    limit = config.max_seq_len or config.model.max_seq_len or max(facts.lengths)
    if facts.rows is None:
        return Range(*(min(tokens, float(limit)) for tokens in ROW_TOKENS))
    rows_per_batch = config.batch_size * (2 if methods.chosen(config).pairs else 1)
    mean = mean_of_longest([min(tokens, limit) for tokens in facts.rows], rows_per_batch)
    return Range(mean * (1 - STEPS_DIFFER), mean, mean * (1 + STEPS_DIFFER))


def mean_of_longest(lengths: list[int], rows: int) -> float:
    """Return the expected longest of some rows, drawn with replacement.

    For n sorted lengths x_i it is the sum of x_i ((i / n)^rows - ((i - 1) / n)^rows).
    """
    count = len(lengths)
    total = 0.0
    for position, length in enumerate(sorted(lengths), start=1):
        total += length * ((position / count) ** rows - ((position - 1) / count) ** rows)
    return total
