"""Runs in Weights & Biases, made from their records.

| file | what it knows |
|---|---|
| keys.py | every key that a run logs |
| identity.py | a run's id, name, tags, configuration and exit code |
| timeline.py | when each second of a training was, on the run's clock and of the day |
| history.py | the rows by step and by epoch |
| learning_rate.py | the learning rate of a training run's steps |
| system_metrics.py | samples of the GPUs, under W&B's own names |
| summary.py | a record as flat figures |
| artifacts.py | the files, fingerprints and tables of a run |
| wandb_run.py | W&B itself: nothing else here imports it |
| upload.py | all of the above for one record; what was uploaded before |
| sweep_run.py | the run of a whole sweep: its table and its report |
| mirror.py | the run that is being measured now |
"""
