"""Every key that a run logs in W&B, with the kinds of runs that log it.

Dashboards take their names from here. A key is logged where its run measured it: the rewards by DPO alone, the clocks
by GPUs that report them.
"""

from dataclasses import dataclass

from multicard.records.figures import BOTH, LLM, VISION

SWEEP = "sweep"  # the job type of the run of a whole sweep


@dataclass(frozen=True)
class Key:
    """A key's meaning, with its unit, and the kinds of runs that log it."""

    meaning: str
    kinds: tuple[str, ...] = BOTH


STEP = "train/step"  # the x axis of BY_STEP
BY_STEP = {
    "train/loss": Key("mean over the samples of all ranks; tuning: as rank 0 logs it"),
    "train/lr": Key("learning rate"),
    "train/step_s": Key("seconds of the step, by the slowest rank's clock"),
    "train/images_per_s": Key("images that all ranks trained on, per second", (VISION,)),
    "train/tokens_per_s": Key("non-padding tokens of all ranks, per second", (LLM,)),
    "train/data_wait_s": Key("seconds of waiting for the batch, mean over the ranks"),
    "train/reward_chosen": Key("DPO's implicit reward of the chosen answers", (LLM,)),
    "train/reward_rejected": Key("of the rejected answers", (LLM,)),
    "train/reward_margin": Key("chosen - rejected", (LLM,)),
    "train/reward_accuracy": Key("share of pairs in the right order, 0 to 1", (LLM,)),
}

EPOCH = "epoch"  # the x axis of BY_EPOCH
BY_EPOCH = {
    "epoch/train_loss": Key("mean over the samples trained; tuning: of rank 0's steps"),
    "epoch/test_loss": Key("mean over the test samples", (VISION,)),
    "epoch/test_accuracy": Key("share of test samples classified correctly, 0 to 1", (VISION,)),
    "epoch/train_s": Key("seconds of training, of the slowest rank"),
    "epoch/evaluate_s": Key("seconds of evaluation, of the slowest rank", (VISION,)),
    "epoch/first_batch_s": Key("seconds until the first batch was there", (VISION,)),
    "epoch/gap_s": Key("seconds from the end of the previous evaluation to the first batch", (VISION,)),
}

# By second, on W&B's system panels: W&B's name after `gpu.<number>.`, and the factor to its unit
GPU_SAMPLES = {
    "power_w": ("powerWatts", 1.0),
    "utilisation": ("gpu", 100.0),
    "memory_bytes": ("memoryAllocatedBytes", 1.0),
    "temperature_c": ("temp", 1.0),
    "sm_clock_mhz": ("smClock", 1.0),
    "memory_clock_mhz": ("memoryClock", 1.0),
}
MACHINE_SAMPLES = {"cpu": "cpu", "memory": "memory_percent"}  # W&B's names of machine.parquet's columns, in %
GPU_MEMORY_SHARE = "memoryAllocated"  # %, where the GPU's memory is known

# What people sort by in a summary, beside the figures. A summary has the whole record: the names of result.json, with
# dots between them
SUMMARY = {
    "status": Key("ok, oom, diverged, failed, timeout, preempted, interrupted or refused"),
    "cause.kind": Key("why the run did not end ok"),
    "cause.message": Key("the same in a line"),
    "diagnosis.bound": Key("what bounds the run"),
}
ATTEMPTS = "attempts"  # of a summary: how often the run was started

# Configuration: the record's axes under their own names, GROUPS, and what is below these
CONFIGURATION = "configuration"  # the whole configuration, as group.key below it
MACHINE = "machine"  # facts of environment.json below it
GROUPS = ("hardware", "commit", "identity", "repetition", "data")

PROFILE_TABLE = "profile/metrics"
SWEEP_TABLE = "sweep/runs"
SWEEP_REPORT = "sweep/report"


def names(table: dict[str, Key], kind: str) -> list[str]:
    """The keys of a table that runs of a kind log."""
    return [name for name, key in table.items() if kind in key.kinds]
