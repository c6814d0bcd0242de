"""Print the README's table of measured hardware, from the published rows.

    python -m docs.status

A test compares the README with it.
"""

from collections.abc import Iterator

from multicard.estimate import history, shared_rows
from multicard.estimate.shared_rows import SharedRow
from multicard.repository import ROOT

PUBLISHED = ROOT / history.ROOT / history.PUBLISHED
HEADINGS = ("hardware", "measured", "settings", "runs each", "commit")
COMMIT_DIGITS = 8
UNKNOWN = "unknown"


def lines() -> list[str]:
    """Return the table in Markdown, with a row for each hardware, workload and commit."""
    rows = [HEADINGS, tuple("-" for _ in HEADINGS), *cells()]
    return [f"| {' | '.join(row)} |" for row in rows]


def cells() -> Iterator[tuple[str, ...]]:
    groups: dict[tuple[str, str, str | None], list[SharedRow]] = {}
    for file in sorted(PUBLISHED.glob("*.json"), reverse=True):
        for row in shared_rows.decode(file.read_bytes()).rows:
            work = f"{row.settings['model.name']} on {row.settings['dataset.name']}"
            groups.setdefault((row.hardware, work, row.commit), []).append(row)
    for (hardware, work, commit), group_rows in groups.items():
        gpus = " and ".join(sorted({str(row.settings["gpus"]) for row in group_rows}))
        place = (
            f"{gpus} x {hardware}" if hardware.startswith("NVIDIA") else f"{hardware}, {gpus} ranks"
        )
        runs = sorted({max(figure.n for figure in row.figures.values()) for row in group_rows})
        runs_each = " to ".join(map(str, {runs[0]: None, runs[-1]: None}))
        short_commit = commit[:COMMIT_DIGITS] if commit else UNKNOWN
        yield place, work, str(len(group_rows)), runs_each, short_commit


if __name__ == "__main__":
    print("\n".join(lines()))
