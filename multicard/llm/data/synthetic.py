"""Synthetic rows in place of the 500-row extracts of 2505.22905, to measure without a download.

In each template's task the answer follows from the prompt, so the loss can fall. For every seed,
500 rows have the sizes of the extracts (section 5.4.3 of the paper), to 1 % in tokens and to 5 % in
bytes:

| template  | tokens | bytes   |
|-----------|--------|---------|
| instruct  | 59,330 | 374,000 |
| summarize | 83,544 | 341,000 |
| grammar   | 28,683 | 135,000 |

Tokens are counted as in the record: all that the model is given, with the template's text and the
special tokens. The paper names neither its tokenizer nor whether the template counts. The counts
hold for Llama 3's tokenizer and for the embedded one. The embedded one learns nearly every word of
these rows as one token too. Bytes are counted in `inputs/rows.jsonl`.

Sizes of rows are dealt from a deck of 20, so that seeds change the words and not their number. Most
words are one token of Llama 3's. They are long, above all in `instruct`: its extract has 6.3 bytes
per token, while real rows of Alpaca have 4.4.
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from random import Random
from typing import NamedTuple


def _words(text: str) -> list[str]:
    return text.split()


NAMES = _words(
    "Anna Ben Charlie David Emma Frank Grace Henry James Jack Kate Leo Maria Nick Robert Paul Mark"
    " Sam Thomas William"
)
DAYS = _words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
PLACES = _words(
    "restaurant supermarket headquarters university laboratory apartment playground basement"
    " courtroom countryside"
)
PLANS = (
    "discuss the presentation",
    "practise the interview",
    "celebrate the anniversary",
    "organize the exhibition",
    "watch the documentary",
    "prepare the celebration",
    "finish the application",
    "study for the examination",
)
NOUNS = _words(
    "photographer administrator professor journalist scientist researcher programmer politician"
    " consultant psychologist entrepreneur technician philosopher representative developer"
    " historian"
)
THINGS = _words(
    "newspaper photograph examination certificate instrument manuscript advertisement announcement"
    " presentation investigation application experiment recommendation documentary dictionary"
    " questionnaire"
)
VERBS = tuple(  # Third person singular, plain form, past.
    (f"{verb}s", verb, "understood" if verb == "understand" else f"{verb.removesuffix('e')}ed")
    for verb in _words(
        "demonstrate investigate recommend understand distribute celebrate introduce discover"
        " describe remember recognize summarize"
    )
)
ADJECTIVES = _words(
    "complicated traditional independent international spectacular professional experimental"
    " comprehensive confidential controversial sophisticated extraordinary contemporary"
)
TIMES = (
    ("once a week", "present"),
    ("twice a year", "present"),
    ("a week ago", "past"),
    ("a month ago", "past"),
)
WHERE = (
    ("in", "the kitchen"),
    ("at", "the station"),
    ("on", "the table"),
    ("near", "the river"),
    ("in", "the city"),
)
WORDS = tuple(sorted({*NOUNS, *THINGS, *PLACES, *ADJECTIVES}))


class Example(NamedTuple):
    """A row: the columns that its template reads, its prompt, and a right and a wrong answer.

    Preference pairs have both answers.
    """

    columns: dict[str, str]
    prompt: str
    right: str
    wrong: str


Row = Callable[[Random], Example]


def deal(deck: tuple[Row, ...], random: Random) -> Iterator[Example]:
    """Yield rows without end. Each kind of the deck comes once before any comes again."""
    while True:
        for row in random.sample(deck, len(deck)):
            yield row(random)


# ---- grammar: sentences with errors that follow rules, and the correct sentences


def _grammar(random: Random, sentences: int, adjective: bool) -> Example:
    pairs = [_sentence(random, adjective) for _ in range(sentences)]
    wrong, right = (" ".join(parts) for parts in zip(*pairs, strict=True))
    return Example({"input": wrong, "output": right}, wrong, right, wrong)


def _sentence(random: Random, adjective: bool) -> tuple[str, str]:
    """Return a sentence with one or two errors, and the correct one.

    The subject may have an `adjective`.
    """
    when, tense = random.choice(TIMES)
    preposition, place = random.choice(WHERE)
    third, plain, past = random.choice(VERBS)
    plural = random.random() < 0.4
    subject = random.choice(NOUNS) + ("s" if plural else "")
    if adjective:
        subject = f"{random.choice(ADJECTIVES)} {subject}"
    verb = past if tense == "past" else plain if plural else third
    thing = f"{random.choice(ADJECTIVES)} {random.choice(THINGS)}"
    right = ["The", subject, verb, "the", thing, preposition, place, when]
    wrong = list(right)
    for error in random.sample(range(4), random.choice((1, 1, 2))):
        if error == 0:  # Agreement or tense.
            wrong[2] = third if tense == "past" or plural else plain
        elif error == 1:  # Article.
            wrong[3] = random.choice(("a the", "an", "those"))
        elif error == 2:  # Preposition.
            wrong[5] = random.choice([other for other, _ in WHERE if other != preposition])
        else:  # Adjective after its noun.
            wrong[4] = " ".join(reversed(thing.split()))
    return " ".join(wrong) + " .", " ".join(right) + " ."


GRAMMAR = (
    *(partial(_grammar, sentences=1, adjective=False),) * 12,
    *(partial(_grammar, sentences=1, adjective=True),) * 2,
    *(partial(_grammar, sentences=2, adjective=False),) * 3,
    *(partial(_grammar, sentences=2, adjective=True),) * 2,
    partial(_grammar, sentences=3, adjective=False),
)


# ---- summarize: dialogues in which two people agree on a plan, a place and a time


FILLERS = (
    "How are you and everybody else doing nowadays?",
    "I am absolutely fine, thanks for asking.",
    "I was extremely busy again this week.",
    "That really sounds absolutely wonderful to me!",
    "Sorry, I only saw your message right now.",
    "No problem at all, everything is perfect.",
    "My grandmother says hello to everybody in the neighborhood.",
    "It has been raining continuously here for days.",
    "I will tell you absolutely everything when we meet.",
    "Congratulations, that is practically unbelievable!",
)


def _summarize(random: Random, meetings: int, fillers: int) -> Example:
    first, second, third = random.sample(NAMES, 3)
    lines = [(first, f"Hi {second}!"), (second, f"Hi {first}.")]
    facts = []
    wrong_facts = []
    for number in range(meetings):
        plan = random.choice(PLANS)
        place = random.choice(PLACES)
        day = random.choice(DAYS)
        hour = random.randint(1, 11)
        lines += [
            (first, f"Do you want to {plan} on {day}?"),
            (second, f"Yes, where do we meet for the {plan.split()[-1]}?"),
            (first, f"At the {place}, at {hour} pm."),
        ]
        who = f"{first} and {second}"
        if number % 3 == 2:
            lines += [
                (second, f"Can {third} come too?"),
                (first, f"Of course, {third} is welcome."),
            ]
            who = f"{first}, {second} and {third}"
        facts.append(f"{who} will {plan} on {day}. They meet at the {place} at {hour} pm.")
        other = random.choice([name for name in DAYS if name != day])
        wrong_facts.append(
            f"{who} will {plan} on {other}. They meet at the {place} at {hour % 11 + 1} pm."
        )
        lines += [
            (random.choice((first, second)), filler) for filler in random.sample(FILLERS, fillers)
        ]
    lines.append((second, "See you then!"))
    dialogue = "\n".join(f"{name}: {text}" for name, text in lines)
    right = " ".join(facts)
    wrong = " ".join(wrong_facts)
    return Example({"dialogue": dialogue, "summary": right}, dialogue, right, wrong)


SUMMARIZE = tuple(
    partial(_summarize, meetings=meetings, fillers=fillers)
    for meetings, fillers in product((1, 1, 1, 2, 3), (0, 1, 3, 5))
)


# ---- instruct: tasks on numbers and words


def _task(instruction: str, right: str, wrong: str, text: str = "") -> Example:
    """Return a task on `text`, its input, or on the instruction's own words."""
    prompt = f"{instruction}\n\n### Input:\n{text}" if text else instruction
    return Example(
        {"instruction": instruction, "input": text, "output": right}, prompt, right, wrong
    )


