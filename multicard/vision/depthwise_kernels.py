"""Triton kernels of depthwise convolutions of NHWC images: the forward pass,
and both gradients in one pass.

All tensors are contiguous: images (N, H, W, C), taps (C, KERNEL, KERNEL). The padding is KERNEL //
2, so that H' = ceil(H / STRIDE). A program walks down ROWS rows of P x ACROSS columns and BLOCK
channels of an image. A tensor (P, BLOCK) has every ACROSS-th column: the columns between are
tensors of their own in the same threads, which share the taps, the sums, and what each of them has
loaded. The next row is loaded before this one is computed, which hides the memory's delay.
"""

# ruff: noqa: N803, N806, PLR0912, PLR0915, RUF005 - constants of Triton are in capitals, and it takes no other tuples
# Triton's ranges and constants are other things than their classes say:
# pyright: reportGeneralTypeIssues=false, reportAssignmentType=false

import triton
import triton.language as tl

# one code for all of them
SIZES = ["height", "width", "out_height", "out_width", "strips", "tiles"]


@triton.jit
def _columns(
    at, inside, column, width, CHANNELS: tl.constexpr, FIRST: tl.constexpr, COUNT: tl.constexpr
):
    """COUNT neighbouring columns of a row, from `column` + FIRST on; 0 outside of the image.

    at: pointers (P, BLOCK) to `column`, a tensor (P, 1).
    """
    values = ()
    for n in tl.static_range(FIRST, FIRST + COUNT):
        there = inside & (column + n < width)
        if n < 0:
            there = there & (column + n >= 0)
        values = values + (tl.load(at + n * CHANNELS, there, 0.0),)
    return values


@triton.jit
def _converted(values, TOTAL: tl.constexpr, COUNT: tl.constexpr):
    """The values in the type in which they are added up."""
    converted = ()
    for n in tl.static_range(COUNT):
        converted = converted + (values[n].to(TOTAL),)
    return converted


@triton.jit
def _taps(weight, channel, inside, TAPS: tl.constexpr, TOTAL: tl.constexpr):
    """The taps, each (1, BLOCK), by rows."""
    taps = ()
    for tap in tl.static_range(TAPS):
        taps = taps + (tl.load(weight + channel * TAPS + tap, inside, 0.0).to(TOTAL),)
    return taps


