"""Merge the options of sbatch that a job's configuration asks for with the options of a site.

A site's options may be spelled in any way that people write them: `gpus-per-node`, `gpus_per_node`,
`--gres`, `N`, an unambiguous prefix of a name, or a name of submitit's. If two options contradict
each other, sbatch silently takes the last. So each option is read here first. If a key of
multicard sets the same thing, equal values are merged, and different values are refused.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from multicard.config.job import Resources
from multicard.config.pasting import override
from multicard.machine import sbatch
from multicard.messages import Refusal

ADDITIONAL = "hydra.launcher.additional_parameters"
GPU_TYPE = re.compile(r"[A-Za-z0-9][\w.+-]*")
GRES_OF_GPUS = re.compile(r"(?:gres[/:])?gpu(?:[:=](?P<gpus>.+))?")

# With these options, the command could not follow its jobs. The value says why, and what to write.
NEVER = {
    "array": (
        "the cells are the array; `hydra.launcher.array_parallelism=N` sets how many run at a time"
    ),
    "clusters": (
        "the command could not follow jobs on another cluster; log in to that one, and start it"
        " there"
    ),
    "error": "the command reads what jobs print in the sweep's folder .submitit; leave it out",
    "open-mode": "a job that starts again appends to what it printed; leave it out",
    "output": "the command reads what jobs print in the sweep's folder .submitit; leave it out",
    "job-name": (
        "the command finds its jobs by their names; `name=NAME` names the sweep and its jobs"
    ),
    "signal": (
        "jobs save at SLURM's signal; `hydra.launcher.signal_delay_s=N` sets how long before the"
        " time limit"
    ),
    "test-only": "nothing would be submitted; use `dry_run=true`",
    "ntasks-per-gpu": "a job is one task on each node, which starts the ranks; use `gpus=N`",
    "gpus-per-socket": "gpus sets the number of GPUs on a node; use `gpus=N`",
}
NEVER |= dict.fromkeys(
    ("help", "parsable", "quiet", "usage", "version", "wait", "wrap"),
    "the command reads what sbatch answers, and submits a job of its own; leave it out",
)
# Keys of the launcher that are not options of sbatch.
OWN_KEYS = ("_target_", "mode", "on_slurm", "packs", "gpu_type", "additional_parameters")
OWN_KEYS += ("setup", "teardown", "array_parallelism", "signal_delay_s")

# These arrive as text, because Hydra reads `yes` and quoted words as strings.
BOOLEAN_WORDS = ("true", "false", "yes", "no", "on", "off")

Flags = dict[str, Any]


@dataclass(frozen=True)
class SiteOption:
    """An option as a site gives it.

    Args:
        key: the key of the configuration, as it is typed.
        typed: the name of the option, as it is typed.
        value: the value of the option; never None.
    """

    key: str
    typed: str
    value: Any

    def __str__(self) -> str:
        if self.key != ADDITIONAL:
            return f"{self.key}={self.value}"
        return f"{self.key}: {self.typed}={self.value}"


def site_options(options: Mapping[str, Any]) -> dict[str, SiteOption]:
    """Return the site's options by sbatch's names, from additional_parameters and launcher keys.

    A value of null leaves an option out.
    """
    options_by_name = dict[str, SiteOption]()
    additional = options.get("additional_parameters") or {}
    launcher = {key: value for key, value in options.items() if key not in OWN_KEYS}
    sources = [(f"hydra.launcher.{key}", key, value) for key, value in launcher.items()]
    sources += [(ADDITIONAL, str(key), value) for key, value in additional.items()]
    for key, typed, value in sources:
        if value is None:
            continue
        site_option = SiteOption(key, typed, value)
        name = sbatch.name_of(typed)
        # A key of the launcher is only valid outside of additional_parameters.
        if typed.replace("-", "_") in OWN_KEYS:
            launcher_key = typed.replace("-", "_")
            raise Refusal(
                "slurm.key-of-launcher",
                f"{site_option}: is a key of the launcher; write"
                f" `{override(f'hydra.launcher.{launcher_key}', value)}`",
                key=key,
                option=typed,
                value=value,
            )
        if key != ADDITIONAL and name not in sbatch.OPTIONS:
            raise Refusal(
                "slurm.no-option",
                f"{key}: sbatch has no such option; an option of your site goes into"
                f" `{ADDITIONAL}={{NAME:VALUE}}`",
                key=key,
                value=value,
            )
        if name in options_by_name and str(options_by_name[name].value) != str(value):
            other = options_by_name[name]
            raise Refusal(
                "slurm.option-twice",
                f"{site_option}: {other.typed}={other.value} of {other.key} is the same option of"
                " sbatch; leave one out",
                key=key,
                option=typed,
                value=value,
                other=other.typed,
                others_value=other.value,
            )
        _check_text(site_option)
        options_by_name[name] = site_option
    return options_by_name


def _check_text(site_option: SiteOption) -> None:
    """Refuse an option that would not be one line of the job's script."""
    text = f"{site_option.typed}{site_option.value}"
    if (
        isinstance(site_option.value, dict)
        or not text.isprintable()
        or re.search(r"[\s=]", site_option.typed)
    ):
        raise Refusal(
            "slurm.option-form",
            f"{site_option}: must be a name and one value; write `{ADDITIONAL}={{NAME:VALUE}}`",
            key=site_option.key,
            option=site_option.typed,
            value=site_option.value,
        )


