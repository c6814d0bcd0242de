"""What a key of the configuration means: its roles, which its one entry in a schema declares."""

from enum import Flag, auto


class Role(Flag):
    """The roles of a key. Each entry of a schema names its own: `key(default, "description",
    Role.identity | ...)`.

    Whoever needs "all keys that ..." asks `schema.keys(role)`, and keeps no list. A role is
    declared where it is true of some value of the key. Exactly one of the first two is true of each
    key:

    identity: part of a cell's identity: it changes what is measured.
    beside: of the command or its job alone: the same cell, whatever its value.

    What else changes with it; all of these are of keys with `identity`:

    learning: may change accuracy or loss. `gpus` is one, as `batch_size` is a rank's.
    memory: the tensors of a step depend on it, otherwise than through the sizes of the data and the
    number of ranks.
    speed: may change how long a step takes. Not how many there are: that is `length`.
    length: how much is trained or evaluated: epochs, limits, steps.
    part: of those, which of the data a run meets.
    drawn: of those, with which the seed decides which.
    work: says what work was done. Times of other work are not compared; all other keys are ways to
    do the same.
    content: other values may bring other data, of which records have the fingerprint.
    place: where data lie. Their fingerprint replaces it: runs on the same data at two places
    measured the same. Not
        `dataset.source` or `dataset.revision`, which say what the data are, nor `model.path`, which
        names a model.
    input: where data come from, by place or by name, and by which columns: a refusal that begins
    with such a key is of
        every cell that reads the same data. It holds `dataset.source` and `dataset.columns` beside
        all places, so it must not be taken for `place`: runs on different data would count as
        repetitions.
    rows: the number of rows or packed sequences of a text set follows from it.
    text: the lengths of its rows do, or the model's vocabulary.
    loss: changes what the loss counts, so that losses of two values are not compared.

    Kinds of keys:

    option: the name of a group's option. It has the roles of its group too.
    repetition: tells repetitions of one setting apart: neither an axis nor a change of accuracy.
    ranks: the number of ranks is their product.
    follows: follows from `global_batch_size` where that is set, so that the number of ranks changes
    no training.
    observes: has a run observed, by steps after its end or by a profiler, and changes nothing else.
    forecast: of predictions, and of probes that feed them: says nothing of a run.
    sweeps: of several cells or runs: means nothing in the command of a single one.
    once: of one command: left out of one that measures the same again.
    trial: ends early, for a measurement, what would go on by itself: left out of a command that is
    to train.
    one_value: takes one value for all cells of a sweep.
    planned: a plan sets it for its jobs.
    site: a site may set it for all of its users.

    How it is shown:

    titled: named above a table where all of its runs agree.
    defining: an experiment's file that sets it is of this value alone;
    in other keys its runs may differ.
    """

    identity = auto()
    beside = auto()

    learning = auto()
    memory = auto()
    speed = auto()
    length = auto()
    part = auto()
    drawn = auto()
    work = auto()
    content = auto()
    place = auto()
    input = auto()
    rows = auto()
    text = auto()
    loss = auto()

    option = auto()
    repetition = auto()
    ranks = auto()
    follows = auto()
    observes = auto()
    forecast = auto()
    sweeps = auto()
    once = auto()
    trial = auto()
    one_value = auto()
    planned = auto()
    site = auto()

    titled = auto()
    defining = auto()


# Roles of many keys, by what such keys are
# the same model on the same data
WAY_TO_TRAIN = Role.identity | Role.learning | Role.memory | Role.speed
MODEL_SIZE = WAY_TO_TRAIN | Role.work
DATA_FILES = Role.identity | Role.place | Role.input | Role.content | Role.learning | Role.speed


# Roles that say how a measurement changes, and so are of keys with `identity`
OF_MEASUREMENTS = (
    Role.learning
    | Role.memory
    | Role.speed
    | Role.length
    | Role.part
    | Role.drawn
    | Role.work
    | Role.content
    | Role.place
    | Role.input
    | Role.rows
    | Role.text
    | Role.loss
    | Role.ranks
    | Role.follows
    | Role.observes
    | Role.titled
    | Role.defining
)


# What follows from a role: others that a key with it has, and those that it cannot have
IMPLIED = {
    Role.part: Role.length,
    Role.drawn: Role.part,
    Role.place: Role.input | Role.content,
    Role.rows: Role.text,
}
EXCLUDED = {
    Role.beside: OF_MEASUREMENTS,
    Role.repetition: Role.learning | Role.speed | Role.work,
    Role.site: Role.identity,
    Role.place: Role.work,
}


def problem(roles: Role) -> str | None:
    """What makes no sense in a combination of roles; None for one that does."""
    if Role.option in roles:  # the others are those of its group
        return (
            None
            if roles is Role.option
            else "names an option has the roles of its group, and no others"
        )
    if (Role.identity in roles) == (Role.beside in roles):
        return "is either identity or beside"
    for role, implied in IMPLIED.items():
        if role in roles and implied not in roles:
            return f"has {role.name} needs {implied} too"
    for role, excluded in EXCLUDED.items():
        if role in roles and excluded & roles:
            return f"has {role.name} cannot have {excluded & roles}"
    return None
