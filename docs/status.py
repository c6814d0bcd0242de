"""The README's table of what was measured where, from the rows that were published.

    python -m docs.status

prints it; a test holds the README to it.
"""

from collections.abc import Iterator

from multicard.estimate import history, shared_rows
from multicard.estimate.shared_rows import SharedRow
from multicard.repository import ROOT

PUBLISHED = ROOT / history.ROOT / history.PUBLISHED
HEADINGS = ("hardware", "measured", "settings", "runs each", "commit")
COMMIT = 8  # digits
UNKNOWN = "unknown"


def lines() -> list[str]:
    """The table in Markdown: a row for each hardware, workload and commit."""
    rows = [HEADINGS, tuple("-" for _ in HEADINGS), *cells()]
    return [f"| {' | '.join(row)} |" for row in rows]


def cells() -> Iterator[tuple[str, ...]]:
    groups: dict[tuple[str, str, str | None], list[SharedRow]] = {}
    for file in sorted(PUBLISHED.glob("*.json"), reverse=True):
        for row in shared_rows.decode(file.read_bytes()).rows:
            work = f"{row.settings['model.name']} on {row.settings['dataset.name']}"
            groups.setdefault((row.hardware, work, row.commit), []).append(row)
    for (hardware, work, commit), own in groups.items():
        gpus = " and ".join(sorted({str(row.settings["gpus"]) for row in own}))
        place = (
            f"{gpus} x {hardware}" if hardware.startswith("NVIDIA") else f"{hardware}, {gpus} ranks"
        )
        runs = sorted({max(figure.n for figure in row.figures.values()) for row in own})
        each = " to ".join(map(str, {runs[0]: None, runs[-1]: None}))
        yield place, work, str(len(own)), each, commit[:COMMIT] if commit else UNKNOWN


if __name__ == "__main__":
    print("\n".join(lines()))
