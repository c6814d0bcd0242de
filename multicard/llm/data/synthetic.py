"""Synthetic rows: a stand-in for the 500-row extracts of 2505.22905, so that anybody can measure without a download.

Each template has a task whose answer follows from the prompt, so that the loss can fall, and rows as long as the
paper's (tokens of all 500 under the Llama 3 tokenizer: instruct 59,330, summarize 83,544, grammar 28,683). The same
seed gives the same rows.
"""

from random import Random
from typing import NamedTuple


def _words(text: str) -> list[str]:
    return text.split()


NAMES = _words(
    "Anna Ben Carla David Emma Frank Grace Henry Irene Jack Kate Leo Maria Nick Olivia Paul Rosa Sam Tina Victor"
)
DAYS = _words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
PLACES = _words("cinema library station market museum office park restaurant school theatre harbour garden")
PLANS = (
    ("watch a film", "a film"),
    ("have dinner", "dinner"),
    ("play tennis", "tennis"),
    ("study for the exam", "the exam"),
    ("buy a present for the party", "the present"),
    ("go for a walk", "a walk"),
    ("practise the song", "the song"),
    ("finish the report", "the report"),
    ("meet the new neighbours", "the neighbours"),
    ("look at the new flat", "the flat"),
)
NOUNS = _words(
    "teacher doctor farmer student driver baker painter writer nurse pilot singer lawyer child cousin friend"
)
THINGS = _words("book letter bicycle house cake picture song car table machine ticket garden plan story map")
# third person singular, plain form, past
VERBS = (
    ("writes", "write", "wrote"),
    ("buys", "buy", "bought"),
    ("sees", "see", "saw"),
    ("brings", "bring", "brought"),
    ("finds", "find", "found"),
    ("makes", "make", "made"),
    ("takes", "take", "took"),
    ("shows", "show", "showed"),
    ("wants", "want", "wanted"),
    ("keeps", "keep", "kept"),
)
ADJECTIVES = _words("old new small large green quiet heavy famous cheap broken clean little")
TIMES = (("every day", "present"), ("every summer", "present"), ("yesterday", "past"), ("last week", "past"))
WHERE = (("in", "the kitchen"), ("at", "the station"), ("on", "the table"), ("near", "the river"), ("in", "the city"))
WORDS = tuple(sorted({*NOUNS, *THINGS, *PLACES, *ADJECTIVES}))


class Example(NamedTuple):
    """A row: the columns that its template reads, and for preference pairs its prompt, a right and a wrong answer."""

    columns: dict[str, str]
    prompt: str
    right: str
    wrong: str


# ---- grammar: sentences with an error made by rule, and the sentences themselves


def grammar(random: Random) -> Example:
    pairs = [_sentence(random) for _ in range(random.choice((1, 1, 1, 1, 1, 2, 3)))]
    wrong, right = (" ".join(parts) for parts in zip(*pairs, strict=True))
    return Example({"input": wrong, "output": right}, wrong, right, wrong)


def _sentence(random: Random) -> tuple[str, str]:
    """A sentence with one or two errors, and the right one."""
    (when, tense), (preposition, place) = random.choice(TIMES), random.choice(WHERE)
    third, plain, past = random.choice(VERBS)
    plural = random.random() < 0.4
    subject = random.choice(NOUNS) + ("s" if plural else "")
    if random.random() < 0.5:
        subject = f"{random.choice(ADJECTIVES)} {subject}"
    verb = past if tense == "past" else plain if plural else third
    thing = f"{random.choice(ADJECTIVES)} {random.choice(THINGS)}"
    right = ["The", subject, verb, "the", thing, preposition, place, when][: random.choice((7, 8, 8, 8))]
    wrong = list(right)
    for error in random.sample(range(4), random.choice((1, 1, 2))):
        if error == 0:  # agreement or tense
            wrong[2] = third if tense == "past" or plural else plain
        elif error == 1:  # article
            wrong[3] = random.choice(("a the", "an", "thes"))
        elif error == 2:  # preposition
            wrong[5] = random.choice([other for other, _ in WHERE if other != preposition])
        else:  # adjective after its noun
            wrong[4] = " ".join(reversed(thing.split()))
    return " ".join(wrong) + " .", " ".join(right) + " ."


# ---- summarize: a dialogue in which two people settle what, where and when


FILLERS = (
    "How are you?",
    "I am fine, thanks.",
    "I was very busy this week.",
    "That sounds great!",
    "Sorry, I only saw your message now.",
    "No problem at all.",
    "My sister says hello to you.",
    "It has been raining here for days.",
    "I will tell you more when we meet.",
    "Haha, that is so true.",
)