def flags(request: Resources, options: Mapping[str, Any]) -> Flags:
    """Return all options of sbatch that submitit does not set for each job, by their long names.

    A flag has the value True.

    Raises:
        Refusal: an option contradicts the job's request, or would keep the command from following
            its jobs.
    """
    remaining = site_options(options)
    for name, why in NEVER.items():
        if name in remaining:
            site_option = remaining[name]
            raise Refusal(
                "slurm.option-of-ours",
                f"{site_option}: {why}",
                key=site_option.key,
                option=site_option.typed,
                value=site_option.value,
            )
    job_flags = _gpu_flags(remaining, request, options.get("gpu_type"))
    _check_tasks(remaining, request)
    job_flags |= _memory_flags(remaining, request)
    job_flags |= _exclusive_flags(remaining, request)
    job_flags |= _requeue_flag(remaining)
    if request.nodes > 1:
        # If a node is lost, the controllers end the run, and one must remain to record it.
        job_flags["no-kill"] = True
    for name, site_option in remaining.items():
        value = _sbatch_value(name, site_option)
        if value is not None:
            job_flags[name] = value
    return job_flags


def in_words(request: Resources, options: Mapping[str, Any]) -> str:
    """Describe a job's request: a line for the resources, and one for each option of the site."""
    usual = flags(request, {}).items()
    site = {
        name: value for name, value in flags(request, options).items() if (name, value) not in usual
    }
    lines = [f"--{name}" if value is True else f"{name}={value}" for name, value in site.items()]
    return "\n".join([request.in_words(), *lines])


def _sbatch_value(name: str, site_option: SiteOption) -> Any:
    """Return an option's value as sbatch takes it: True for a flag, None to leave it out."""
    value = site_option.value
    if isinstance(value, list):
        return ",".join(str(part) for part in value)
    if name in sbatch.ANSWERS and isinstance(value, bool):
        yes, no = sbatch.ANSWERS[name]
        return yes if value else no
    if not isinstance(value, bool):
        if name in sbatch.FLAGS or (
            name in sbatch.FLAGS_OR_VALUES and str(value).lower() in BOOLEAN_WORDS
        ):
            raise Refusal(
                "slurm.flag",
                f"{site_option}: is a flag of sbatch; write `{ADDITIONAL}={{{name}:true}}`, or"
                " leave it out",
                key=site_option.key,
                option=site_option.typed,
                value=value,
            )
        return value
    if name in sbatch.FLAGS or name in sbatch.FLAGS_OR_VALUES:
        return True if value else None
    # The opposite of a site's own flag is not known.
    if name in sbatch.OPTIONS or not value:
        raise Refusal(
            "slurm.needs-value",
            f"{site_option}: sbatch takes a value for it; write `{ADDITIONAL}={{{name}:VALUE}}`, or"
            " leave it out",
            key=site_option.key,
            option=site_option.typed,
            value=value,
        )
    return True


def _requeue_flag(remaining: dict[str, SiteOption]) -> Flags:
    """Return whether SLURM may put the job back into the queue: yes, unless the site forbids it."""
    is_requeued = True
    for name in ("requeue", "no-requeue"):
        if name in remaining:
            value = _sbatch_value(name, remaining[name])
            is_requeued = value is not None if name == "requeue" else value is None
            del remaining[name]
    return {"requeue": True} if is_requeued else {"no-requeue": True}


