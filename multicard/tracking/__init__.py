"""Runs in Weights & Biases, made from their records.

| file | what it knows |
|---|---|
| keys.py | every key that a run logs |
| run_record.py | a record as W&B shows it: id, name, tags, configuration, summary, artifacts |
| history.py | a run's clock, rows by step and epoch, samples of the GPUs |
| wandb_run.py | W&B itself: nothing else here imports it |
| upload.py | all of the above for a record, a sweep or a run in progress; the note of uploads |
"""