def summarize(random: Random) -> Example:
    first, second, third = random.sample(NAMES, 3)
    lines = [(first, f"Hi {second}!"), (second, f"Hi {first}.")]
    facts, wrong_facts = [], []
    for _ in range(random.choice((1, 1, 1, 1, 2, 3))):
        plan, thing = random.choice(PLANS)
        place, day, hour = random.choice(PLACES), random.choice(DAYS), random.randint(1, 11)
        lines += [
            (first, f"Do you want to {plan} on {day}?"),
            (second, f"Yes, where do we meet for {thing}?"),
            (first, f"At the {place}, at {hour} pm."),
        ]
        who = f"{first} and {second}"
        if random.random() < 0.3:
            lines += [(second, f"Can {third} come too?"), (first, f"Of course, {third} is welcome.")]
            who = f"{first}, {second} and {third}"
        facts.append(f"{who} will {plan} on {day}. They meet at the {place} at {hour} pm.")
        other = random.choice([name for name in DAYS if name != day])
        wrong_facts.append(f"{who} will {plan} on {other}. They meet at the {place} at {hour % 11 + 1} pm.")
        for _ in range(random.choice((0, 1, 2, 4, 6))):
            lines.append((random.choice((first, second)), random.choice(FILLERS)))
    lines.append((second, "See you then!"))
    dialogue = "\n".join(f"{name}: {text}" for name, text in lines)
    right, wrong = " ".join(facts), " ".join(wrong_facts)
    return Example({"dialogue": dialogue, "summary": right}, dialogue, right, wrong)


# ---- instruct: tasks on numbers and words. Each gives an instruction, its input, a right and a wrong answer


Task = tuple[str, str, str, str]


def _add(random: Random) -> Task:
    values = [random.randint(2, 99) for _ in range(random.choice((2, 3, 5, 8, 13)))]
    total, steps, running = sum(values), [], values[0]
    for value in values[1:]:
        steps.append(f"{running} plus {value} is {running + value}.")
        running += value
    right = " ".join([*steps, f"The sum is {total}."])
    wrong = " ".join([*steps[:-1], f"The sum is {total + random.randint(1, 9)}."])
    return f"Add the numbers {', '.join(map(str, values))} and show each step.", "", right, wrong


def _sort(random: Random) -> Task:
    words = random.sample(WORDS, random.choice((3, 6, 10, 16, 30)))
    right = ", ".join(sorted(words))
    return "Sort these words by the alphabet.", ", ".join(words), right, ", ".join(sorted(words, reverse=True))


def _capitals(random: Random) -> Task:
    words = random.sample(WORDS, random.choice((2, 6, 12)))
    right = " ".join(word.capitalize() for word in words)
    return f"Write a title from the words {', '.join(words)}, each with a capital letter.", "", right, " ".join(words)


def _advice(random: Random) -> Task:
    person, thing, adjective = random.choice(NOUNS), random.choice(THINGS), random.choice(ADJECTIVES)
    count = random.choice((2, 3, 5, 7, 10))
    verbs = random.sample(VERBS, count)
    steps = [f"{i + 1}. The {person} {verb[0]} the {adjective} {thing}." for i, verb in enumerate(verbs)]
    instruction = (
        f"List {count} things that the {person} does with the {adjective} {thing}: {', '.join(v[1] for v in verbs)}."
    )
    return instruction, "", "\n".join(steps), "\n".join(reversed(steps))


def _longest(random: Random) -> Task:
    words = random.sample(WORDS, random.choice((3, 6, 10, 20)))
    lengths = [f"{word} has {len(word)} letters" for word in words]
    instruction = "Which of these words is the longest? Count the letters of each."
    right = f"{'; '.join(lengths)}. The longest word is {max(words, key=len)}."
    return instruction, ", ".join(words), right, f"It is {words[-1]}."


def _past(random: Random) -> Task:
    present, past = [], []
    for _ in range(random.choice((2, 5, 9, 13))):
        verb, noun, thing = random.choice(VERBS), random.choice(NOUNS), random.choice(THINGS)
        present.append(f"The {noun} {verb[0]} the {thing}.")
        past.append(f"The {noun} {verb[2]} the {thing}.")
    now = " ".join(present)
    return "Rewrite the text in the past tense.", now, " ".join(past), now


TASKS = (_add, _add, _capitals, _advice, _advice, _sort, _longest, _past)


def instruct(random: Random) -> Example:
    instruction, text, right, wrong = random.choice(TASKS)(random)
    prompt = f"{instruction}\n\n### Input:\n{text}" if text else instruction
    return Example({"instruction": instruction, "input": text, "output": right}, prompt, right, wrong)
