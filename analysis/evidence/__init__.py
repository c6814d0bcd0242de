"""`multicard evidence`: measure in one command what the GPUs of this machine can do.

The result is a page and a file to share. `steps` lists what is measured, the most valuable first.
`drive` measures as much as fits into the time, and continues where an earlier call stopped.
`findings` says what the runs of each step show, and `page` writes the findings.
"""
