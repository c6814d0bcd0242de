"""The options of sbatch: their names in each spelling, which of them are flags, and their units."""

import re

DAYS = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")
MEMORY = re.compile(r"(\d+)([KMGT]?)B?", re.IGNORECASE)
GB_OF = {"K": 1024**-2, "": 1024**-1, "M": 1024**-1, "G": 1, "T": 1024}  # SLURM's default is MB.

LETTERS = {
    "A": "account",
    "a": "array",
    "B": "extra-node-info",
    "b": "begin",
    "C": "constraint",
    "c": "cpus-per-task",
    "D": "chdir",
    "d": "dependency",
    "e": "error",
    "F": "nodefile",
    "G": "gpus",
    "H": "hold",
    "h": "help",
    "i": "input",
    "J": "job-name",
    "k": "no-kill",
    "L": "licenses",
    "M": "clusters",
    "m": "distribution",
    "N": "nodes",
    "n": "ntasks",
    "O": "overcommit",
    "o": "output",
    "p": "partition",
    "Q": "quiet",
    "q": "qos",
    "S": "core-spec",
    "s": "oversubscribe",
    "t": "time",
    "V": "version",
    "v": "verbose",
    "W": "wait",
    "w": "nodelist",
    "x": "exclude",
}
# Options that take no value.
FLAGS = {
    "contiguous",
    "hold",
    "ignore-pbs",
    "no-requeue",
    "overcommit",
    "parsable",
    "quiet",
    "reboot",
    "requeue",
}
FLAGS |= {
    "spread-job",
    "stepmgr",
    "test-only",
    "use-min-nodes",
    "verbose",
    "wait",
    "help",
    "usage",
    "version",
}
# Options whose value may be omitted (no roles: they are sbatch's own).
FLAGS_OR_VALUES = {"exclusive", "get-user-env", "nice", "no-kill", "oversubscribe", "propagate"}
# Options whose value is yes or no, and how each spells the two.
ANSWERS = {
    "kill-on-invalid-dep": ("yes", "no"),
    "wait-all-nodes": ("1", "0"),
    "oom-kill-step": ("1", "0"),
}
OPTIONS = {*LETTERS.values(), *FLAGS, *FLAGS_OR_VALUES, *ANSWERS}
OPTIONS |= {
    "batch",
    "bb",
    "bbf",
    "cluster-constraint",
    "comment",
    "consolidate-segments",
    "container",
}
OPTIONS |= {
    "container-id",
    "cores-per-socket",
    "cpu-freq",
    "cpus-per-gpu",
    "deadline",
    "delay-boot",
    "export",
}
OPTIONS |= {
    "export-file",
    "extra",
    "gid",
    "gpu-bind",
    "gpu-freq",
    "gpus-per-node",
    "gpus-per-socket",
}
OPTIONS |= {
    "gpus-per-task",
    "gres",
    "gres-flags",
    "hint",
    "mail-type",
    "mail-user",
    "mcs-label",
    "mem",
    "mem-bind",
}
OPTIONS |= {"mem-per-cpu", "mem-per-gpu", "mincpus", "network", "ntasks-per-core", "ntasks-per-gpu"}
OPTIONS |= {
    "ntasks-per-node",
    "ntasks-per-socket",
    "open-mode",
    "power",
    "prefer",
    "priority",
    "profile",
}
OPTIONS |= {
    "reservation",
    "resources",
    "resv-ports",
    "segment",
    "signal",
    "sockets-per-node",
    "spank",
    "switches",
}
OPTIONS |= {
    "thread-spec",
    "threads-per-core",
    "time-min",
    "tmp",
    "tres-bind",
    "tres-per-job",
    "tres-per-node",
}
OPTIONS |= {"tres-per-socket", "tres-per-task", "uid", "wckey", "wrap"}
# Names that submitit, Hydra's own plugin, older versions of SLURM and our keys use.
ALIASES = {
    "name": "job-name",
    "num-gpus": "gpus-per-node",
    "share": "oversubscribe",
    "tasks-per-node": "ntasks-per-node",
}
ALIASES |= {
    "timeout-min": "time",
    "workdir": "chdir",
    "mem-gb": "mem",
    "memory-gb": "mem",
    "mem-per-node": "mem",
}
IN_GB = ("mem-gb", "memory-gb")


def name_of(typed: str) -> str:
    """Return sbatch's long name of an option, however it is spelled.

    An unknown name is returned as it is, because a newer sbatch may know it.
    """
    bare_name = typed.strip().lstrip("-")
    if len(bare_name) == 1:
        return LETTERS.get(bare_name, bare_name)
    name = bare_name.replace("_", "-")
    name = ALIASES.get(name, name)
    if name in OPTIONS:
        return name
    completions = [option for option in OPTIONS if option.startswith(name)]
    return completions[0] if len(completions) == 1 else name


def minutes(text: str) -> float | None:
    """Return the minutes of a time limit in sbatch's forms "90", "1:30:00", "1-12", or None."""
    match = DAYS.fullmatch(text.strip())
    if match is None:
        return None
    days, *parts = match.groups()
    numbers = [int(part) for part in parts if part is not None]
    if days is not None:  # days-hours:minutes:seconds
        hours, mins, secs = [*numbers, 0, 0][:3]
        return int(days) * 24 * 60 + hours * 60 + mins + secs / 60
    if len(numbers) < 3:  # minutes:seconds
        return numbers[0] + (numbers[1] / 60 if len(numbers) == 2 else 0)
    return numbers[0] * 60 + numbers[1] + numbers[2] / 60


def memory_gb(text: str) -> float | None:
    """Return the GB of a memory size in sbatch's forms "65536" (MB), "64G", "64GB", or None."""
    match = MEMORY.fullmatch(text.strip())
    return None if match is None else int(match[1]) * GB_OF[match[2].upper()]
