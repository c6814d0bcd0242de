"""Roles: what a key of the configuration means. Its entry in a schema declares them."""

from enum import Flag, auto


class Role(Flag):
    """The roles of a key. Its entry in a schema declares them, as in
    `key(default, "description", Role.identity | ...)`.

    Code that needs "all keys that ..." calls `schema.keys(role)`; there are no other lists of keys.
    A key has a role if the role holds for at least one of its values. Every key has exactly one of
    the first two roles:

    identity: part of a cell's identity, because it changes what is measured.
    beside: belongs to the command or its job. The cell is the same, whatever the value.

    Roles that say what changes with the key. All of them imply `identity`:

    learning: may change accuracy or loss. `gpus` has it because `batch_size` is per rank.
    memory: changes the tensors of a step, other than through the sizes of the data and the number
        of ranks.
    speed: may change how long a step takes. The number of steps has the role `length` instead.
    length: how much is trained or evaluated: epochs, limits, steps.
    part: a `length` that determines which of the data a run reads.
    drawn: a `part` that the seed selects.
    work: what work is done. Times of different work are not compared. All other keys are ways to
        do the same work.
    content: other values may bring other data. Records have the fingerprint of the data.
    place: where data are stored. The fingerprint replaces it: runs on the same data in two places
        measured the same. `dataset.source` and `dataset.revision` do not have it, because they say
        what the data are. `model.path` does not, because it names a model.
    input: where data come from, by place or by name, and from which columns. A refusal that begins
        with such a key applies to every cell that reads the same data. Includes all places, and
        also `dataset.source` and `dataset.columns`. Those are not places: runs on different data
        would count as repetitions.
    rows: determines the number of rows or packed sequences of a text data set.
    text: determines the lengths of its rows, or the model's vocabulary.
    loss: changes what the loss counts, so losses for two values are not compared.

    Kinds of keys:

    option: the name of a group's option. It also has the roles of its group.
    repetition: numbers the repetitions of a setting. Not an axis, and does not change accuracy.
    ranks: a factor of the number of ranks.
    follows: follows from `global_batch_size` if that is set, so that the number of ranks does not
        change the training.
    observes: adds observation of a run, by extra steps after it or by a profiler. Changes nothing
        else.
    forecast: belongs to predictions, and to the probes that they need. Says nothing about a run.
    sweeps: concerns several cells or runs. Has no meaning for a single run.
    once: belongs to one command. A command that repeats the measurement leaves it out.
    trial: ends a run early for a measurement. A command that trains in full leaves it out.
    one_value: has one value for all cells of a sweep.
    planned: set by a plan for its jobs.
    site: may be set by a site for all of its users.

    Roles for display:

    titled: named above a table if all of its runs agree.
    defining: an experiment whose file sets it only consists of runs with this value. Its runs may
        differ in other keys.
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


# Combinations of roles that many keys share.
# Ways to train the same model on the same data:
WAY_TO_TRAIN = Role.identity | Role.learning | Role.memory | Role.speed
MODEL_SIZE = WAY_TO_TRAIN | Role.work
DATA_FILES = Role.identity | Role.place | Role.input | Role.content | Role.learning | Role.speed


# Roles that say how a measurement changes. Only keys with `identity` may have them.
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


# For a role, the other roles that a key with it must have, and the roles that it must not have.
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
    """Return what is wrong with a combination of roles, or None."""
    if Role.option in roles:  # The other roles are declared at the group.
        return (
            None
            if roles is Role.option
            else "names an option must have no other roles, because it has the roles of its group"
        )
    if (Role.identity in roles) == (Role.beside in roles):
        return "is not exactly one of identity and beside"
    for role, implied in IMPLIED.items():
        if role in roles and implied not in roles:
            return f"has {role.name} needs {implied} too"
    for role, excluded in EXCLUDED.items():
        if role in roles and excluded & roles:
            return f"has {role.name} cannot have {excluded & roles}"
    return None
