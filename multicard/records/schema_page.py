"""Generates docs/reference/record.md from the schema.

Run it as `python -m multicard.records.schema_page > docs/reference/record.md`.
"""

import inspect
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import fields

from multicard.records import figures, run_folder, schema, schema_steps, schema_types, text_table
from multicard.records.schema_environment import Environment
from multicard.records.schema_types import described

INTRODUCTION = f"""# The record of a run

Each run leaves a folder, `multirun/<name>/<cell>/`. Its files:

{{files}}

Units are in the names: `_s` seconds, `_bytes` bytes, `_mhz`, `_w`, `_joules`, `_per_s` per second.
A key that is `null` was not measured or does not apply. `schema_version` is
{schema.SCHEMA_VERSION}. A record can be read unless its version is newer than the program's. Keys
that it lacks read as `null`, and unknown keys are ignored. The tables below are generated from
`multicard/records/schema.py` and the files next to it. Records are checked against this schema when
they are written. A key in *italics* appears only if it applies.
"""
FIGURES = """The numbers that tables, charts and rankings show, under the names that
`list --columns`, `--sort` and `--where` take. Their keys in result.json are also their keys in
W&B's summary. The runs of a setting are summarized by their mean; peak memory by its maximum."""
SECTIONS = {
    "result.json": schema.Record,
    "result.json of train_vision.py": schema.VisionRecord,
    "result.json of tune_llm.py": schema.LlmRecord,
    "result.json of measure_script.py": schema.ScriptRecord,
    "environment.json": Environment,
    "steps.parquet": schema_steps.CommonSteps,
    "steps.parquet of train_vision.py": schema_steps.VisionSteps,
    "steps.parquet of tune_llm.py": schema_steps.LlmSteps,
    "steps.parquet of measure_script.py": schema_steps.ScriptSteps,
}
NAMES = {int: "integer", float: "number", str: "text", bool: "true or false", Any: "anything"}


def page() -> str:
    """Return the whole page in Markdown."""
    files = inspect.getdoc(run_folder) or ""
    lines = [INTRODUCTION.format(files=files.split("\n\n", maxsplit=1)[1]).rstrip()]
    known: set[type[Struct]] = set()
    for title, kind in SECTIONS.items():
        lines += [f"## {title}", *_section(kind, "", known)]
    lines += ["## Figures", FIGURES, _figures()]
    return "\n\n".join(lines) + "\n"


def _section(kind: type[Struct], place: str, known: set[type[Struct]]) -> Iterator[str]:
    """Yield the description and the table of a struct, and then the sections of nested structs that
    are not described yet.
    """
    known.add(kind)
    # msgspec gives a struct without a docstring one that is its signature.
    if kind.__doc__ and not kind.__doc__.startswith(f"{kind.__name__}("):
        yield inspect.cleandoc(kind.__doc__)
    parent = kind.__mro__[1]
    inherited = () if parent is Struct else parent.__struct_fields__
    optional = {field.name for field in fields(kind) if field.default is UNSET}
    hints = get_type_hints(kind, include_extras=True)
    own_hints = {name: hints[name] for name in kind.__struct_fields__ if name not in inherited}
    rows = [
        (f"*{k}*" if k in optional else f"`{k}`", _in_words(hint), described(hint)[1])
        for k, hint in own_hints.items()
    ]
    # msgspec keeps the tag apart from the fields. On disk, it follows the version.
    if kind is schema.Record:
        rows.insert(1, ("`kind`", "text", " or ".join(figures.ALL)))
    yield _table(
        ("key", "type", "meaning"),
        [(*row, text_table.escape_markdown(text)) for *row, text in rows],
    )
    for name, hint in own_hints.items():
        for inner in _structures(hint):
            if inner not in known:
                yield f"### {place}{name}"
                yield from _section(inner, f"{place}{name}.", known)


def _figures() -> str:
    rows = []
    for figure in figures.FIGURES.values():
        own_keys = chain.from_iterable(figure.keys_of(kind) for kind in figures.ALL)
        keys = dict.fromkeys(f"`{key}`" for key in own_keys)
        meaning = f"{figure.title} ({figure.sentence})" if figure.sentence else figure.title
        rows.append((f"`{figure.name}`", ", ".join(keys), figure.better or "", meaning))
    return _table(("column", "keys", "better", "meaning"), rows)


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head, *body = [f"| {' | '.join(row)} |" for row in (headings, *rows)]
    return "\n".join([head, "|---" * len(headings) + "|", *body])


def _in_words(hint: Any) -> str:
    """Return the name of a type for readers, as in "number or null"."""
    types, _ = described(hint)
    if set(types) == set(get_args(schema_types.Scalar)):
        return "scalar"
    if len(types) > 1:
        parts = [_in_words(part) for part in types if part not in (NoneType, UnsetType)]
        return " or ".join([*dict.fromkeys(parts), *(["null"] if NoneType in types else [])])
    origin = get_origin(types[0])
    inner = get_args(types[0])
    if origin in (list, tuple):
        return f"list of {_in_words(inner[0])}"
    if origin is dict:
        return f"{_in_words(inner[1])} by name"
    return NAMES.get(types[0], "object")


def _structures(hint: Any) -> list[type[Struct]]:
    if isinstance(hint, type) and issubclass(hint, Struct):
        return [hint]
    return list(chain.from_iterable(_structures(part) for part in get_args(hint)))


if __name__ == "__main__":
    print(page(), end="")
