"""The schema of steps.parquet: every column, by the kind of run."""

from typing import Annotated

from msgspec import Struct


class CommonSteps(Struct):
    """One row per step and rank."""

    epoch: Annotated[int, "from 0"]
    rank: int
    step: Annotated[int, "number within the epoch, from 0"]
    step_s: Annotated[float, "seconds of the whole step on this rank"]
    data_s: Annotated[
        float, "waiting for the batch (CUDA: the GPU's idle time until the host had it)"
    ]
    loss: Annotated[float, "NaN if the rank knows none"]
    samples: Annotated[int, "samples that were trained on"]


class VisionSteps(CommonSteps):
    """The columns that runs of train_vision.py have in addition to the common ones."""

    h2d_s: Annotated[
        float,
        "copying the batch to the device; a copy that overlaps the previous step counts only as far"
        " as the GPU waited for it",
    ]
    forward_s: float
    backward_s: Annotated[float, "including the exchange of gradients"]
    optimizer_s: float
    loaded: Annotated[int, "samples that the rank loaded; some strategies drop some of them"]
    h2d_images_bytes: int
    h2d_labels_bytes: int


class LlmSteps(CommonSteps):
    """The columns that runs of tune_llm.py have in addition to the common ones. Reward columns are
    NaN unless method=dpo.
    """

    tokens: int
    non_padding: int
    loss_bearing: int
    attended: Annotated[
        int, "sum over tokens of their row's length, packed or not: the work of attention"
    ]
    attended_non_padding: Annotated[int, "the same without padding; absent in older records"]
    h2d_bytes: Annotated[
        int,
        "bytes of the batch; with packed=true, including each token's row number, or the mask on"
        " an old GPU",
    ]
    lr: Annotated[float, "learning rate of the step"]
    grad_norm: Annotated[
        float, "norm of all gradients before clipping; NaN: torchtune without clip_grad_norm"
    ]
    rewards_chosen: float
    rewards_rejected: float
    rewards_accuracies: float


class ScriptSteps(CommonSteps):
    """The columns that runs of measure_script.py have in addition to the common ones.

    `epoch` is 0. Without a DataLoader, `data_s` is 0. It is NaN if the batches are drawn by another
    thread than the one that trains.
    """

    tokens: Annotated[int, "as the script reported them"]
    batches: Annotated[int, "batches that were handed out for the step"]
    loss_told: Annotated[int, "1 if the script reported the loss, else 0"]


STEPS: dict[str, type[CommonSteps]] = {
    "vision": VisionSteps,
    "llm": LlmSteps,
    "script": ScriptSteps,
}
