"""The command around Hydra: its refusals in a line each, and the exit code."""

import difflib
import os
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass
from pathlib import Path

from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from multicard.config.job import require
from multicard.controller import session
from multicard.controller.workload import Workload

Schemas = dict[str, dict[str, type]]


def execute(main: Callable[[], None], workload: Workload, experiments: Iterable[str]) -> int:
    """Call a function that `hydra.main` decorated, print the table of what it measured and return the exit code.

    Args:
        workload: what the entry measures; experiments: the options of `experiment` that are for this entry.
    """
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # Hydra then raises what it would print over many lines
    session.SESSION.workload = workload
    try:
        check_sweep(sys.argv[1:], Path(sys.argv[0]).name, list(experiments))
        main()
    except ValueError as error:  # of a sweep as a whole: nothing was started
        print(f"refused: {error}", file=sys.stderr)
        session.close()
        return 1
    except (HydraException, OmegaConfBaseException) as error:
        causes = [str(part) for part in (error, error.__cause__) if part is not None]
        print(
            f"refused: {in_a_line(chr(10).join(causes), known_keys(workload.schema, workload.options))}",
            file=sys.stderr,
        )
        return 1
    except KeyboardInterrupt:
        print("interrupted by SIGINT", file=sys.stderr)
        session.close()
        return 1
    return session.close()


def check_sweep(words: list[str], entry: str, experiments: list[str]) -> None:
    """Refuse what Hydra could only say of the keys that an experiment sets, or would pass over.

    Raises:
        ValueError: where `words` name an experiment that `entry` does not have, or several at once.
    """
    chosen = dict(word.split("=", 1) for word in words if re.match(r"(experiment|scale)=", word))
    for group, value in chosen.items():
        require("," not in value, f"{group}={value}: each is a sweep of its own; give one a command")
    name = chosen.get("experiment", "null")
    known = name in ("null", *experiments)
    require(known, f"experiment={name}: {entry} has no such experiment; it has {', '.join(experiments)}")


def in_a_line(message: str, known: list[str]) -> str:
    """What Hydra or OmegaConf says of a command line that cannot be composed, with the key first and a remedy."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    key = re.match(r"Could not override '([^']*)'", lines[0])
    if key is not None:
        if key[1] in known:
            return (
                f"{key[1]}: not a key of the option chosen for {key[1].partition('.')[0]}; --cfg job shows those it has"
            )
        near = difflib.get_close_matches(key[1], known, n=3)
        return f"{key[1]}: no such key here; " + (f"nearest: {', '.join(near)}" if near else "--cfg job shows all keys")
    option = re.search(r"Could not find '([^']*)'", lines[0])
    if option is not None and any(line.startswith("Available options") for line in lines):
        group, _, name = option[1].rpartition("/")
        first = next(i for i, line in enumerate(lines) if line.startswith("Available options")) + 1
        last = next((i for i, line in enumerate(lines) if line.startswith("Config search path")), len(lines))
        return f"{group}={name}: no such option; choose one of {', '.join(lines[first:last])}"
    if lines[0].startswith("Ambiguous value"):
        words = lines[0].partition("'")[2].rstrip("'")
        return f"{words}: several values are a sweep; add -m, or write a list as [a,b]"
    merged = re.match(r"Error merging override (.*)", lines[0])
    if merged is not None and len(lines) > 1:
        return f"{merged[1]}: {lines[1][0].lower()}{lines[1][1:]}"
    return lines[0]


def known_keys(root: type, groups: Schemas) -> list[str]:
    """Every key that a command line may set, of all options."""
    group_of = {schema: group for group, options in groups.items() for schema in options.values()}
    keys: set[str] = set()
    for schema in (root, *group_of):
        prefix = f"{group_of[schema]}." if schema in group_of else ""
        for field in fields(schema):
            keys.add(prefix + field.name)
            if isinstance(field.type, type) and is_dataclass(field.type):
                keys |= {f"{prefix}{field.name}.{inner.name}" for inner in fields(field.type)}
    return sorted(keys)