def _exclusive_flags(remaining: dict[str, SiteOption], request: Resources) -> Flags:
    site_option = remaining.pop("exclusive", None)
    if site_option is not None:
        _sbatch_value("exclusive", site_option)  # This refuses a word that means true.
    if site_option is None or site_option.value is request.exclusive:
        return {"exclusive": True} if request.exclusive else {}
    if isinstance(site_option.value, bool) or request.exclusive:
        raise _contradiction(
            site_option, "exclusive", str(site_option.value).lower(), str(request.exclusive).lower()
        )
    return {
        "exclusive": site_option.value
    }  # "user": other jobs of the same user may share the node.


def _memory_flags(remaining: dict[str, SiteOption], request: Resources) -> Flags:
    """Return the memory of a node, by memory_gb or by the site. SLURM accepts only one form."""
    if request.memory_gb is None:
        site_option = remaining.get("mem")
        if (
            site_option is not None
            and site_option.typed.replace("_", "-").lstrip("-") in sbatch.IN_GB
        ):
            return {"mem": f"{remaining.pop('mem').value}G"}
        return {}
    for name in ("mem", "mem-per-cpu", "mem-per-gpu"):
        site_option = remaining.pop(name, None)
        if site_option is None:
            continue
        is_gb = site_option.typed.replace("_", "-").lstrip("-") in sbatch.IN_GB
        asked_gb = sbatch.memory_gb(f"{site_option.value}G" if is_gb else str(site_option.value))
        if name != "mem" or asked_gb != request.memory_gb:
            is_whole_gb = name == "mem" and asked_gb is not None and asked_gb == int(asked_gb)
            raise _contradiction(
                site_option,
                "memory_gb",
                str(int(asked_gb or 0)) if is_whole_gb else "GB",
                request.memory_gb,
            )
    return {"mem": f"{request.memory_gb}GB"}


def _check_tasks(remaining: dict[str, SiteOption], request: Resources) -> None:
    """Remove options that agree with the request on nodes, tasks, cores and time.

    Options that disagree are refused.
    """
    cpus_per_gpu = (
        request.cpus // request.gpus if request.gpus and request.cpus % request.gpus == 0 else None
    )
    # Each rule has sbatch's option, our key, the value of the request, the reader of the option,
    # and the number of the option's units in one unit of our key.
    rules: list[tuple[str, str, Any, Callable[[str], Any], int]] = [
        ("nodes", "nodes", request.nodes, _number, 1),
        ("ntasks", "gpus", request.nodes, _number, request.nodes),
        ("ntasks-per-node", "gpus", 1, _number, 1),
        ("cpus-per-task", "cpus_per_gpu", request.cpus, _number, request.gpus),
        ("cpus-per-gpu", "cpus_per_gpu", cpus_per_gpu, _number, 1),
        ("time", "time_min", request.time_min, sbatch.minutes, 1),
    ]
    for option, key, requested, read, unit in rules:
        site_option = remaining.pop(option, None)
        if site_option is None:
            continue
        value = read(str(site_option.value))
        if value is None or value != requested:
            suggested = value / unit if value and unit else None  # Our keys do not accept 0.
            raise _contradiction(
                site_option,
                key,
                "N" if suggested is None or suggested != int(suggested) else str(int(suggested)),
                requested,
            )
    least_time = remaining.get("time-min")
    # time_min is a key here, although sbatch has an option --time-min.
    if least_time is not None and "_" in least_time.typed:
        raise _contradiction(least_time, "time_min", str(least_time.value), request.time_min)


def _number(text: str) -> int | None:
    return int(text) if text.strip().isdecimal() else None


def _contradiction(site_option: SiteOption, key: str, value: Any, requested: Any) -> Refusal:
    """Return the refusal of an option that contradicts the key that sets it."""
    reasons = {"ntasks": "a job is one task on each node, which starts a rank for each GPU"}
    reasons["ntasks-per-node"] = reasons["ntasks"]
    why = reasons.get(
        sbatch.name_of(site_option.typed), f"{key} sets it for each cell, here to {requested}"
    )
    return Refusal(
        "slurm.contradicts",
        f"{site_option}: {why}; leave it out, and use `{key}={value}`",
        key=site_option.key,
        option=site_option.typed,
        value=site_option.value,
        instead=key,
        own=requested,
    )


