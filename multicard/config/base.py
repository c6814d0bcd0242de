"""The schema that all entries share.

Files under `conf/` hold values; these dataclasses hold types, defaults and descriptions. `__post_init__` refuses values
that can never work, `placement.place` what this machine cannot do. Nothing here imports torch: `--help`, `--cfg job`
and refusals are answered in well under a second.
"""

from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from hashlib import sha256
from json import dumps, loads
from typing import Any, ClassVar, Optional  # OmegaConf reads Optional[...] on every Python that it supports

from omegaconf import MISSING

from multicard.config.job import Device
from multicard.config.keys import Group, Tries, flat, key, later_keys, option_name, require
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

Backend = StrEnum("Backend", ["auto", "nccl", "gloo"])
Scale = StrEnum("Scale", ["full", "smoke"])
Malloc = StrEnum("Malloc", ["tuned", "system"])
TrackerMode = StrEnum("TrackerMode", ["offline", "online", "disabled"])
# `auto` is nsys on CUDA where it is installed, else kineto; a run's record has the one that was taken
ProfileName = StrEnum("ProfileName", ["none", "kineto", "nsys", "auto"])
ProfileWindow = StrEnum("ProfileWindow", ["after", "start"])


@dataclass
class ProfileConfig(Group):
    name: ProfileName = option_name()


@dataclass
class WindowConfig(ProfileConfig):
    """The profiled window.

    `window=after`: steps of their own after training, `skip` as they are, `warmup` with the profiler on and its events
    dropped, then `steps`, or as many as `seconds` take. `window=start`: the training itself from its start, evaluation
    and the starts of epochs included, for `seconds`, or `steps`, or to its end.
    """

    window: ProfileWindow = key(
        ProfileWindow.after,
        "after: steps of their own after training; start: training from its start, slowed by it",
        Role.identity | Role.speed,
        since=("steps", "after"),
    )
    skip: int = key(3, "window=after: steps before the profiler is switched on", Role.identity, least=0)
    warmup: int = key(
        3, "window=after: steps whose events are dropped, before those that are profiled", Role.identity, least=1
    )
    steps: Optional[int] = key(
        10,
        "steps that are profiled; null, window=start: to the end of the training",
        Role.identity | Role.speed,
        least=1,
    )
    seconds: Optional[float] = key(
        None, "profile as many steps as these take, instead of profile.steps", Role.identity | Role.speed, above=0
    )
    budget_bytes: int = key(
        1_000_000_000,
        "kineto, window=start: host memory of a rank for events (200 bytes each), at which recording stops; "
        "writing them takes six times as much",
        Role.identity | Role.speed,
        least=1,
        since=("steps", 1_000_000_000),
    )

    def __post_init__(self) -> None:
        bounded = self.steps is not None or self.seconds is not None or self.from_start
        require(bounded, "profile.steps=null: give the steps, or profile.seconds, or profile.window=start")

    @property
    def from_start(self) -> bool:
        return self.window is ProfileWindow.start


PROFILES: dict[str, type] = {name: ProfileConfig if name is ProfileName.none else WindowConfig for name in ProfileName}
PROFILES |= {"whole": WindowConfig}  # `auto` from the start of a training to its end


@dataclass
class Option(Group):
    """An option of a group; those with keys of their own extend it."""

    name: str = option_name()


