"""What the tests' fork server imports last: what each of their hundreds of ranks would do again."""

import gc

import scipy.io  # noqa: F401  which `datasets` imports as it opens rows

import tests.helpers.rank_work_llm  # noqa: F401  with torchtune

gc.collect()
gc.freeze()  # a rank's own collections do not go through all of torch
