"""docs/reference/keys.md from the schemas: `python -m multicard.cli.keys_page > FILE`.

The page shows the keys of all options at once; `--help` shows those of one command.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields

from multicard import workloads
from multicard.cli.command import GROUPS, keys
from multicard.run.workload import Workload

INTRODUCTION = """# Keys

Every key of the configuration, made from the schemas by `python -m multicard.cli.keys_page`.
Groups are typed as `group=option` and keys as `key=value`. With `-m`, a list of values
(`gpus=1,2`) is swept. `--help` shows the keys of a command, with the values that it sets."""
KEY_TITLES = ("key", "default", "meaning")


def page() -> str:
    """Return the whole page as Markdown."""
    workloads.register()
    parts = [INTRODUCTION]
    for workload in workloads.WORKLOADS:
        parts.extend(_sections(workload))
    return "\n\n".join(parts) + "\n"


def _sections(workload: Workload) -> Iterator[str]:
    """Yield an entry's title and its tables: groups, keys, and the keys that an option adds."""
    plain = workloads.composed(workload.entry, [])
    chosen = plain.hydra.runtime.choices
    descriptions = {
        field.name: field.metadata.get("help", "") for field in fields(workload.schema)
    } | GROUPS
    yield f"## {workload.entry}"

    group_rows = []
    for group, options in workloads.groups(workload).items():
        named = [workload.named[group].words] if group in workload.named else []
        choices = ", ".join([*(f"`{option}`" for option in options), *named])
        default = chosen[group] or "null"
        group_rows.append((f"`{group}`", f"`{default}`", f"{descriptions[group]}: {choices}"))
    yield _table(("group", "default", "meaning and options"), group_rows)

    shown_keys = set(workloads.groups(workload))
    common_rows = [row for row in keys(workload.schema, plain) if row[0] not in shown_keys]
    yield _table(KEY_TITLES, map(_as_code, common_rows))

    shown_keys.update(name for name, _, _ in common_rows)
    for group, options in workload.options.items():
        for option in options:
            rows = list(_added_keys(workload, group, option, shown_keys))
            if rows:
                yield f"### {group}={option}"
                yield _table(KEY_TITLES, map(_as_code, rows))


def _added_keys(
    workload: Workload, group: str, option: str, shown_keys: set[str]
) -> Iterator[tuple[str, str, str]]:
    """Yield the group's keys that this option has and the default option lacks."""
    with_option = workloads.composed(workload.entry, [f"{group}={option}"])
    for row in keys(workload.schema, with_option):
        if row[0].startswith(f"{group}.") and row[0] not in shown_keys:
            yield row


def _as_code(row: tuple[str, str, str]) -> tuple[str, str, str]:
    name, value, description = row
    return f"`{name}`", f"`{value}`", description


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(titles)} |", f"|{'---|' * len(titles)}"]
    for row in rows:
        cells = (cell.replace("|", "\\|") for cell in row)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(page(), end="")
