"""`export` and `import`: share measured rows without anything that identifies their owner."""

import re
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from statistics import stdev

import msgspec

from multicard.config import schema
from multicard.config.job import count
from multicard.config.keys import flat
from multicard.estimate import history, shared_rows
from multicard.estimate.shared_rows import (
    LICENCE,
    PACKAGES,
    SHARED_FIGURES,
    SharedFigure,
    SharedFile,
    SharedRow,
)
from multicard.messages import Message, Refusal, page
from multicard.records.run_folder import write_text
from multicard.records.schema_environment import Environment

from ..runs import grouping
from ..runs.load import Run

EXPORT = f"""Write measured rows to share: settings, hardware, versions, and each figure with its
number of runs, mean and standard deviation. No paths, hosts, names, ids, times of day or prices.
{page("share.md")} says how to send them."""
IMPORT = (
    "Check rows that others measured and put them into multirun/published, where predictions and"
    " charts read them."
)


def export(runs: Sequence[Run], out: Path) -> list[str]:
    """Write rows for the settings that ended ok and undisturbed; return lines about the file.

    Raises:
        ValueError: nothing can be shared. The message has the reason.
    """
    exportable_runs = [
        run for run in grouping.ok_runs(runs) if not any(limit.forbids for limit in run.limits)
    ]
    rows = [
        row
        for setting_runs in grouping.by_setting(exportable_runs).values()
        if (row := _row(setting_runs)) is not None
    ]
    if not rows:
        raise Refusal(
            "export.nothing",
            f"nothing to share of {count(len(runs), 'run')}: none ended ok and undisturbed, with a"
            " model and a data set that multicard or a package names",
            runs=len(runs),
        )
    write_text(
        out, msgspec.json.format(msgspec.json.encode(SharedFile(1, LICENCE, rows))).decode() + "\n"
    )
    texts = set[str]()
    for row in rows:
        values = (row.hardware, *row.settings.values())
        texts.update(value for value in values if isinstance(value, str))
    shared_runs = sum(max(figure.n for figure in row.figures.values()) for row in rows)
    written_text = (
        f"{out}: {count(len(rows), 'row')} of {shared_runs} of {count(len(runs), 'run')}, under"
        f" {LICENCE}"
    )
    return [
        Message(
            "export.written",
            written_text,
            file=str(out),
            rows=len(rows),
            shared=shared_runs,
            runs=len(runs),
        ),
        Message(
            "export.words", f"All words in them: {', '.join(sorted(texts))}", words=sorted(texts)
        ),
    ]


def _row(runs: Sequence[Run]) -> SharedRow | None:
    """Return the row of a setting's runs.

    It is None if the model, its weights or the data set are the user's own.
    """
    record = runs[0].record()
    machine = runs[0].environment()
    config = {key: value for key, value in record.config.items() if key not in schema.beside()}
    settings = {
        key: value
        for key, value in flat(config).items()
        if shared_rows.is_public(record.kind, key, value)
    }
    if "model.weights" in flat(config) and "model.weights" not in settings:
        return None
    figures = {
        name: figure for name in SHARED_FIGURES if (figure := _figure(runs, name)) is not None
    }
    drivers = {gpu.driver for gpu in machine.gpus}
    driver = drivers.pop() if len(drivers) == 1 else None
    versions = {"python": machine.python, "driver": driver, **machine.packages}
    is_version = re.compile(shared_rows.VERSION).search
    row = SharedRow(
        record.kind,
        record.hardware or "",
        record.cores,
        None if record.dirty else record.commit,
        {
            name: version
            for name in PACKAGES
            if (version := versions.get(name)) and is_version(version)
        },
        settings,
        figures,
        _links(machine),
    )
    try:
        return shared_rows.decode(msgspec.json.encode(SharedFile(1, LICENCE, [row]))).rows[0]
    except ValueError:
        return None


def _links(machine: Environment) -> list[str]:
    """Return the kinds of links between the GPUs of a node."""
    topology_links = (machine.topology or {}).get("links")
    links = [
        entry.get("link")
        for entry in (topology_links if isinstance(topology_links, list) else [])
        if isinstance(entry, dict)
    ]
    return sorted(
        {link for link in links if isinstance(link, str) and re.search(shared_rows.LINK, link)}
    )


def _figure(runs: Sequence[Run], name: str) -> SharedFigure | None:
    """Return a figure's number of runs, mean and standard deviation, or None without the figure."""
    mean = grouping.of_setting(runs, name)
    values = [run[name] for run in runs]
    return (
        None
        if mean is None
        else SharedFigure(len(runs), mean, stdev(values) if len(runs) > 1 else None)
    )


def bring_in(file: Path) -> str:
    """Import a file's rows into multirun/published; return a line about it.

    Raises:
        ValueError: the file cannot be imported. The message says what is wrong with it.
    """
    try:
        if not file.is_file():
            raise Refusal("import.no-file", "is not a file")
        if file.stat().st_size > shared_rows.MOST_BYTES:
            most = shared_rows.MOST_BYTES
            raise Refusal("import.too-large", f"has over {most:,} bytes", most=most)
        shared_file = shared_rows.decode(file.read_bytes())
    except ValueError as error:
        reason = str(error)
        text = f"{file}: {reason}; nothing was imported"
        raise Refusal("import.refused", text, file=str(file), reason=reason) from None
    content = msgspec.json.format(msgspec.json.encode(shared_file)).decode() + "\n"
    name = re.sub(r"\W+", "-", shared_file.rows[0].hardware.lower()).strip("-")
    path = Path(
        history.ROOT, history.PUBLISHED, f"{name}-{sha256(content.encode()).hexdigest()[:8]}.json"
    )
    is_known = path.exists()
    if not is_known:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, content)
    rows = count(len(shared_file.rows), "row")
    if is_known:
        return Message(
            "import.known",
            f"{path}: {rows}, already imported",
            file=str(path),
            rows=len(shared_file.rows),
        )
    return Message("import.written", f"{path}: {rows}", file=str(path), rows=len(shared_file.rows))
