"""Explain what bounds a tuning step in which products take little time, and what to try next.

From the published rates of a GPU follows the least time of a step's products and memory traffic. If
they take less than a third of the step, the GPU is idle for most of it, or runs kernels far below
its rates. On one GPU, in plain formats, only the host can be the cause: it launches kernels too
slowly for so few tokens. With several ranks, or with weights that are converted from NF4, the
exchange or the conversion may be the cause as well. Then only ablations (`diagnose=true`) can
decide. Imports no torch.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

from msgspec import UNSET

from multicard.config.llm import Attention, LlmConfig
from multicard.config.placement import Placement
from multicard.llm import axes, methods, preflight, step_work
from multicard.machine import environment
from multicard.machine.gpu_models import known
from multicard.messages import Message
from multicard.records import limits
from multicard.records.arithmetic import Arithmetic
from multicard.records.limits import Forbids
from multicard.records.schema import LlmRecord

THIRD = 1 / 3
DIAGNOSE = "diagnose=true"
# These limits do not disturb the finding: the median step leaves out slow and stalled steps.
UNDISTURBING = {limits.SLOW_STEPS.code, limits.STALLED.code}
PACKED_TO = (2048, 1024, 512, 256)  # Lengths in tokens to propose for packing.
PACKED_UNSEEN = 512  # The proposed length if the rows are not counted yet.
USABLE_MEMORY = 0.9  # Share of a GPU's memory that a larger step may use.
LEAST_ACTIVATIONS = 0.05  # At least this share of a peak is assumed to grow with the batch.
MOST_GROWTH = 64  # An advice makes a batch at most this many times as large.
GROWTH_UNKNOWN = 2.0  # The same if the memory of the GPU is not known.
LEAST_STEPS = 5  # An epoch must still have this many steps to measure.


def explain(config: LlmConfig, placement: Placement, record: LlmRecord) -> None:
    """Add to a record what its GPU waits for, if products take less than a third of a step."""
    arithmetic = record.arithmetic
    if arithmetic is None or not _is_reliable(record) or arithmetic.share >= THIRD:
        return
    arithmetic.cause = _cause(config, record, arithmetic)
    arithmetic.tries = _overrides_to_try(config, placement, record, arithmetic)
    finding = _finding(record, arithmetic)
    arithmetic.finding = str(finding)
    advice = ", then ".join(f"`{words}`" for words in arithmetic.tries)
    sentence = f"{finding}. To try next: {advice}" if advice else str(finding)
    arithmetic.sentence = str(
        Message(
            "diagnosis.little-arithmetic",
            sentence,
            cause=arithmetic.cause,
            share=arithmetic.share,
            tokens=arithmetic.tokens,
            mfu=record.mfu,
            mfu_non_padding=record.mfu_non_padding,
            tries=arithmetic.tries,
        )
    )


def _is_reliable(record: LlmRecord) -> bool:
    """Return False if a diagnosis knows more, or if the times are not typical of the setting."""
    forbidding = limits.forbidding(limits.of(record), Forbids.rate, Forbids.verdict)
    disturbed = {limit.code for limit in forbidding} - UNDISTURBING
    return record.diagnosis is None and not disturbed and record.status in ("ok", "diverged")


def _cause(config: LlmConfig, record: LlmRecord, arithmetic: Arithmetic) -> str:
    """Return what takes the rest of a step, as far as a single run shows it."""
    step_s = record.iteration_s.median if record.iteration_s is not None else None
    if step_s and (record.data_s or 0.0) > THIRD * step_s:
        return "input"
    method = methods.chosen(config)
    converts = method.nf4 or method.fake_quantised or config.attention is Attention.eager
    if config.world_size > 1 or converts or arithmetic.moved_share is None:
        return "unknown"
    return "memory" if arithmetic.share + arithmetic.moved_share >= THIRD else "host"


def _finding(record: LlmRecord, arithmetic: Arithmetic) -> Message:
    """Return the cause with its figures: the MFU of all tokens and of non-padding tokens."""
    mfu = "" if record.mfu is None else f", MFU {record.mfu:.1%}"
    if mfu and record.mfu_non_padding is not None:
        mfu += f", without padding {record.mfu_non_padding:.1%}"
    share_of_step = (
        f"at its peak rate, products take {arithmetic.share:.0%} of a step of"
        f" {arithmetic.tokens:,.0f} tokens{mfu}"
    )
    share_of_moving = (
        ""
        if arithmetic.moved_share is None
        else f", and moving weights {arithmetic.moved_share:.0%}"
    )
    sentences = {
        "host": f"the GPU seems to wait for the host: {share_of_step}",
        "memory": (
            "each step reads and writes all weights for few tokens:"
            f" {share_of_step}{share_of_moving}"
        ),
        "input": f"the GPU waits for batches: {share_of_step}",
        "unknown": (
            f"the GPU computes little: {share_of_step}. It is not known whether it waits for the"
            " host, for other GPUs, or for kernels other than products"
        ),
    }
    cause = str(arithmetic.cause)
    return Message("diagnosis.gpu-waits", sentences[cause], cause=cause, share=arithmetic.share)


# ---- what to try next


def _overrides_to_try(
    config: LlmConfig, placement: Placement, record: LlmRecord, arithmetic: Arithmetic
) -> list[str]:
    """Return overrides that would change this configuration and are accepted, the best first."""
    overrides = list[str]()
    if arithmetic.cause == "unknown":
        overrides.append(DIAGNOSE)
    growth = _possible_growth(config, record)
    for words in (
        _packing_overrides(config, record, growth * arithmetic.tokens),
        _batch_override(config, record, arithmetic, growth),
    ):
        if words is not None:
            overrides.append(words)
    if config.attention is Attention.eager:
        overrides.append("attention=auto")
    if not config.compile:
        overrides.append("compile=true")
    return [
        words for words in overrides if words == DIAGNOSE or is_accepted(config, placement, words)
    ]


def is_accepted(config: LlmConfig, placement: Placement, words: str) -> bool:
    """Return True if this machine accepts the configuration with these overrides."""
    with suppress(ValueError):
        values = {}
        for word in words.split():
            key, _, value = word.partition("=")
            values[key] = _typed(config, key, value)
        changed = replace(config, **values)
        preflight.refuse(changed)
        axes.fits(changed, placement)
        if changed.compile:
            environment.require_compilers(changed.compile, placement.device)
        return True
    return False


def _typed(config: LlmConfig, key: str, value: str) -> object:
    if value in ("true", "false"):
        return value == "true"
    return Attention(value) if key == "attention" else int(value)


def _possible_growth(config: LlmConfig, record: LlmRecord) -> float:
    """Return how many times as many tokens a step could have within the GPU's memory.

    The peak of this run is taken as weights plus activations of its tokens. Gradients and
    optimizer states do not grow with the tokens, but count as activations here. The result is
    therefore on the safe side.
    """
    gpu = known(record.hardware or "")
    peak = record.peak_memory_bytes
    if gpu is None or peak is None or not peak.max:
        return GROWTH_UNKNOWN
    setup = None if peak.setup is UNSET else peak.setup
    weights_bytes = setup or (record.parameters or 0) * step_work.weight_bytes(config)
    growing_bytes = max(peak.max - weights_bytes, LEAST_ACTIVATIONS * peak.max)
    room_bytes = USABLE_MEMORY * gpu.memory_bytes - (peak.max - growing_bytes)
    return min(max(room_bytes / growing_bytes, 1.0), MOST_GROWTH)


def _rows(record: LlmRecord) -> int | None:
    """Return the number of rows in an epoch."""
    rows = record.text_rows
    return None if rows is None or rows.read is None else rows.read - (rows.left_out or 0)


def _packing_overrides(config: LlmConfig, record: LlmRecord, most_tokens: float) -> str | None:
    """Return the overrides that pack rows to the greatest length that memory holds.

    Enough steps must be left to measure. Returns None if rows are already packed, or if no length
    fits.

    Args:
        most_tokens: Number of tokens in a rank's step that memory holds.
    """
    rows = _rows(record)
    trained = record.samples_trained
    tokens = record.tokens.non_padding if record.tokens is not None else None
    if config.packed or methods.chosen(config).pairs or not rows or not trained or not tokens:
        return None
    epoch_tokens = rows * tokens / trained
    accumulation_steps = config.gradient_accumulation_steps
    for length in _packed_lengths(config):
        batch = min(config.batch_size, int(most_tokens / accumulation_steps / length))
        sequences = batch * config.world_size * accumulation_steps
        if batch >= 1 and epoch_tokens / length >= sequences * (config.skip_steps + LEAST_STEPS):
            return packing_overrides(config, length) + (
                f" batch_size={batch}" if batch < config.batch_size else ""
            )
    return None


def _packed_lengths(config: LlmConfig) -> Iterator[int]:
    """Yield lengths for packing: the configured one, or those that the model accepts."""
    if config.max_seq_len is not None:
        yield config.max_seq_len
        return
    # A folder's model without a limit of positions has the limit 0.
    limit = config.model.max_seq_len or PACKED_TO[0]
    yield from (length for length in PACKED_TO if length <= limit)


def packing_overrides(config: LlmConfig, length: int | None = None) -> str:
    """Return the overrides that pack rows, with the length unless it is configured."""
    if config.max_seq_len is not None:
        return "packed=true"
    limit = config.model.max_seq_len or PACKED_UNSEEN
    return f"packed=true max_seq_len={length or min(PACKED_UNSEEN, limit)}"


def _batch_override(
    config: LlmConfig, record: LlmRecord, arithmetic: Arithmetic, most_growth: float
) -> str | None:
    """Return the override for a larger batch.

    Its products should take a third of a step, as far as memory and rows allow. Returns None if
    the batch of all ranks is configured.
    """
    if config.global_batch_size is not None:
        return None
    needed_growth = THIRD / max(arithmetic.share, 1e-6)
    growth = 1
    rows = _rows(record) if not config.packed else (record.text_rows and record.text_rows.sequences)
    steps = config.skip_steps + LEAST_STEPS
    while growth < needed_growth and 2 * growth <= most_growth:
        if rows and rows < 2 * growth * config.rows_of_a_step * steps:
            break
        growth *= 2
    return f"batch_size={growth * config.batch_size}" if growth > 1 else None
