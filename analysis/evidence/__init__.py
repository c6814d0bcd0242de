"""`multicard evidence`: what the GPUs of this machine do, in one command,
as a page and as a file to share.

`steps` says what is measured, in the order of its worth; `drive` measures as much as fits into the
time, and goes on where an earlier call stopped; `findings` says what the runs of each step show;
`page` writes them.
"""
