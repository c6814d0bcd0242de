"""The schema that all entries share.

Files under `conf/` hold values; these dataclasses hold types, defaults and descriptions.
`__post_init__` refuses values that can never work, `placement.place` what this machine cannot do.
Nothing here imports torch: `--help`, `--cfg job` and refusals are answered in well under a second.
"""

from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from hashlib import sha256
from json import dumps, loads

# OmegaConf reads Optional[...] on every Python that it supports
from typing import Any, ClassVar, Optional

from omegaconf import MISSING

from multicard.config.job import Device
from multicard.config.keys import Group, Tries, flat, key, later_keys, option_name
from multicard.config.prices import PriceConfig
from multicard.config.roles import Role
from multicard.config.sweeps import (
    AUTO,
    Fit,
    PredictConfig,
    ProbeConfig,
    RaceConfig,
    RepeatedConfig,
    check_raced_run,
)
from multicard.messages import Refusal

Backend = StrEnum("Backend", ["auto", "nccl", "gloo"])
Scale = StrEnum("Scale", ["full", "smoke"])
Malloc = StrEnum("Malloc", ["tuned", "system"])
TrackerMode = StrEnum("TrackerMode", ["offline", "online", "disabled"])
# `auto` is nsys on CUDA where it is installed, else kineto;
# a run's record has the one that was taken
ProfileName = StrEnum("ProfileName", ["none", "kineto", "nsys", "auto"])
ProfileWindow = StrEnum("ProfileWindow", ["after", "start"])


@dataclass
class ProfileConfig(Group):
    name: ProfileName = option_name()


@dataclass
class WindowConfig(ProfileConfig):
    """The profiled window.

    `window=after`: steps of their own after training, `skip` as they are, `warmup` with the
    profiler on and its events dropped, then `steps`, or as many as `seconds` take. `window=start`:
    the training itself from its start, evaluation and the starts of epochs included,
    for `seconds`, or `steps`, or to its end.
    """

    window: ProfileWindow = key(
        ProfileWindow.after,
        "after: steps of their own after training; start: training from its start, slowed by it",
        Role.identity | Role.speed,
        since=("steps", "after"),
    )
    skip: int = key(
        3, "window=after: steps before the profiler is switched on", Role.identity, least=0
    )
    warmup: int = key(
        3,
        "window=after: steps whose events are dropped, before those that are profiled",
        Role.identity,
        least=1,
    )
    steps: Optional[int] = key(
        10,
        "steps that are profiled; null, window=start: to the end of the training",
        Role.identity | Role.speed,
        least=1,
    )
    seconds: Optional[float] = key(
        None,
        "profile as many steps as these take, instead of profile.steps",
        Role.identity | Role.speed,
        above=0,
    )
    budget_bytes: int = key(
        1_000_000_000,
        "kineto, window=start: host memory of a rank for events (200 bytes each), at which"
        " recording stops; writing them takes six times as much",
        Role.identity | Role.speed,
        least=1,
        since=("steps", 1_000_000_000),
    )

    def __post_init__(self) -> None:
        is_bounded = self.steps is not None or self.seconds is not None
        if not is_bounded and not self.from_start:
            raise Refusal(
                "config.profile-unbounded",
                "profile.steps=null: give a number of steps, or `profile.seconds=SECONDS`, or"
                " `profile.window=start`",
                key="profile.steps",
            )

    @property
    def from_start(self) -> bool:
        return self.window is ProfileWindow.start


PROFILES: dict[str, type] = {
    name: ProfileConfig if name is ProfileName.none else WindowConfig for name in ProfileName
}
PROFILES |= {"whole": WindowConfig}  # `auto` from the start of a training to its end


@dataclass
class GroupOption(Group):
    """An option of a group; those with keys of their own extend it."""

    name: str = option_name()


@dataclass
class PrecisionConfig(GroupOption):
    """A number format: none has keys beside its name."""


WANDB_NAMES = "W&B takes names of 1 to 128 characters without any of / \\ # ? % :"

