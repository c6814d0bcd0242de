"""What a user should know about a run's rows before the run starts."""

from multicard.config.llm import LlmConfig
from multicard.llm.data import columns, row_sources
from multicard.messages import Message

LISTED_NAMES = 8  # A notice lists at most this number of names.
REPEATED_SHARE = 0.1  # Fewer held-out rows whose prompts are trained on are not worth a line.


def of_rows(loaded: row_sources.LoadedRows, last_alone: int) -> list[Message]:
    """Return the notices about what is not read of the rows, or is likely to be a mistake."""
    notes = loaded.notes
    messages = list[Message]()
    if loaded.ignored:
        counted_names = [f"{name} ({number})" for name, number in loaded.ignored.items()]
        further_names = (
            f" and {len(counted_names) - LISTED_NAMES} more"
            if len(counted_names) > LISTED_NAMES
            else ""
        )
        messages.append(
            Message(
                "llm.ignored",
                f"not read: {', '.join(counted_names[:LISTED_NAMES])}{further_names}; see"
                " ignored in the record",
                ignored=dict(loaded.ignored),
            )
        )
    if loaded.equal:
        messages.append(
            Message(
                "llm.equal-pairs",
                f"left out: {loaded.equal} pairs whose two answers are equal; see text_rows.equal"
                " in the record",
                pairs=loaded.equal,
            )
        )
    if last_alone:
        messages.append(
            Message(
                "llm.last-answers-alone",
                f"only the last answer is learnt in {last_alone} rows: the chat template changes"
                " an answer once others follow; see text_rows.last_alone in the record",
                rows=last_alone,
            )
        )
    if notes.by_place:
        messages.append(
            Message(
                "llm.turns-by-place",
                f"{notes.by_place} rows hold texts without roles. They are read as the user's and"
                " the assistant's in turn; words in them that name a speaker are learnt as text",
                rows=notes.by_place,
            )
        )
    # In a few rows, an answer may well repeat its question on purpose.
    if 2 * notes.repeating > loaded.wanted:
        messages.append(
            Message(
                "llm.answers-repeat",
                f"the answers of {notes.repeating} rows begin with the whole text that they"
                " answer, so a row holds this text twice. Give the answers alone, unless they"
                " should repeat it",
                rows=notes.repeating,
            )
        )
    if notes.missing_words:
        words = {
            f"{word} in {column}": rows for (column, word), rows in notes.missing_words.items()
        }
        counted_words = [f"{place} ({rows})" for place, rows in words.items()]
        messages.append(
            Message(
                "llm.missing-words",
                "words that often stand for a missing value are read as text:"
                f" {', '.join(counted_words[:LISTED_NAMES])}. If the value is missing, leave its"
                " cell empty, or the row out",
                words=words,
            )
        )
    if notes.null_arguments:
        messages.append(
            Message(
                "llm.null-arguments",
                f"{notes.null_arguments} rows have calls with null arguments, which are written."
                " datasets adds such keys if other rows have them: leave them out unless the call"
                " should have them",
                rows=notes.null_arguments,
            )
        )
    tokens = loaded.tokens
    if tokens is not None and tokens.rows:
        token_names = ", ".join([*tokens.within][:LISTED_NAMES])
        messages.append(
            Message(
                "llm.template-twice",
                f"{tokens.rows} rows have tokens of the chat template in their own text"
                f" ({token_names}). The template writes these tokens a second time. Give the"
                " text alone, or segments that are learnt unchanged",
                rows=tokens.rows,
                tokens=dict(tokens.within),
            )
        )
    if tokens is not None and tokens.unended:
        messages.append(
            Message(
                "llm.answers-unended",
                f"{tokens.unended} rows have an answer that no special token ends, so that the"
                " model does not learn to stop. Give a chat template that writes such a token"
                " after each answer",
                rows=tokens.unended,
            )
        )
    return messages


def of_held_out(
    config: LlmConfig, loaded: row_sources.LoadedRows, also_trained: int, trained_prompts: int
) -> list[Message]:
    """Return the notices about held-out rows, or about their absence.

    Args:
        also_trained: Number of held-out rows that are equal to a row that is trained on.
        trained_prompts: Number of other held-out rows with the prompt of such a row.
    """
    data = config.dataset
    if loaded.too_few:
        return [
            Message(
                "llm.too-few-to-hold-out",
                f"no row is held out: too few of the {loaded.wanted} rows would be left to train or"
                " to measure on",
                key="dataset.split",
                rows=loaded.wanted,
            )
        ]
    if loaded.held_out is None:
        return []
    count = len(loaded.held_out.rows)
    trained = len(loaded.rows or ())
    splits = loaded.held_out.splits
    explanation = (
        "`dataset.split=0` trains on all rows"
        if data.split is not None
        else "they are the rows of dataset.test_files"
    )
    messages = [
        Message(
            "llm.held-out",
            f"held out: {count} rows; {trained} rows are trained on. The held-out loss is measured"
            f" after each epoch ({explanation})",
            key="dataset.split" if data.split is not None else "dataset.test_files",
            rows=count,
            trained=trained,
        )
    ]
    if splits is not None:
        remedy = columns.override({"split": None})
        messages = [
            Message(
                "llm.held-out-by-column",
                f"held out: {count} rows that the column {splits.column} calls {splits.part};"
                f" {trained} rows are trained on. `{remedy}` trains on rows of all splits",
                key="dataset.columns",
                rows=count,
                trained=trained,
                column=splits.column,
                part=splits.part,
                remedy=remedy,
            )
        ]
    if also_trained:
        messages.append(
            Message(
                "llm.also-trained",
                f"{also_trained} of {count} held-out rows are equal to rows that are trained on:"
                " the held-out loss is lower than on new rows",
                rows=also_trained,
                held_out=count,
            )
        )
    # A question such as a greeting may well be asked a few times.
    if trained_prompts >= REPEATED_SHARE * count:
        messages.append(
            Message(
                "llm.prompts-trained",
                f"{trained_prompts} of {count} held-out rows have a prompt that is also trained on,"
                " with another answer: the held-out loss is lower than on new prompts. To measure"
                " on new prompts, hold out rows of your own by dataset.test_files",
                key="dataset.test_files",
                rows=trained_prompts,
                held_out=count,
            )
        )
    return messages