@dataclass
class PrecisionConfig(Option):
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
        Role.beside | Role.once,
    )
    project: str = key("multicard", "W&B project", Role.beside | Role.once)
    entity: Optional[str] = key(None, "W&B user or team; null is the default of the account", Role.beside | Role.once)
    tags: list[str] = key(list, "W&B tags", Role.beside | Role.once)

    def __post_init__(self) -> None:
        require(is_wandb_name(self.project), f"tracker.project={self.project}: {WANDB_NAMES}")
        require(self.entity is None or is_wandb_name(self.entity), f"tracker.entity={self.entity}: {WANDB_NAMES}")
        for tag in self.tags:
            require(
                0 < len(tag) <= LONGEST_TAG, f"tracker.tags={tag!r}: W&B takes tags of 1 to {LONGEST_TAG} characters"
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
    )
    scale: Scale = key(
        Scale.full,
        "smoke shrinks a command to minutes on 2 cores, to try the code (never for figures)",
        Role.identity | Role.work | Role.one_value,
    )
    oversubscribe: bool = key(
        False, "let ranks share a GPU, to try the code (never for figures)", Role.identity | Role.speed
    )
    malloc: Malloc = key(
        Malloc.tuned,
        "CPU ranks: tuned has glibc keep freed memory for reuse; system does not",
        Role.identity | Role.speed,
    )
    rerun: bool = key(
        False, "measure again what the named folder already holds", Role.beside | Role.once | Role.planned
    )
    profile: ProfileConfig = key(
        MISSING, "profiler, for a few steps after the run or from its start", Role.identity | Role.observes
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
    tracker: TrackerConfig = key(TrackerConfig, "mirror of the record in Weights & Biases", Role.beside | Role.once)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("gpu", "memory") if self.device is Device.cpu else ():
            asked, cause = getattr(self.predict, name), "scale=smoke" if self.scale is Scale.smoke else "device=cpu"
            require(asked is None, f"predict.{name}={asked}: {cause} has no GPU; leave one of them out")
        if self.probe.enabled:
            problem = "probe=true: measures a short run as it is"
            require(self.repeat != AUTO, f"{problem}, and says how sure it is; leave out repeat=auto")
            require(self.profile.name is ProfileName.none, f"{problem}; leave out profile={self.profile.name}")
            require(not self.diagnose, f"{problem}; leave out diagnose=true")
        check_raced_run(self)
        check_name(self.name)

    def identity(self) -> str:
        """8 hex digits that two runs share exactly if they measure the same thing."""
        beside = {each.name for each in fields(self) if Role.beside in each.metadata["roles"]}
        measured = {name: value for name, value in asdict(self).items() if name not in beside}
        values = flat(measured)
        for later, (before, value) in later_keys(self).items():
            group, _, name = later.rpartition(".")
            if before in values and later in values and values[later] == value:
                del (measured[group] if group else measured)[name]
        return sha256(dumps(measured, sort_keys=True).encode()).hexdigest()[:8]


@dataclass
class TrainingConfig(RunConfig):
    """The keys of runs whose training is multicard's own."""

    backend: Backend = key(
        Backend.auto, "collectives: auto, nccl or gloo; auto takes nccl on CUDA, else gloo", Role.identity | Role.speed
    )
    seed: int = key(
        0,
        "seed of the weights, the order of samples and augmentation",
        Role.identity | Role.repetition | Role.text,
        least=0,
    )
    epochs: int = key(
        1,
        "passes over the training set",
        Role.identity | Role.length | Role.work | Role.learning | Role.titled,
        least=1,
        shown=13,
    )
    batch_size: int = key(
        1,
        "samples per rank and step; auto: the most that fit each cell's memory",
        Role.identity | Role.learning | Role.memory | Role.speed | Role.follows | Role.text,
        least=1,
        power=1.0,
        shown=12,
        tries=Tries(phases=("optimizer", "forward", "backward")),
    )
    global_batch_size: Optional[int] = key(
        None,
        "samples of a step over all ranks, on any number of them; null is what batch_size makes",
        Role.identity | Role.learning,
        least=1,
        since=("batch_size", None),
    )
    batch_size_asked: Optional[str] = key(
        None, "what global_batch_size without batch_size sets: global", Role.identity, since=("batch_size", None)
    )
    pin_memory: bool = key(
        True,
        "keep batches in page-locked host memory, so that they are copied without waiting",
        Role.identity | Role.memory | Role.speed,
        shown=17,
        title="pinned memory",
        tries=Tries(("true", "false"), ("h2d",)),
    )
    lr: float = key(MISSING, "learning rate; the highest of a schedule", Role.identity | Role.learning, above=0)
    stop_on_divergence: bool = key(
        True,
        "stop at the end of an epoch whose last loss is not finite; false trains on, for the timing alone",
        Role.beside,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self._share_batch()

    def _share_batch(self) -> None:
        """Set what follows from `global_batch_size`: a rank's batch, or the number of batches that are summed."""
        whole, asked, ranks = self.global_batch_size, self.batch_size_asked, self.gpus * self.nodes
        require(asked in (None, GLOBAL), f"batch_size_asked={asked}: is set by global_batch_size; leave it out")
        if whole is None:
            self.batch_size_asked = None
            return
        summed: int | None = getattr(self, ACCUMULATED, None)
        parts = ranks * ((summed or 1) if asked == GLOBAL else self.batch_size)
        near = " or ".join(str(size) for size in (whole // parts * parts, -(-whole // parts) * parts) if size)
        made = f"gpus x nodes{f' x {ACCUMULATED}' * bool(summed)}" if asked == GLOBAL else "gpus x nodes x batch_size"
        accumulates = asked == GLOBAL or summed is not None or whole == parts
        require(accumulates, f"global_batch_size={whole}: is not {made} = {parts}; leave batch_size out")
        problem = f"global_batch_size={whole}: does not divide by {made} = {parts}"
        require(whole % parts == 0, f"{problem}; use {near}")
        if asked == GLOBAL:
            self.batch_size = whole // parts
        elif summed is not None:
            fits, product = summed in (1, whole // parts), f"{made} = {parts} x {ACCUMULATED}={summed}"
            require(fits, f"global_batch_size={whole}: is not {product}; leave one of them out")
            setattr(self, ACCUMULATED, whole // parts)


def check_name(name: str) -> None:
    """Refuse (ValueError) a name that is not that of one folder."""
    require(name != "published", "name=published: multirun/published is for rows that others measured; choose another")
    is_folder = name not in ("", ".", "..") and "/" not in name and name.isprintable() and len(name.encode()) < 256
    problem = f"name={name!r}: must name one folder under multirun/, in at most 255 bytes"
    require(is_folder, f"{problem}; use letters, digits, '.', '_' and '-'")


def plain(config: RunConfig) -> dict[str, Any]:
    """The configuration as JSON-ready values."""
    return loads(dumps(asdict(config)))