def _gpu_flags(remaining: dict[str, SiteOption], request: Resources, gpu_type: Any) -> Flags:
    """Return the options for the GPUs of a node, in the site's form.

    If the site gives a gres of GPUs, the form is `gres`, otherwise `gpus-per-node`. The site may
    leave out the number, which is `gpus`, or the type.
    """
    chosen_type = None if gpu_type is None else str(gpu_type)
    if chosen_type is not None and GPU_TYPE.fullmatch(chosen_type) is None:
        raise Refusal(
            "slurm.gpu-type",
            f"hydra.launcher.gpu_type={gpu_type}: must be a type alone, as"
            " `hydra.launcher.gpu_type=h100`; gpus sets the number, and `sinfo -o '%P %G'` shows"
            " the types",
            key="hydra.launcher.gpu_type",
            value=chosen_type,
        )
    for option in ("tres-per-node", "tres-per-task", "tres-per-job", "tres-per-socket"):
        if option in remaining and "gpu" in str(remaining[option].value):
            raise _contradiction(remaining[option], "gpus", "N", request.gpus)
    counts = {
        "gpus-per-node": request.gpus,
        "gpus-per-task": request.gpus,
        "gpus": request.gpus * request.nodes,
    }
    for option, requested in counts.items():
        if option in remaining:
            site_option = remaining.pop(option)
            chosen_type = _type_of(
                site_option, str(site_option.value), requested, request, chosen_type
            )
    others = list[str]()
    as_gres = False
    if "gres" in remaining:
        site_option = remaining.pop("gres")
        words = (
            site_option.value
            if isinstance(site_option.value, list)
            else str(site_option.value).split(",")
        )
        parts = [str(word).strip() for word in words]
        gpu_parts = [match for match in map(GRES_OF_GPUS.fullmatch, parts) if match is not None]
        if len(gpu_parts) > 1:
            raise _several_types(site_option)
        for gpus in gpu_parts:
            chosen_type, as_gres = (
                _type_of(site_option, gpus["gpus"] or "", request.gpus, request, chosen_type),
                True,
            )
        others = [part for part in parts if GRES_OF_GPUS.fullmatch(part) is None]
    type_prefix = "" if chosen_type is None else f"{chosen_type}:"
    gpu_flags: Flags = {}
    if request.gpus and as_gres:
        others.insert(0, f"gpu:{type_prefix}{request.gpus}")
    elif request.gpus:
        gpu_flags["gpus-per-node"] = f"{type_prefix}{request.gpus}"
    if others:
        gpu_flags["gres"] = ",".join(others)
    return gpu_flags


def _type_of(
    site_option: SiteOption, text: str, requested: int, request: Resources, chosen_type: str | None
) -> str | None:
    """Return the type of GPU that an option asks for, or the type chosen before.

    The option's number must be the request's number.
    """
    kind, count = _type_and_count(site_option, text.strip())
    if request.gpus == count == 0:
        return chosen_type
    if request.gpus == 0:
        raise Refusal(
            "slurm.gpus-of-cpu",
            f"{site_option}: with device=cpu a job asks for no GPU; leave it out, or use"
            " `device=cuda`",
            key=site_option.key,
            option=site_option.typed,
            value=site_option.value,
        )
    if count == 0:
        raise _contradiction(site_option, "device", "cpu", request.gpus)
    if count is not None and count != requested:
        suggested = (
            count // request.nodes
            if requested != request.gpus and count % request.nodes == 0
            else count
        )
        raise _contradiction(site_option, "gpus", suggested, requested)
    if chosen_type is not None and kind not in (None, chosen_type):
        raise _several_types(site_option, chosen_type)
    return kind or chosen_type


def _several_types(site_option: SiteOption, other: str | None = None) -> Refusal:
    """Return the refusal of several types of GPU, or of a text that is not a type and a number."""
    also = "" if other is None else f" {other} is asked for, too:"
    return Refusal(
        "slurm.several-types",
        f"{site_option}:{also} a job has one type of GPU; ask for it by"
        " `hydra.launcher.gpu_type=TYPE`, and leave this out",
        key=site_option.key,
        option=site_option.typed,
        value=site_option.value,
        other=other,
    )


def _type_and_count(site_option: SiteOption, text: str) -> tuple[str | None, int | None]:
    """Return the type and number of GPUs in "2", "h100" or "h100:2"; None for a missing part."""
    parts = re.split("[:=]", text) if text else []
    parts = parts[1:] if parts[:1] == ["gpu"] else parts  # A gres begins with this word.
    if len(parts) > 2 or not all(GPU_TYPE.fullmatch(part) for part in parts):
        raise _several_types(site_option)
    count = int(parts.pop()) if parts and parts[-1].isdecimal() else None
    if len(parts) > 1:
        raise _several_types(site_option)
    return (parts[0] if parts else None), count
