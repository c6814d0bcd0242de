"""Make runs in Weights & Biases from the records of measured runs.

| file | what it knows |
|---|---|
| keys.py | every key that a run logs |
| run_record.py | a record as W&B shows it: id, name, tags, configuration, summary, artifacts |
| history.py | a run's clock, its rows by step and epoch, and samples of its GPUs |
| wandb_run.py | W&B's interface; no other file here imports it |
| upload.py | uploads of a record, a sweep or a run in progress, and the note of what was uploaded |
"""