LONGEST_TAG = 64


def is_wandb_name(name: str) -> bool:
    """True for names of projects, users and teams that W&B accepts."""
    return 0 < len(name) <= 128 and not set(name) & set("/\\#?%:")


@dataclass
class TrackerConfig:
    mode: TrackerMode = key(
        TrackerMode.offline,
        "offline writes a W&B run to the run folder, online sends it, disabled does neither",
        Role.beside | Role.once | Role.site,
        also=("wandb", "use_wandb", "report_to", "wandb_mode", "logger"),
        means={"true": "online", "wandb": "online", "false": "disabled", "none": "disabled"},
    )
    project: str = key(
        "multicard",
        "W&B project",
        Role.beside | Role.once | Role.site,
        also=("wandb_project",),
    )
    entity: Optional[str] = key(
        None,
        "W&B user or team; null is the default of the account",
        Role.beside | Role.once | Role.site,
        also=("wandb_entity",),
    )
    tags: list[str] = key(list, "W&B tags", Role.beside | Role.once | Role.site)

    def __post_init__(self) -> None:
        for name, value in (("tracker.project", self.project), ("tracker.entity", self.entity)):
            if value is not None and not is_wandb_name(value):
                raise Refusal(
                    "config.wandb-name", f"{name}={value}: {WANDB_NAMES}", key=name, value=value
                )
        for tag in self.tags:
            if not 0 < len(tag) <= LONGEST_TAG:
                raise Refusal(
                    "config.wandb-tag",
                    f"tracker.tags={tag!r}: W&B takes tags of 1 to {LONGEST_TAG} characters",
                    key="tracker.tags",
                    value=tag,
                    longest=LONGEST_TAG,
                )


GLOBAL = "global"  # the `batch_size_asked` of a batch size that follows from `global_batch_size`
ACCUMULATED = "gradient_accumulation_steps"  # key of tuning; training does not accumulate


