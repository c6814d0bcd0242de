"""The prompt templates: the columns that each reads, and the text that torchtune adds."""

from dataclasses import dataclass
from itertools import islice
from random import Random

from multicard.config.llm import LlmConfig
from multicard.config.llm_texts import DATASETS
from multicard.llm.data import synthetic
from multicard.messages import Refusal


@dataclass(frozen=True)
class Template:
    """How rows become prompts.

    Fields:
        builder: torchtune's data set for such rows, in `torchtune.datasets`.
        columns: the columns that a row must have.
        around: the text that torchtune puts around a prompt. The embedded tokenizer is trained on
            it too.
        prompt_template: torchtune's `prompt_template` for rows with one answer; None if the
            builder has a template of its own.
        pair_template: the same for preference pairs (a chosen and a rejected answer), whose builder
            has no template of its own.
        deck: functions that make synthetic rows. Each is used once before one is used again.
    """

    builder: str
    columns: tuple[str, ...]
    around: tuple[str, ...]
    prompt_template: str | None
    pair_template: str | dict[str, list[str]]
    deck: tuple[synthetic.Row, ...]


# torchtune's Alpaca template is a part of its data set, which cannot be used for preference pairs.
# So it is repeated here, as the text before and after a prompt.
INSTRUCT_AROUND_PAIRS = [
    (
        "Below is an instruction that describes a task. Write a response that appropriately"
        " completes the request.\n\n### Instruction:\n"
    ),
    "\n\n### Response:\n",
]
GRAMMAR = "torchtune.data.GrammarErrorCorrectionTemplate"
SUMMARIZE = "torchtune.data.SummarizeTemplate"

TEMPLATES: dict[str, Template] = {
    "instruct": Template(
        builder="alpaca_cleaned_dataset",
        columns=("instruction", "output"),  # `input` may be absent or empty.
        around=(
            (
                "Below is an instruction that describes a task, paired with an input that provides"
                " further context. Write a response that appropriately completes the"
                " request.\n\n### Instruction:\n"
            ),
            "\n\n### Input:\n",
            "\n\n### Response:\n",
        ),
        prompt_template=None,
        pair_template={"user": INSTRUCT_AROUND_PAIRS},
        deck=synthetic.INSTRUCT,
    ),
    "grammar": Template(
        builder="grammar_dataset",
        columns=("input", "output"),
        around=("Correct this to standard English: ", "\n---\nCorrected: "),
        prompt_template=GRAMMAR,
        pair_template=GRAMMAR,
        deck=synthetic.GRAMMAR,
    ),
    "summarize": Template(
        builder="samsum_dataset",
        columns=("dialogue", "summary"),
        around=("Summarize this dialogue:\n", "\n---\nSummary:\n"),
        prompt_template=SUMMARIZE,
        pair_template=SUMMARIZE,
        deck=synthetic.SUMMARIZE,
    ),
}


def chosen(config: LlmConfig) -> Template | None:
    """Return the run's template; None for rows that are conversations."""
    name = config.template_name
    return None if name is None else TEMPLATES[name]


def check_template(config: LlmConfig) -> None:
    """Refuse a template that does not fit the data set."""
    data = config.dataset.name
    name = config.template_name
    facts = DATASETS[data]
    fitting = [facts.template]
    if facts.any_template:
        fitting.extend(TEMPLATES)
    elif facts.conversations:
        fitting.append("instruct")
    if name not in fitting:
        remedy = "leave it out"
        others = [f"`template={option}`" for option in dict.fromkeys(fitting) if option is not None]
        if others:
            remedy += f", or use {' or '.join(others)}"
        raise Refusal(
            "llm.template-unfit",
            f"template={name or 'null'}: does not fit dataset={data}; {remedy}",
            key="template",
            value=name,
            dataset=data,
            fitting=list(dict.fromkeys(fitting)),
        )


def examples(name: str, count: int, seed: int) -> list[synthetic.Example]:
    """Return `count` synthetic rows for a template."""
    return list(islice(synthetic.deal(TEMPLATES[name].deck, Random(f"{name} {seed}")), count))