@triton.jit
def _place(
    strips,
    tiles,
    CHANNELS: tl.constexpr,
    P: tl.constexpr,
    ACROSS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A program's part of the images: its image, strip, columns (P, 1) and channels (1, BLOCK),
    and the part's number.

    Neighbouring programs have neighbouring channels. A tensor may have more than 2^31 values,
    an image may not.
    """
    blocks: tl.constexpr = (CHANNELS + BLOCK - 1) // BLOCK
    part = tl.program_id(0) // blocks
    channel = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)[None, :]
    column = (part % tiles * P + tl.arange(0, P)[:, None]) * ACROSS
    return (part // tiles // strips).to(tl.int64), part // tiles % strips, column, channel, part


@triton.jit(do_not_specialize=SIZES)
def forward(
    x, weight, y, height, width, out_height, out_width, strips, tiles,
    CHANNELS: tl.constexpr, KERNEL: tl.constexpr, STRIDE: tl.constexpr, TOTAL: tl.constexpr,
    ROWS: tl.constexpr, P: tl.constexpr, ACROSS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """y (N, H', W', C) of x (N, H, W, C). `near` holds the KERNEL
    rows of x that a row of y is computed from.
    """
    PAD: tl.constexpr = KERNEL // 2
    REACH: tl.constexpr = (ACROSS - 1) * STRIDE + KERNEL
    # rows of x that the next row of y needs too
    KEPT: tl.constexpr = KERNEL - STRIDE if KERNEL > STRIDE else 0
    image, strip, column, channel, _ = _place(strips, tiles, CHANNELS, P, ACROSS, BLOCK)
    inside = channel < CHANNELS
    taps = _taps(weight, channel, inside, KERNEL * KERNEL, TOTAL)
    row = strip * ROWS
    row_x = row * STRIDE - PAD
    column_x = column * STRIDE
    at_x = x + image * height * width * CHANNELS + (row_x * width + column_x) * CHANNELS + channel
    at_y = (
        y
        + image * out_height * out_width * CHANNELS
        + (row * out_width + column) * CHANNELS
        + channel
    )
    near = ()
    following = ()
    for n in tl.static_range(KERNEL):
        there = inside & (row_x + n >= 0) & (row_x + n < height)
        loaded = _columns(
            at_x + n * width * CHANNELS, there, column_x, width, CHANNELS, -PAD, REACH
        )
        if n < KEPT:
            near = near + _converted(loaded, TOTAL, REACH)
        else:
            following = following + loaded
    for _ in range(ROWS):
        near = near + _converted(following, TOTAL, (KERNEL - KEPT) * REACH)
        row_x += STRIDE
        at_x += STRIDE * width * CHANNELS
        following = ()
        for n in tl.static_range(KEPT, KERNEL):
            there = inside & (row_x + n >= 0) & (row_x + n < height)
            following = following + _columns(
                at_x + n * width * CHANNELS, there, column_x, width, CHANNELS, -PAD, REACH
            )
        for v in tl.static_range(ACROSS):
            total = tl.zeros((P, BLOCK), TOTAL)
            for tap in tl.static_range(KERNEL * KERNEL):
                total += near[tap // KERNEL * REACH + v * STRIDE + tap % KERNEL] * taps[tap]
            is_output = (row < out_height) & (column + v < out_width)
            tl.store(at_y + v * CHANNELS, total.to(y.dtype.element_ty), inside & is_output)
        row += 1
        at_y += out_width * CHANNELS
        near = near[(KERNEL - KEPT) * REACH :]


@triton.jit(do_not_specialize=SIZES)
def backward(
    x, gradient, weight, dx, sums, height, width, out_height, out_width, strips, tiles,
    CHANNELS: tl.constexpr, KERNEL: tl.constexpr, STRIDE: tl.constexpr, TOTAL: tl.constexpr,
    ROWS: tl.constexpr, P: tl.constexpr, ACROSS: tl.constexpr, BLOCK: tl.constexpr,
    GIVES_DX: tl.constexpr, GIVES_SUMS: tl.constexpr,
):  # fmt: skip
    """dx (N, H, W, C) of the gradient (N, H', W', C), and sums (parts, KERNEL^2,
    C): the taps' gradient, by part.

    A cell is STRIDE x STRIDE values of x; rows and columns are those of cells. Input STRIDE r + u
    is read by output r + (u + PAD - i) / STRIDE with tap i, where that is a whole number, in both
    directions. `near` holds the SIDE rows of the gradient that a row of cells needs,
    from FIRST beside it on.
    """
    PAD: tl.constexpr = KERNEL // 2
    FIRST: tl.constexpr = -((KERNEL - 1 - PAD) // STRIDE)
    SIDE: tl.constexpr = (STRIDE - 1 + PAD) // STRIDE - FIRST + 1
    REACH: tl.constexpr = ACROSS - 1 + SIDE
    TAKEN: tl.constexpr = STRIDE * ACROSS  # columns of x
    if STRIDE == 1:  # x and the gradient then have the same masks
        out_height = height
        out_width = width
    image, strip, column, channel, part = _place(strips, tiles, CHANNELS, P, ACROSS, BLOCK)
    inside = channel < CHANNELS
    taps = _taps(weight, channel, inside, KERNEL * KERNEL, TOTAL)
    row = strip * ROWS
    column_x = column * STRIDE
    first_x = (
        image * height * width * CHANNELS + (row * STRIDE * width + column_x) * CHANNELS + channel
    )
    at_x = x + first_x
    at_dx = dx + first_x
    at_gradient = gradient + image * out_height * out_width * CHANNELS
    at_gradient = at_gradient + ((row + FIRST) * out_width + column) * CHANNELS + channel
    totals = ()
    near = ()
    inputs = ()
    for _ in tl.static_range(KERNEL * KERNEL):
        totals = totals + (tl.zeros((P, BLOCK), TOTAL),)
    for n in tl.static_range(FIRST, FIRST + SIDE - 1):
        there = inside & (row + n >= 0) & (row + n < out_height)
        loaded = _columns(at_gradient, there, column, out_width, CHANNELS, FIRST, REACH)
        near = near + _converted(loaded, TOTAL, REACH)
        at_gradient += out_width * CHANNELS
    there = inside & (row + FIRST + SIDE - 1 < out_height)
    following = _columns(at_gradient, there, column, out_width, CHANNELS, FIRST, REACH)
    for u in tl.static_range(STRIDE):
        there = inside & (row * STRIDE + u < height)
        inputs = inputs + _columns(
            at_x + u * width * CHANNELS, there, column_x, width, CHANNELS, 0, TAKEN
        )
    for _ in range(ROWS):
        near = near + _converted(following, TOTAL, REACH)
        values = _converted(inputs, TOTAL, STRIDE * TAKEN)
        at_gradient += out_width * CHANNELS
        at_x += STRIDE * width * CHANNELS
        there = inside & (row + FIRST + SIDE < out_height)
        following = _columns(at_gradient, there, column, out_width, CHANNELS, FIRST, REACH)
        inputs = ()
        for u in tl.static_range(STRIDE):
            there = inside & ((row + 1) * STRIDE + u < height)
            inputs = inputs + _columns(
                at_x + u * width * CHANNELS, there, column_x, width, CHANNELS, 0, TAKEN
            )
        for n in tl.static_range(STRIDE * TAKEN):  # value (n // TAKEN, n % TAKEN) of the cells
            total = tl.zeros((P, BLOCK), TOTAL)
            for tap in tl.static_range(KERNEL * KERNEL):
                if (n // TAKEN + PAD - tap // KERNEL) % STRIDE == 0 and (
                    n % TAKEN + PAD - tap % KERNEL
                ) % STRIDE == 0:
                    reader = near[
                        ((n // TAKEN + PAD - tap // KERNEL) // STRIDE - FIRST) * REACH
                        + (n % TAKEN + PAD - tap % KERNEL) // STRIDE - FIRST
                    ]  # fmt: skip
                    if GIVES_DX:
                        total += reader * taps[tap]
                    if GIVES_SUMS:
                        totals = (
                            totals[:tap] + (totals[tap] + reader * values[n],) + totals[tap + 1 :]
                        )
            if GIVES_DX:
                is_input = (row * STRIDE + n // TAKEN < height) & (column_x + n % TAKEN < width)
                here = at_dx + (n // TAKEN * width + n % TAKEN) * CHANNELS
                tl.store(here, total.to(dx.dtype.element_ty), inside & is_input)
        row += 1
        at_dx += STRIDE * width * CHANNELS
        near = near[REACH:]
    if GIVES_SUMS:
        own = sums + part.to(tl.int64) * (KERNEL * KERNEL * CHANNELS) + channel
        for tap in tl.static_range(KERNEL * KERNEL):
            tl.store(own + tap * CHANNELS, tl.sum(totals[tap], 0)[None, :], inside)