@dataclass
class RunConfig(RepeatedConfig):
    """The keys that all entries share. `kind` is the record's."""

    kind: ClassVar[str]

    name: str = key(
        MISSING,
        "folder under multirun/; the same command with the same name resumes a sweep",
        Role.beside | Role.planned,
        also=(
            "run_name",
            "experiment_name",
            "exp_name",
            "job_name",
            "output_dir",
            "out_dir",
            "output",
            "log_dir",
            "save_dir",
        ),
    )
    scale: Scale = key(
        Scale.full,
        "smoke shrinks a command to minutes on 2 cores, to try the code (never for figures)",
        Role.identity | Role.work | Role.one_value,
        means={"debug": "smoke", "fast_dev_run": "smoke"},
    )
    oversubscribe: bool = key(
        False,
        "let ranks share a GPU, to try the code (never for figures)",
        Role.identity | Role.speed,
    )
    malloc: Malloc = key(
        Malloc.tuned,
        "CPU ranks: tuned has glibc keep freed memory for reuse; system does not",
        Role.identity | Role.speed,
    )
    rerun: bool = key(
        False,
        "measure again what the named folder already holds",
        Role.beside | Role.once | Role.planned,
        also=("overwrite", "force"),
    )
    profile: ProfileConfig = key(
        MISSING,
        "profiler, for a few steps after the run or from its start",
        Role.identity | Role.observes,
        also=("profiler",),
        means={"true": "auto", "false": "none", "torch": "kineto"},
    )
    diagnose: bool = key(
        False,
        "say what bounds the run, from short runs beside it that each leave one cost out",
        Role.identity | Role.observes,
    )
    predict: PredictConfig = key(
        PredictConfig,
        "what runs would take, without starting them",
        Role.beside | Role.forecast | Role.planned,
        switch="enabled",
    )
    probe: ProbeConfig = key(
        ProbeConfig,
        "runs no longer than predictions need",
        Role.beside | Role.forecast | Role.planned,
        switch="enabled",
    )
    race: RaceConfig = key(
        RaceConfig,
        "sweeps: the best cell alone, for a part of what all take",
        Role.beside | Role.sweeps | Role.planned,
        switch="figure",
    )
    fit: Fit = key(
        Fit.warn,
        "runs whose memory the GPU does not have, by prediction: warn, refuse them, or off",
        Role.beside | Role.forecast | Role.one_value,
    )
    price: PriceConfig = key(PriceConfig, "what runs cost, beside their time", Role.beside)
    tracker: TrackerConfig = key(
        TrackerConfig, "mirror of the record in Weights & Biases", Role.beside | Role.once
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_prediction()
        if self.probe.enabled:
            self._check_probe()
        check_raced_run(self)
        check_name(self.name)

    def _check_prediction(self) -> None:
        """Refuse a prediction for a GPU where the run has none."""
        if self.device is not Device.cpu:
            return
        cause = "scale=smoke" if self.scale is Scale.smoke else "device=cpu"
        for name, asked in (
            ("predict.gpu", self.predict.gpu),
            ("predict.memory", self.predict.memory),
        ):
            if asked is not None:
                raise Refusal(
                    "config.predict-cpu",
                    f"{name}={asked}: {cause} has no GPU; leave one of them out",
                    key=name,
                    value=asked,
                    cause=cause,
                )

    def _check_probe(self) -> None:
        """Refuse what a probe, a short run, cannot have."""
        if self.repeat == AUTO:
            raise Refusal(
                "config.probe-repeat",
                "probe=true: measures a short run as it is, and says how sure it is; leave out"
                " repeat=auto",
                key="probe",
            )
        if self.profile.name is not ProfileName.none:
            raise Refusal(
                "config.probe-profile",
                f"probe=true: measures a short run as it is; leave out profile={self.profile.name}",
                key="probe",
                profile=self.profile.name,
            )
        if self.diagnose:
            raise Refusal(
                "config.probe-diagnose",
                "probe=true: measures a short run as it is; leave out diagnose=true",
                key="probe",
            )

    @property
    def processes(self) -> int:
        """The ranks of each node."""
        return self.gpus

    def identity(self) -> str:
        """8 hex digits that two runs share exactly if they measure the same thing."""
        beside = {each.name for each in fields(self) if Role.beside in each.metadata["roles"]}
        measured = {name: value for name, value in asdict(self).items() if name not in beside}
        values = flat(measured)
        for later, (before, value) in later_keys(self).items():
            group, _, name = later.rpartition(".")
            own = measured[group] if group else measured
            if before in values and name in own and own[name] == value:
                del own[name]
        return sha256(dumps(measured, sort_keys=True).encode()).hexdigest()[:8]


@dataclass
class TrainingConfig(RunConfig):
    """The keys of runs whose training is multicard's own."""

    backend: Backend = key(
        Backend.auto,
        "collectives: auto, nccl or gloo; auto takes nccl on CUDA, else gloo",
        Role.identity | Role.speed,
    )
    seed: int = key(
        0,
        "seed of the weights, the order of samples and augmentation",
        Role.identity | Role.repetition | Role.text,
        least=0,
        also=("random_seed", "manual_seed", "random_state"),
    )
    epochs: int = key(
        1,
        "passes over the training set",
        Role.identity | Role.length | Role.work | Role.learning | Role.titled,
        least=1,
        shown=13,
        also=("num_epochs", "n_epochs", "max_epochs", "num_train_epochs", "train_epochs"),
    )
    batch_size: int = key(
        1,
        "samples per rank and step; auto: the most that fit each cell's memory",
        Role.identity | Role.learning | Role.memory | Role.speed | Role.follows | Role.text,
        least=1,
        power=1.0,
        shown=12,
        tries=Tries(phases=("optimizer", "forward", "backward")),
        also=(
            "bs",
            "batch",
            "train_batch_size",
            "per_device_train_batch_size",
            "per_device_batch_size",
            "per_gpu_batch_size",
            "micro_batch_size",
        ),
    )
    global_batch_size: Optional[int] = key(
        None,
        "samples of a step over all ranks, on any number of them; null is what batch_size makes",
        Role.identity | Role.learning,
        least=1,
        since=("batch_size", None),
        also=("effective_batch_size", "total_batch_size"),
    )
    batch_size_asked: Optional[str] = key(
        None,
        "what global_batch_size without batch_size sets: global",
        Role.identity,
        since=("batch_size", None),
    )
    pin_memory: bool = key(
        True,
        "keep batches in page-locked host memory, so that they are copied without waiting",
        Role.identity | Role.memory | Role.speed,
        shown=17,
        title="pinned memory",
        tries=Tries(("true", "false"), ("h2d",)),
    )
    lr: float = key(
        MISSING,
        "learning rate; the highest of a schedule",
        Role.identity | Role.learning,
        above=0,
        also=("learning_rate", "base_lr", "max_lr"),
    )
    stop_on_divergence: bool = key(
        True,
        "stop at the end of an epoch whose last loss is not finite; false trains on, for the timing"
        " alone",
        Role.beside,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self._share_batch()

    def _share_batch(self) -> None:
        """Set what follows from `global_batch_size`: a rank's batch,
        or the number of batches that are summed.
        """
        if self.batch_size_asked not in (None, GLOBAL):
            raise Refusal(
                "config.batch-asked",
                f"batch_size_asked={self.batch_size_asked}: is set by global_batch_size; leave"
                " it out",
                key="batch_size_asked",
                value=self.batch_size_asked,
            )
        whole = self.global_batch_size
        if whole is None:
            self.batch_size_asked = None
            return
        ranks = self.gpus * self.nodes
        summed: int | None = getattr(self, ACCUMULATED, None)
        if self.batch_size_asked == GLOBAL:
            product = f"gpus x nodes x {ACCUMULATED}" if summed else "gpus x nodes"
            self.batch_size = _share(whole, ranks * (summed or 1), product)
            return
        product = "gpus x nodes x batch_size"
        samples = ranks * self.batch_size
        if summed is None and whole != samples:
            raise Refusal(
                "config.batch-product",
                f"global_batch_size={whole}: is not {product} = {samples}; leave batch_size out",
                key="global_batch_size",
                value=whole,
                product=samples,
            )
        batches = _share(whole, samples, product)
        if summed is None:
            return
        if summed not in (1, batches):
            raise Refusal(
                "config.batch-accumulated",
                f"global_batch_size={whole}: is not {product} = {samples} x {ACCUMULATED}={summed};"
                " leave one of them out",
                key="global_batch_size",
                value=whole,
                product=samples,
                accumulated=summed,
            )
        setattr(self, ACCUMULATED, batches)


def _share(whole: int, parts: int, product: str) -> int:
    """The samples of a global batch for each of `parts`,
    whose number is the product of some keys.
    """
    if whole % parts == 0:
        return whole // parts
    lower = whole // parts * parts
    upper = -(-whole // parts) * parts
    near = [size for size in (lower, upper) if size > 0]
    remedy = " or ".join(f"`global_batch_size={size}`" for size in near)
    raise Refusal(
        "config.batch-not-divisible",
        f"global_batch_size={whole}: does not divide by {product} = {parts}; use {remedy}",
        key="global_batch_size",
        value=whole,
        product=product,
        parts=parts,
        near=near,
    )


def check_name(name: str) -> None:
    """Refuse a name that is not that of one folder."""
    if name == "published":
        raise Refusal(
            "config.name-published",
            "name=published: multirun/published is for rows that others measured; choose another",
            key="name",
        )
    is_folder = name not in ("", ".", "..") and "/" not in name and name.isprintable()
    if not is_folder or len(name.encode()) > 255:
        raise Refusal(
            "config.name-no-folder",
            f"name={name!r}: must name one folder under multirun/, in at most 255 bytes; "
            "use letters, digits, '.', '_' and '-'",
            key="name",
            value=name,
        )


def plain(config: RunConfig) -> dict[str, Any]:
    """The configuration as JSON-ready values."""
    return loads(dumps(asdict(config)))
