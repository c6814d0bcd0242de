"""The keys that all entries share.

Files under `conf/` hold values; these dataclasses hold types, defaults and descriptions.
`__post_init__` refuses values that can never work. `placement.place` refuses what this machine
cannot do. Nothing here imports torch, so that `--help`, `--cfg job` and refusals take well under a
second.
"""

from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from hashlib import sha256
from json import dumps, loads

# OmegaConf supports Optional[...] in every Python version.
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
# `auto` is nsys on CUDA if it is installed, and kineto otherwise. The record has the chosen one.
ProfileName = StrEnum("ProfileName", ["none", "kineto", "nsys", "auto"])
ProfileWindow = StrEnum("ProfileWindow", ["auto", "after", "start"])


@dataclass
class ProfileConfig(Group):
    name: ProfileName = option_name()


@dataclass
class WindowConfig(ProfileConfig):
    """The profiled window.

    `window=after` takes extra steps after the training: `skip` unprofiled steps, `warmup` steps
    whose events are dropped, and then `steps` profiled steps, or as many as fit into `seconds`.
    `window=start` profiles the training from its start, including evaluation and the starts of
    epochs, for `seconds`, for `steps`, or to its end.
    """

    window: ProfileWindow = key(
        ProfileWindow.auto,
        "after: extra steps after the training; start: the training from its start, slowed down;"
        " auto: after, and start for scripts",
        Role.identity | Role.speed,
        since=("steps", "after"),
    )
    skip: int = key(
        3, "window=after: steps before the profiler is switched on", Role.identity, least=0
    )
    warmup: int = key(
        3,
        "window=after: steps whose events are dropped, before the profiled steps",
        Role.identity,
        least=1,
    )
    steps: Optional[int] = key(
        10,
        "number of profiled steps; null with window=start: to the end of the training",
        Role.identity | Role.speed,
        least=1,
    )
    seconds: Optional[float] = key(
        None,
        "profile as many steps as fit into this time, instead of profile.steps",
        Role.identity | Role.speed,
        above=0,
    )
    budget_bytes: int = key(
        1_000_000_000,
        "kineto, window=start: host memory for the events of a rank (200 bytes each); recording"
        " stops when it is full; writing them takes six times as much",
        Role.identity | Role.speed,
        least=1,
        since=("steps", 1_000_000_000),
    )

    def settle(self, default: ProfileWindow) -> None:
        """Replace `window=auto` by the default of the workload, and refuse a window without end."""
        if self.window is ProfileWindow.auto:
            self.window = default
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
PROFILES |= {"whole": WindowConfig}  # `auto` from the start of a training to its end.


@dataclass
class GroupOption(Group):
    """An option of a group. Options with more keys extend this class."""

    name: str = option_name()


@dataclass
class PrecisionConfig(GroupOption):
    """A number format. No number format has keys other than its name."""


WANDB_NAMES = "W&B accepts names of 1 to 128 characters without any of / \\ # ? % :"

LONGEST_TAG = 64


def is_wandb_name(name: str) -> bool:
    """True if W&B accepts the name for a project, user or team."""
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
        "W&B user or team; null: the account's default",
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
                    f"tracker.tags={tag!r}: W&B accepts tags of 1 to {LONGEST_TAG} characters",
                    key="tracker.tags",
                    value=tag,
                    longest=LONGEST_TAG,
                )


GLOBAL = "global"  # The `batch_size_asked` of a batch size that follows from `global_batch_size`.
ACCUMULATED = "gradient_accumulation_steps"  # Only tuning has this key.


