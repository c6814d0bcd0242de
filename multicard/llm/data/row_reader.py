"""Bring stored or generated rows into the form of the run's engine. Imports no torch."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from multicard.config.llm import LlmConfig
from multicard.config.llm_models import HfConfig
from multicard.config.llm_texts import DATASETS, ChatConfig, ChatLoss, StoredTextConfig
from multicard.config.llm_tokenizers import Qwen25TokenizerConfig
from multicard.llm import methods
from multicard.llm.data import (
    chat,
    choices,
    form_refusals,
    forms,
    half_characters,
    json_texts,
    learnt_rows,
    merged_keys,
    pairs,
    templates,
    turns,
)
from multicard.llm.data import columns as names
from multicard.llm.data.chat import ChatTemplate
from multicard.llm.data.columns import RowColumns, Unread, override
from multicard.llm.data.forms import Conversation
from multicard.llm.data.pairs import CHOICES
from multicard.llm.data.turn_tokens import TokenNotes, TurnTokens
from multicard.llm.data.turns import Message
from multicard.messages import Refusal

Row = dict[str, Any]

CHAT = ", or use `dataset=chat`"
FOLDER = ", or use engine=trl with model=hf, whose template may write it"
SHARE_GPT = {"system": "system", "user": "human", "assistant": "gpt"}


class RowNotes(NamedTuple):
    """Counts of rows that are likely to be a mistake.

    Fields:
        by_place: the rows of texts without roles, assigned to user and assistant in turn.
        repeating: the rows whose answer begins with the text that it answers.
        null_arguments: the rows with a call that has a null argument.
        missing_words: the rows by column and word, if a column's whole text is a word for a missing
            value, such as nan.
    """

    by_place: int = 0
    repeating: int = 0
    null_arguments: int = 0
    missing_words: Mapping[tuple[str, str], int] = {}


class RowReader:
    """Converts rows to the form of a run's engine, and counts the columns that it does not read."""

    def __init__(self, config: LlmConfig) -> None:
        self.config = config
        self.pairs = methods.chosen(config).pairs
        self.unread = Unread()
        self.unlearnt = Counter[str]()  # Rows to leave out, by the column that says so.
        self.notes = RowNotes()
        self._data = config.dataset
        self._is_of_files = getattr(self._data, "data_files", None) is not None
        self._template = templates.chosen(config)
        self._is_chat = isinstance(self._data, ChatConfig)
        self._named_columns = self._data.columns if isinstance(self._data, StoredTextConfig) else {}
        # The model's own template writes conversations, and all rows of `model=hf`.
        self._chat_template: ChatTemplate | None = None
        if self._is_chat or isinstance(config.model, HfConfig):
            self._chat_template = chat.template(config)
        self._tokens: TurnTokens | None = None
        if self._chat_template is not None:
            self._tokens = TurnTokens(
                self._chat_template.special,
                self._chat_template.render,
                self._chat_template.begin_and_end,
            )
        template = config.template_name
        self._reader = f"template={template}" if template else f"dataset={self._data.name}"

    def read(self, row: Any) -> Row | None:
        """Convert a stored row. A row whose columns say that it is not learnt is counted, and None.

        Raises:
            Refusal: the row cannot be read as intended.
        """
        columns = forms.columns_of(row, self._named_columns)
        unlearnt_by = learnt_rows.left_out_by(columns)
        if unlearnt_by is not None:
            self.unlearnt[unlearnt_by] += 1
            return None
        if self._tokens is not None:
            self._tokens.begin_row()
        unread = Unread()
        conversations = list[list[Message]]()
        is_by_place = False
        if self.pairs:
            pair = pairs.pair(columns, self._reader)
            self._refuse_lost_meaning(columns)
            chosen, rejected = (
                merged_keys.without_foreign_arguments(messages, pair.tools) for messages in pair[:2]
            )
            conversations += chosen, rejected
            converted = self.pair(pairs.Pair(chosen, rejected, pair.tools), unread)
        elif self._is_chat or self._template is None or DATASETS[self._data.name].conversations:
            conversation = forms.conversation(columns)
            self._refuse_lost_meaning(columns)
            messages = merged_keys.without_foreign_arguments(
                conversation.messages, conversation.tools
            )
            conversations.append(messages)
            is_by_place = conversation.is_by_place
            write = self._convert_conversation if self._is_chat else self._convert_share_gpt
            converted = write(conversation._replace(messages=messages), unread)
        else:
            template_row = self._template_columns(columns)
            self._refuse_lost_meaning(columns)
            converted = self.of_columns(template_row)
        unread.add(columns)
        half_characters.check_characters(converted, columns)
        self.unread.update(dict.fromkeys(unread, 1))  # Each column counts once a row.
        if self._tokens is not None:
            self._tokens.end_row()
        self._note(columns, conversations, is_by_place)
        return converted

    def _note(
        self, columns: RowColumns, conversations: Sequence[list[Message]], is_by_place: bool
    ) -> None:
        """Count a row that was read, for `notes`.

        Args:
            conversations: its conversation, or both conversations of a pair.
        """
        words = columns.missing_words()
        for messages in () if words else conversations:
            for message in messages:
                if names.is_missing_word(message["content"]):
                    words[f"messages of the {message['role']}"] = message["content"].strip()
        repeats = bool(conversations) and all(map(turns.repeats_prompt, conversations))
        has_nulls = any(map(merged_keys.have_null_arguments, conversations))
        self.notes = RowNotes(
            by_place=self.notes.by_place + is_by_place,
            repeating=self.notes.repeating + repeats,
            null_arguments=self.notes.null_arguments + has_nulls,
            missing_words=Counter(self.notes.missing_words) + Counter(words.items()),
        )

    def token_notes(self) -> TokenNotes | None:
        """Return the counts of special tokens; None without a chat template."""
        return None if self._tokens is None else self._tokens.notes()

    def pair(self, pair: pairs.Pair, unread: Unread | None = None) -> Row:
        """Convert a pair to torchtune's messages, or to the pieces of both answers."""
        for messages in pair[:2]:
            turns.check_learnt(messages[-1:], everything=False)
        if self._chat_template is None:
            if pair.tools:
                raise turns.unwritten("tools", None, instead=FOLDER)
            return {
                name: self._plain_messages(messages, unread)
                for name, messages in zip(CHOICES, pair[:2], strict=True)
            }
        pieces = list[list[Row]]()
        for name, messages in zip(CHOICES, pair[:2], strict=True):
            pieces.append(
                self._convert_conversation(Conversation(messages, pair.tools, name), unread)[
                    "pieces"
                ]
            )
        return dict(zip(CHOICES, pairs.answers_alone(*pieces), strict=True))

    def is_equal(self, row: Row) -> bool:
        """Tell whether both answers of a pair have the same tokens, so neither is preferred."""
        # Llama 3's form strips white space from each message.
        strips = self._chat_template is None and not isinstance(
            self.config.tokenizer, Qwen25TokenizerConfig
        )
        texts = ([str(part["content"]) for part in row[name]] for name in CHOICES)
        first, second = ([text.strip() for text in side] if strips else side for side in texts)
        return first == second

    def of_columns(self, row: Row) -> Row:
        """Convert a row in the columns of the run's template."""
        if self._chat_template is None:
            return row
        return self._convert_conversation(chat.from_columns(self.config, row), None)

    def _refuse_lost_meaning(self, columns: RowColumns) -> None:
        """Refuse a row with a column whose meaning this run would lose."""
        name = columns.unread_with_meaning()
        if name is None:
            return
        remedy = override({name: None})
        is_read = name.lower().strip() in (*names.SYSTEM, *names.TOOLS, *names.HISTORY)
        other = (
            ", or use `dataset=chat`, which reads it"
            if is_read and not (self._is_chat or self.pairs)
            else ""
        )
        raise Refusal(
            "llm.row-bears",
            f"has {name}, which {self._reader} does not read here; leave it out, as"
            f" `{remedy}`{other}",
            column=name,
            reader=self._reader,
            remedy=remedy,
        )

    def _convert_conversation(self, conversation: Conversation, unread: Unread | None) -> Row:
        assert self._chat_template is not None
        loss = self._data.loss if isinstance(self._data, ChatConfig) else ChatLoss.answers
        row, keys = chat.converted(conversation, self._chat_template, loss)
        if self._tokens is not None and conversation.messages:
            self._tokens.note(conversation.messages, row["pieces"], is_whole=loss is ChatLoss.all)
        if unread is not None:
            unread.update(keys)
        return row

    def _plain_messages(self, messages: list[Message], unread: Unread | None) -> list[Message]:
        """Return messages with only role and content, as torchtune's forms have them."""
        settled, keys = turns.settle(messages, None, "messages", FOLDER if self.pairs else CHAT)
        if unread is not None:
            unread.update(keys)
        if settled and settled[0]["role"] == "developer":  # OpenAI's name of the system's message.
            settled[0] = settled[0] | {"role": "system"}
        for number, message in enumerate(settled, start=1):
            if message["role"] not in SHARE_GPT:
                raise Refusal(
                    "llm.row-role",
                    f"message {number} is of the role {message['role']}, which {self._reader}"
                    " cannot read; leave the row out, or use engine=trl with model=hf",
                    message=number,
                    role=message["role"],
                    reader=self._reader,
                )
        turns.check_learnt(settled, everything=False)
        return [{"role": message["role"], "content": message["content"]} for message in settled]

    def _convert_share_gpt(self, conversation: Conversation, unread: Unread) -> Row:
        """Return a conversation in ShareGPT's form, in which human and gpt take turns.

        With a template, each of them speaks once.
        """
        if self._chat_template is not None:
            return self._convert_conversation(conversation, unread)
        if conversation.tools:
            raise turns.unwritten("tools", None, instead=CHAT)
        if conversation.answers_of_prompt():
            raise Refusal(
                "llm.row-prompt-learnt",
                f"has answers in its prompt, which {self._reader} would learn; use `dataset=chat`",
                reader=self._reader,
            )
        settled = self._plain_messages(conversation.messages, unread)
        if any(
            message.get("weight") == 0
            for message in conversation.messages
            if message["role"] == "assistant"
        ):
            raise turns.unwritten("weight", None, instead=CHAT)
        speakers = [SHARE_GPT[message["role"]] for message in settled]
        spoken_roles = speakers[1:] if speakers[:1] == ["system"] else speakers
        alternating = ["human" if place % 2 == 0 else "gpt" for place in range(len(spoken_roles))]
        if len(spoken_roles) < 2 or spoken_roles != alternating:
            raise Refusal(
                "llm.row-no-conversation",
                "holds no conversation in which a user and the assistant take turns; write"
                ' {"conversations": [{"from": "human", "value": "..."}, {"from": "gpt", "value":'
                ' "..."}, ...]}, or use `dataset=chat`',
            )
        if self._template is not None and len(spoken_roles) != 2:
            raise Refusal(
                "llm.row-turns",
                f"holds {len(spoken_roles)} turns, but {self._reader} takes a question"
                " and its answer; leave out the row, or the template",
                turns=len(spoken_roles),
                reader=self._reader,
            )
        pairs = zip(speakers, settled, strict=True)
        return {
            "conversations": [
                {"from": speaker, "value": message["content"]} for speaker, message in pairs
            ]
        }

    def _template_columns(self, columns: RowColumns) -> Row:
        """Return the columns that the run's template reads, and check that each holds text."""
        assert self._template is not None
        learnt_rows.refuse_label(columns)
        wanted = self._template.columns
        missing = [name for name in wanted if not columns.present((name,))]
        if missing:
            reads_input = "instruction" in wanted
            raise form_refusals.missing_columns_refusal(
                columns, missing, self._reader, reads_input=reads_input
            )
        row: Row = {name: json_texts.one_text(columns.peek(name)) for name in wanted}
        textless = [name for name, value in row.items() if not isinstance(value, str)]
        if textless:
            raise form_refusals.no_text_refusal(textless)
        answer = wanted[-1]
        # The papers' own data sets have empty answers, and are read unchanged.
        if self._is_of_files and not row[answer].strip():
            raise Refusal(
                "llm.row-empty-answer",
                f"has an empty {answer}; give the answer's text, or leave the row out",
                column=answer,
            )
        columns.pass_over(*wanted)
        if "instruction" in wanted:
            context = forms.context(columns, "input")
            if isinstance(context, list | dict):
                raise form_refusals.no_text_refusal(["input"])
            row["input"] = "" if context is None else str(context)
        choices.refuse_missing_choices(
            columns, "\n".join(row[name] for name in row if name != answer)
        )
        return row
