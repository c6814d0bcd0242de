"""Runs in Weights & Biases, made from their records.

| file | what it knows |
|---|---|
| keys.py | every key that a run logs |
| run_record.py | a record as W&B shows it: id, name, tags, configuration, summary, artifacts |
| timeline.py | Unix time and the run's own clock at each second of training |
| history.py | rows by step and epoch; samples of the GPUs and the machine |
| wandb_run.py | W&B itself: nothing else here imports it |
| upload.py | all of the above for a record and for a sweep, and the note of earlier uploads |
| mirror.py | the run that is being measured now |
"""
