"""Turn the output of an sbatch that did not submit into one line with the key and the remedy."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from multicard.config.job import Resources
from multicard.messages import Refusal

PREFIX = re.compile(r"^sbatch: (?:error: |fatal: )?")
BY_CONTROLLER = "Batch job submission failed: "
# After such an output, the controller may have the job nevertheless: the request was sent, but no
# answer came back.
UNANSWERED = re.compile(
    r"timed out|zero bytes|connection (reset|closed)|broken pipe|communication|unexpected"
    r" message|insane|incomplete"
    r"|unknown reason",
    re.IGNORECASE,
)
# Lines that sbatch prints with a refusal, although they say nothing about it.
IRRELEVANT = re.compile(
    r"Try .sbatch --help. for more information|Slurm temporarily unable to accept job, sleeping"
)


@dataclass(frozen=True)
class SlurmReason:
    """A key that one of SLURM's reasons is about.

    Args:
        pattern: matches the reason.
        key: the key that has to change.
        option: the option of sbatch that the key sets.
        remedy: how to find the possible values.
    """

    pattern: str
    key: str
    option: str
    remedy: str


CAUSES = (
    SlurmReason(
        r"\binvalid account\b|\baccount/partition\b",
        "hydra.launcher.account",
        "account",
        "`sacctmgr show associations user=$USER` lists the accounts",
    ),
    SlurmReason(
        r"\bpartition\b", "hydra.launcher.partition", "partition", "`sinfo -s` lists the partitions"
    ),
    SlurmReason(r"\bqos\b", "hydra.launcher.qos", "qos", "`sacctmgr show qos` lists them"),
    SlurmReason(r"\btime limit\b", "time_min", "time", "`sinfo -o '%P %l'` shows the limits"),
    SlurmReason(
        r"\bfeature",
        "hydra.launcher.constraint",
        "constraint",
        "`sinfo -o '%P %f'` shows the features",
    ),
    SlurmReason(
        r"\bnode name\b", "hydra.launcher.nodelist", "nodelist", "`sinfo -N` lists the nodes"
    ),
    SlurmReason(
        r"generic resource|\bgres\b",
        "hydra.launcher.gpu_type",
        "gpu-type",
        "`sinfo -o '%P %G'` shows what the nodes have",
    ),
)


# If sbatch found no controller to ask, nothing was submitted and nothing was refused.
# SLURM is installed, but neither a file nor the DNS names its controller.
NO_CLUSTER = re.compile(
    r"could not establish a configuration source|resolve_ctls_from_dns_srv", re.IGNORECASE
)
UNREACHED = re.compile(
    r"unable to contact slurm controller|connection refused|connect failure", re.IGNORECASE
)


def output_lines(output: str) -> list[str]:
    """Return the lines of sbatch and the site, each line once and without sbatch's prefix."""
    stripped = (PREFIX.sub("", line.strip()) for line in output.splitlines())
    return list(dict.fromkeys(line for line in stripped if line and not IRRELEVANT.search(line)))


def reason_of_slurm(sbatch_lines: list[str]) -> str:
    """Return SLURM's reason among these lines, which decides the key.

    The site's lines do not decide it, because their words may name anything.
    """
    by_controller = [
        line.removeprefix(BY_CONTROLLER) for line in sbatch_lines if line.startswith(BY_CONTROLLER)
    ]
    return (by_controller or sbatch_lines or [""])[-1]


def is_unanswered(output: str) -> bool:
    """Return True if the job may be in the queue although sbatch failed."""
    reason = reason_of_slurm(output_lines(output))
    return not reason or UNANSWERED.search(reason) is not None