@dataclass
class RunConfig(RepeatedConfig):
    """The keys that all entries share.

    kind: the kind of the record.
    default_window: the window of a profile, unless another one is named.
    """

    kind: ClassVar[str]
    default_window: ClassVar[ProfileWindow] = ProfileWindow.after

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
        "smoke shrinks a command to minutes on 2 cores, to try the code (never for results)",
        Role.identity | Role.work | Role.one_value,
        means={"debug": "smoke", "fast_dev_run": "smoke"},
    )
    oversubscribe: bool = key(
        False,
        "let ranks share a GPU, to try the code (never for results)",
        Role.identity | Role.speed,
    )
    malloc: Malloc = key(
        Malloc.tuned,
        "CPU ranks: tuned lets glibc keep freed memory for reuse; system does not",
        Role.identity | Role.speed,
    )
    rerun: bool = key(
        False,
        "measure again even if the named folder already holds a result",
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
        "find the bottleneck of the run, by short extra runs that each leave out one cost",
        Role.identity | Role.observes,
    )
    predict: PredictConfig = key(
        PredictConfig,
        "predict what runs would take, without starting them",
        Role.beside | Role.forecast | Role.planned,
        switch="enabled",
    )
    probe: ProbeConfig = key(
        ProbeConfig,
        "train only as long as predictions need",
        Role.beside | Role.forecast | Role.planned,
        switch="enabled",
    )
    race: RaceConfig = key(
        RaceConfig,
        "sweeps: find the best cell in a fraction of the time that all cells take",
        Role.beside | Role.sweeps | Role.planned,
        switch="figure",
    )
    fit: Fit = key(
        Fit.warn,
        "what to do if a run is predicted to exceed the GPU's memory: warn, refuse or off",
        Role.beside | Role.forecast | Role.one_value,
    )
    price: PriceConfig = key(PriceConfig, "price of GPU time, to compute costs", Role.beside)
    tracker: TrackerConfig = key(
        TrackerConfig, "mirror of the record in Weights & Biases", Role.beside | Role.once
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.profile, WindowConfig):
            self.profile.settle(self.default_window)
        self._check_prediction()
        if self.probe.enabled:
            self._check_probe()
        check_raced_run(self)
        check_name(self.name)

    def _check_prediction(self) -> None:
        """Refuse a prediction for a GPU if the run does not use one."""
        if self.device is not Device.cpu:
            return
        cause = "scale=smoke" if self.scale is Scale.smoke else "device=cpu"
        for name, value in (
            ("predict.gpu", self.predict.gpu),
            ("predict.memory", self.predict.memory),
        ):
            if value is not None:
                raise Refusal(
                    "config.predict-cpu",
                    f"{name}={value}: {cause} has no GPU; leave one of them out",
                    key=name,
                    value=value,
                    cause=cause,
                )

    def _check_probe(self) -> None:
        """Refuse what cannot be combined with a probe."""
        if self.repeat == AUTO:
            raise Refusal(
                "config.probe-repeat",
                "probe=true: measures one short run and how precise it is; leave out repeat=auto",
                key="probe",
            )
        if self.profile.name is not ProfileName.none:
            raise Refusal(
                "config.probe-profile",
                f"probe=true: measures one short run; leave out profile={self.profile.name}",
                key="probe",
                profile=self.profile.name,
            )
        if self.diagnose:
            raise Refusal(
                "config.probe-diagnose",
                "probe=true: measures one short run; leave out diagnose=true",
                key="probe",
            )

    @property
    def processes(self) -> int:
        """The number of ranks on each node."""
        return self.gpus

    def identity(self) -> str:
        """Return 8 hex digits that are equal exactly if two runs measure the same thing."""
        beside = {field.name for field in fields(self) if Role.beside in field.metadata["roles"]}
        measured = {name: value for name, value in asdict(self).items() if name not in beside}
        values = flat(measured)
        for later_key, (older_key, value) in later_keys(self).items():
            group, _, name = later_key.rpartition(".")
            group_values = measured[group] if group else measured
            if older_key in values and name in group_values and group_values[name] == value:
                del group_values[name]
        return sha256(dumps(measured, sort_keys=True).encode()).hexdigest()[:8]