def _add(random: Random, size: int) -> Example:
    values = [random.randint(2, 99) for _ in range(size)]
    total = sum(values)
    steps = []
    running = values[0]
    for value in values[1:]:
        steps.append(f"{running} plus {value} is {running + value}.")
        running += value
    right = " ".join([*steps, f"The sum is {total}."])
    wrong = " ".join([*steps[:-1], f"The sum is {total + random.randint(1, 9)}."])
    return _task(f"Add the numbers {', '.join(map(str, values))} and show each step.", right, wrong)


def _sort(random: Random, size: int) -> Example:
    words = random.sample(WORDS, size)
    given = " ".join(words)
    return _task("Sort these words by the alphabet.", " ".join(sorted(words)), given, text=given)


def _reverse(random: Random, size: int) -> Example:
    words = random.sample(WORDS, size)
    given = " ".join(words)
    return _task(
        f"Write these words in the opposite order: {given}", " ".join(reversed(words)), given
    )


def _advice(random: Random, size: int) -> Example:
    person = random.choice(NOUNS)
    thing = random.choice(THINGS)
    adjective = random.choice(ADJECTIVES)
    verbs = random.sample(VERBS, size)
    steps = [f"The {adjective} {person} {verb[0]} the {thing}." for verb in verbs]
    instruction = (
        f"Say what the {adjective} {person} does with the {thing}:"
        f" {' '.join(verb[1] for verb in verbs)}"
    )
    return _task(instruction, " ".join(steps), " ".join(reversed(steps)))


def _past(random: Random, size: int) -> Example:
    present = []
    past = []
    for _ in range(size):
        verb = random.choice(VERBS)
        noun = random.choice(NOUNS)
        thing = random.choice(THINGS)
        who, what = (f"{random.choice(ADJECTIVES)} {word}" for word in (noun, thing))
        present.append(f"The {who} {verb[0]} the {what}.")
        past.append(f"The {who} {verb[2]} the {what}.")
    now = " ".join(present)
    return _task(f"Rewrite in the past tense: {now}", " ".join(past), now)


INSTRUCT = (
    *(partial(_add, size=size) for size in (4, 7)),
    *(partial(_sort, size=size) for size in (8, 16, 28, 50)),
    *(partial(_reverse, size=size) for size in (8, 16, 24, 36, 50)),
    *(partial(_advice, size=size) for size in (4, 6, 9, 12)),
    *(partial(_past, size=size) for size in (2, 4, 7, 10, 14)),
)
