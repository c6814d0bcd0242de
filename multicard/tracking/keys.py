"""Every key that a run logs in W&B; docs/reference/wandb.md describes them.

A key is logged if its run measured it. Only DPO has rewards, and some GPUs report no clocks. A
summary has the whole record under the names of result.json, with dots between them.
"""

from multicard.records.figures import ALL, LLM, SCRIPT, VISION

Kinds = tuple[str, ...]  # The kinds of runs that log a key.

STEP = "train/step"  # The x axis of BY_STEP.
REWARDS = tuple(f"train/reward_{name}" for name in ("chosen", "rejected", "margin", "accuracy"))
BY_STEP: dict[str, Kinds] = {
    "train/loss": ALL,
    "train/lr": (LLM,),
    "train/step_s": ALL,
    "train/images_per_s": (VISION,),
    "train/samples_per_s": (SCRIPT,),
    "train/tokens_per_s": (LLM, SCRIPT),
    "train/data_wait_s": ALL,
    **dict.fromkeys(REWARDS, (LLM,)),
}

EPOCH = "epoch"  # The x axis of BY_EPOCH.
BY_EPOCH: dict[str, Kinds] = {
    "epoch/train_loss": ALL,
    "epoch/held_out_loss": (LLM,),
    "epoch/test_loss": (VISION,),
    "epoch/test_accuracy": (VISION,),
    "epoch/train_s": ALL,
    "epoch/evaluate_s": (VISION, LLM),
    "epoch/first_batch_s": (VISION,),
    "epoch/gap_s": (VISION,),
}

# W&B's system panels show these by second. Each has W&B's name after `gpu.<number>.`, and the
# factor that converts to W&B's unit.
GPU_SAMPLES = {
    "power_w": ("powerWatts", 1.0),
    "utilisation": ("gpu", 100.0),
    "memory_bytes": ("memoryAllocatedBytes", 1.0),
    "temperature_c": ("temp", 1.0),
    "sm_clock_mhz": ("smClock", 1.0),
    "memory_clock_mhz": ("memoryClock", 1.0),
}

ATTEMPTS = "attempts"  # In the summary: how often the run was started.
PROFILE_TABLE = "profile/metrics"


def names(table: dict[str, Kinds], kind: str) -> list[str]:
    """Return the keys of a table that runs of this kind log."""
    return [name for name, kinds in table.items() if kind in kinds]