@dataclass
class TrainingConfig(RunConfig):
    """The keys of runs in which multicard does the training."""

    backend: Backend = key(
        Backend.auto,
        "backend of collectives: auto, nccl or gloo; auto: nccl on CUDA, else gloo",
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
        "samples per rank and step; auto: as many as fit into memory, for each cell",
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
        "samples per step over all ranks, whatever their number; null: it follows from batch_size",
        Role.identity | Role.learning,
        least=1,
        since=("batch_size", None),
        also=("effective_batch_size", "total_batch_size"),
    )
    batch_size_asked: Optional[str] = key(
        None,
        "set by global_batch_size: global if batch_size was not given",
        Role.identity,
        since=("batch_size", None),
        is_internal=True,
    )
    preset_chosen: Optional[str] = key(
        None, "the chosen preset, by its own file", Role.beside, is_internal=True
    )
    preset_decides: list[str] = key(
        list,
        "groups and keys that presets set, without those that the command sets itself",
        Role.beside,
        is_internal=True,
    )
    pin_memory: bool = key(
        True,
        "keep batches in page-locked host memory, so that copies do not block",
        Role.identity | Role.memory | Role.speed,
        shown=17,
        title="pinned memory",
        tries=Tries(("true", "false"), ("h2d",)),
    )
    lr: float = key(
        MISSING,
        "learning rate; with a schedule, its maximum",
        Role.identity | Role.learning,
        above=0,
        also=("learning_rate", "base_lr", "max_lr"),
    )
    stop_on_divergence: bool = key(
        True,
        "stop at the end of an epoch whose last loss is not finite; false: train on, to measure"
        " times only",
        Role.beside,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self._share_batch()

    def _share_batch(self) -> None:
        """Derive the batch per rank, or the accumulation, from `global_batch_size`."""
        if self.batch_size_asked not in (None, GLOBAL):
            raise Refusal(
                "config.batch-asked",
                f"batch_size_asked={self.batch_size_asked}: only global_batch_size sets this key;"
                " leave it out",
                key="batch_size_asked",
                value=self.batch_size_asked,
            )
        global_samples = self.global_batch_size
        if global_samples is None:
            self.batch_size_asked = None
            return
        ranks = self.gpus * self.nodes
        accumulation: int | None = getattr(self, ACCUMULATED, None)
        if self.batch_size_asked == GLOBAL:
            product = f"gpus x nodes x {ACCUMULATED}" if accumulation else "gpus x nodes"
            self.batch_size = _share(global_samples, ranks * (accumulation or 1), product)
            return
        product = "gpus x nodes x batch_size"
        samples = ranks * self.batch_size
        if accumulation is None and global_samples != samples:
            raise Refusal(
                "config.batch-product",
                f"global_batch_size={global_samples}: is not {product} = {samples};"
                " leave out batch_size",
                key="global_batch_size",
                value=global_samples,
                product=samples,
            )
        batches = _share(global_samples, samples, product)
        if accumulation is None:
            return
        if accumulation not in (1, batches):
            raise Refusal(
                "config.batch-accumulated",
                f"global_batch_size={global_samples}: is not"
                f" {product} = {samples} x {ACCUMULATED}={accumulation}; leave one of them out",
                key="global_batch_size",
                value=global_samples,
                product=samples,
                accumulated=accumulation,
            )
        setattr(self, ACCUMULATED, batches)


def _share(global_samples: int, parts: int, product: str) -> int:
    """Divide a global batch by `parts`, which is the product of the keys named in `product`."""
    if global_samples % parts == 0:
        return global_samples // parts
    lower = global_samples // parts * parts
    upper = -(-global_samples // parts) * parts
    divisible = [size for size in (lower, upper) if size > 0]
    remedy = " or ".join(f"`global_batch_size={size}`" for size in divisible)
    raise Refusal(
        "config.batch-not-divisible",
        f"global_batch_size={global_samples}: does not divide by {product} = {parts}; use {remedy}",
        key="global_batch_size",
        value=global_samples,
        product=product,
        parts=parts,
        near=divisible,
    )


def check_name(name: str) -> None:
    """Refuse a name that cannot name a folder."""
    if name == "published":
        raise Refusal(
            "config.name-published",
            "name=published: multirun/published is for results of others; choose another name",
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
    """Return the configuration as values that JSON can hold."""
    return loads(dumps(asdict(config)))
