"""`report`: one HTML file about some runs, for a person who must decide how to run a training on several GPUs.

`content` says what is in it, as the plain data of `parts`; `page` writes that as a file that opens offline.
"""

from collections.abc import Sequence
from pathlib import Path

from analysis.report import page, sections
from analysis.runs import load

NAME = "report.html"


def write(folders: Sequence[Path], out: Path | None, title: str | None, mix: bool) -> str:
    """Write the report on all runs under `folders`; what it holds, in a line.

    Args:
        out: the file; by default report.html in the first folder.
        mix: average runs of several commits or machines.

    Raises:
        ValueError: nothing that can be reported, or nowhere to write it.
    """
    found = load.read(folders)
    path = folders[0] / NAME if out is None else out
    if path.is_dir():
        raise ValueError(f"--out {path}: is a folder; name a file, such as {path / NAME}")
    made = sections.report(found, title or _title(folders), mix, sections.sources())
    size_bytes = page.write(path, made)
    return f"{path}: {sections.summary(found)}; {page.counted(made)}, {size_bytes / 1e6:.1f} MB"


def _title(folders: Sequence[Path]) -> str:
    more = len(folders) - 1
    return f"Runs of {folders[0].resolve().name}" + f" and {more} more folder{'s' * (more > 1)}" * bool(more)