def explain(output: str, request: Resources, flags: Mapping[str, Any]) -> Refusal:
    """Explain a refusal of sbatch in one line that includes all of its output.

    Args:
        output: everything that sbatch printed to stderr.
        flags: the options with which the job was submitted.
    """
    sbatch_lines = output_lines(output)
    slurm_reason = reason_of_slurm(sbatch_lines)
    reason = (
        "; ".join(dict.fromkeys(line.removeprefix(BY_CONTROLLER) for line in sbatch_lines))
        or "without a word"
    )
    lowered_reason = slurm_reason.lower()
    unreached = _unreached(sbatch_lines, slurm_reason, reason)
    if unreached is not None:
        return unreached
    if "node configuration" in lowered_reason or "node count" in lowered_reason:
        kind = f" of {flags['gpus-per-node']}" if ":" in str(flags.get("gpus-per-node")) else ""
        return Refusal(
            "slurm.no-node",
            "gpus, cpus_per_gpu, nodes or memory_gb: no node takes a job with"
            f" {request.in_words()}{kind} (SLURM: {reason}); `sinfo -o '%P %D %G %c %m'` shows what"
            " the nodes have",
            key="gpus",
            keys=["gpus", "cpus_per_gpu", "nodes", "memory_gb"],  # no roles: what a request has
            asked=request.in_words(),
            reason=reason,
        )
    if "policy" in lowered_reason:
        return Refusal(
            "slurm.policy",
            f"hydra/launcher=submitit_slurm: a limit of the site forbids these jobs ({reason}), on"
            " their number, size or time; `sacctmgr show associations user=$USER` and `sacctmgr"
            " show qos` show the limits",
            key="hydra/launcher",
            reason=reason,
        )
    for cause in CAUSES:
        if re.search(cause.pattern, lowered_reason):
            value = request.time_min if cause.key == "time_min" else flags.get(cause.option)
            typed = "null" if value is None else value
            return Refusal(
                "slurm.refuses",
                f"{cause.key}={typed}: SLURM refuses it ({reason}); {cause.remedy}",
                key=cause.key,
                value=value,
                reason=reason,
            )
    option = re.search(r"option '?-*([\w-]+)", slurm_reason)
    if option is not None and option[1] in flags:
        name = option[1]
        return Refusal(
            "slurm.refuses-option",
            f"hydra.launcher: sbatch refuses {name}={flags[name]} ({reason}); `sbatch --help` lists"
            " its options",
            key="hydra.launcher",
            option=name,
            value=flags[name],
            reason=reason,
        )
    return Refusal(
        "slurm.refuses-job",
        f"hydra/launcher=submitit_slurm: SLURM refuses the job ({reason}); mend hydra.launcher or"
        " ask the site",
        key="hydra/launcher",
        reason=reason,
    )


def _unreached(sbatch_lines: Sequence[str], slurm_reason: str, reason: str) -> Refusal | None:
    """Return the refusal if sbatch did not reach a controller of SLURM, or None if it did."""
    if any(NO_CLUSTER.search(line) for line in sbatch_lines):
        return Refusal(
            "slurm.no-cluster",
            f"hydra/launcher=submitit_slurm: sbatch knows no cluster here ({reason}); start the"
            " command on a login node of the cluster, or use `hydra/launcher=local`",
            key="hydra/launcher",
            reason=reason,
        )
    if UNREACHED.search(slurm_reason):
        return Refusal(
            "slurm.unreached",
            f"hydra/launcher=submitit_slurm: SLURM's controller cannot be reached ({reason}), and"
            " nothing was submitted; start the same command again once `scontrol ping` finds it",
            key="hydra/launcher",
            reason=reason,
        )
    return None


def unanswered_refusal(output: str, name: str) -> Refusal:
    """Return the refusal of cells whose jobs may or may not be in the queue.

    The same command looks for these jobs before it submits any.
    """
    reason = "; ".join(output_lines(output)) or "without a word"
    return Refusal(
        "slurm.unanswered",
        f"hydra/launcher=submitit_slurm: sbatch ended without an answer ({reason}), and no job"
        f" {name} is known yet; start the same command again, which looks for it before it submits",
        key="hydra/launcher",
        reason=reason,
        job_name=name,
    )
