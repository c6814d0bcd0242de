"""Triton kernels of depthwise convolutions of NHWC images.

`forward` computes the forward pass, and `backward` computes both gradients in one pass.

All tensors are contiguous: images (N, H, W, C), taps (C, KERNEL, KERNEL). The padding is
KERNEL // 2, so that H' = ceil(H / STRIDE).

A program walks down ROWS rows of P x ACROSS columns and BLOCK channels of an image. A tensor
(P, BLOCK) holds every ACROSS-th column. The columns between them are further tensors in the same
threads. They share the taps, the sums, and the values that each of them has loaded. The next row is
loaded before this row is computed, which hides the latency of memory.
"""

# ruff: noqa: N803, N806, PLR0912, PLR0915, RUF005 - Triton's constants are in capitals, and it takes no other tuples
# Triton's ranges and constants are not what their classes say.
# pyright: reportGeneralTypeIssues=false, reportAssignmentType=false

import triton
import triton.language as tl

# Triton would compile the code again for special values of these, such as multiples of 16.
SIZES = ["height", "width", "out_height", "out_width", "strips", "tiles"]


@triton.jit
def _columns(
    at, inside, column, width, CHANNELS: tl.constexpr, FIRST: tl.constexpr, COUNT: tl.constexpr
):
    """Load COUNT neighbouring columns of a row, from `column` + FIRST on. They are 0 off the image.

    Args:
        at: Pointers (P, BLOCK) to `column`.
        inside: Which of these pointers are in the image.
        column: The column of each row of the tensors, (P, 1).
    """
    values = ()
    for n in tl.static_range(FIRST, FIRST + COUNT):
        is_loaded = inside & (column + n < width)
        if n < 0:
            is_loaded = is_loaded & (column + n >= 0)
        values = values + (tl.load(at + n * CHANNELS, is_loaded, 0.0),)
    return values


@triton.jit
def _converted(values, TOTAL: tl.constexpr, COUNT: tl.constexpr):
    """Convert the values to the type in which they are summed."""
    converted = ()
    for n in tl.static_range(COUNT):
        converted = converted + (values[n].to(TOTAL),)
    return converted


@triton.jit
def _taps(weight, channel, inside, TAPS: tl.constexpr, TOTAL: tl.constexpr):
    """Load the taps row by row, each as a tensor (1, BLOCK)."""
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
    """Return which part of the images this program computes.

    Neighbouring programs have neighbouring channels. A tensor may have more than 2^31 values, but
    an image may not.

    Returns:
        The image, the strip, the columns (P, 1), the channels (1, BLOCK) and the part's number.
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
    """Compute y (N, H', W', C) from x (N, H, W, C).

    `near` holds the KERNEL rows of x from which a row of y is computed.
    """
    PAD: tl.constexpr = KERNEL // 2
    REACH: tl.constexpr = (ACROSS - 1) * STRIDE + KERNEL
    # The next row of y needs this number of rows of x again.
    REUSED_ROWS: tl.constexpr = KERNEL - STRIDE if KERNEL > STRIDE else 0
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
        is_loaded = inside & (row_x + n >= 0) & (row_x + n < height)
        loaded = _columns(
            at_x + n * width * CHANNELS, is_loaded, column_x, width, CHANNELS, -PAD, REACH
        )
        if n < REUSED_ROWS:
            near = near + _converted(loaded, TOTAL, REACH)
        else:
            following = following + loaded
    for _ in range(ROWS):
        near = near + _converted(following, TOTAL, (KERNEL - REUSED_ROWS) * REACH)
        row_x += STRIDE
        at_x += STRIDE * width * CHANNELS
        following = ()
        for n in tl.static_range(REUSED_ROWS, KERNEL):
            is_loaded = inside & (row_x + n >= 0) & (row_x + n < height)
            following = following + _columns(
                at_x + n * width * CHANNELS, is_loaded, column_x, width, CHANNELS, -PAD, REACH
            )
        for v in tl.static_range(ACROSS):
            total = tl.zeros((P, BLOCK), TOTAL)
            for tap in tl.static_range(KERNEL * KERNEL):
                total += near[tap // KERNEL * REACH + v * STRIDE + tap % KERNEL] * taps[tap]
            is_output = (row < out_height) & (column + v < out_width)
            tl.store(at_y + v * CHANNELS, total.to(y.dtype.element_ty), inside & is_output)
        row += 1
        at_y += out_width * CHANNELS
        near = near[(KERNEL - REUSED_ROWS) * REACH :]


@triton.jit(do_not_specialize=SIZES)
def backward(
    x, gradient, weight, dx, sums, height, width, out_height, out_width, strips, tiles,
    CHANNELS: tl.constexpr, KERNEL: tl.constexpr, STRIDE: tl.constexpr, TOTAL: tl.constexpr,
    ROWS: tl.constexpr, P: tl.constexpr, ACROSS: tl.constexpr, BLOCK: tl.constexpr,
    GIVES_DX: tl.constexpr, GIVES_SUMS: tl.constexpr,
):  # fmt: skip
    """Compute both gradients from the gradient (N, H', W', C) of the outputs.

    dx (N, H, W, C) is the gradient of x. sums (parts, KERNEL^2, C) holds each part's contribution
    to the gradient of the taps.

    A cell is STRIDE x STRIDE values of x. Rows and columns are counted in cells. The output
    r + (u + PAD - i) / STRIDE reads input STRIDE r + u with tap i, if that is a whole number. This
    holds in both directions. `near` holds the SIDE rows of the gradient that a row of cells needs.
    They begin FIRST rows from it.
    """
    PAD: tl.constexpr = KERNEL // 2
    FIRST: tl.constexpr = -((KERNEL - 1 - PAD) // STRIDE)
    SIDE: tl.constexpr = (STRIDE - 1 + PAD) // STRIDE - FIRST + 1
    REACH: tl.constexpr = ACROSS - 1 + SIDE
    X_COLUMNS: tl.constexpr = STRIDE * ACROSS  # Columns of x.
    if STRIDE == 1:  # x and the gradient have the same size, and so the same masks.
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
        is_loaded = inside & (row + n >= 0) & (row + n < out_height)
        loaded = _columns(at_gradient, is_loaded, column, out_width, CHANNELS, FIRST, REACH)
        near = near + _converted(loaded, TOTAL, REACH)
        at_gradient += out_width * CHANNELS
    is_loaded = inside & (row + FIRST + SIDE - 1 < out_height)
    following = _columns(at_gradient, is_loaded, column, out_width, CHANNELS, FIRST, REACH)
    for u in tl.static_range(STRIDE):
        is_loaded = inside & (row * STRIDE + u < height)
        inputs = inputs + _columns(
            at_x + u * width * CHANNELS, is_loaded, column_x, width, CHANNELS, 0, X_COLUMNS
        )
    for _ in range(ROWS):
        near = near + _converted(following, TOTAL, REACH)
        values = _converted(inputs, TOTAL, STRIDE * X_COLUMNS)
        at_gradient += out_width * CHANNELS
        at_x += STRIDE * width * CHANNELS
        is_loaded = inside & (row + FIRST + SIDE < out_height)
        following = _columns(at_gradient, is_loaded, column, out_width, CHANNELS, FIRST, REACH)
        inputs = ()
        for u in tl.static_range(STRIDE):
            is_loaded = inside & ((row + 1) * STRIDE + u < height)
            inputs = inputs + _columns(
                at_x + u * width * CHANNELS, is_loaded, column_x, width, CHANNELS, 0, X_COLUMNS
            )
        for n in tl.static_range(
            STRIDE * X_COLUMNS
        ):  # Value (n // X_COLUMNS, n % X_COLUMNS) of the cells.
            total = tl.zeros((P, BLOCK), TOTAL)
            for tap in tl.static_range(KERNEL * KERNEL):
                if (n // X_COLUMNS + PAD - tap // KERNEL) % STRIDE == 0 and (
                    n % X_COLUMNS + PAD - tap % KERNEL
                ) % STRIDE == 0:
                    reader = near[
                        ((n // X_COLUMNS + PAD - tap // KERNEL) // STRIDE - FIRST) * REACH
                        + (n % X_COLUMNS + PAD - tap % KERNEL) // STRIDE - FIRST
                    ]  # fmt: skip
                    if GIVES_DX:
                        total += reader * taps[tap]
                    if GIVES_SUMS:
                        totals = (
                            totals[:tap] + (totals[tap] + reader * values[n],) + totals[tap + 1 :]
                        )
            if GIVES_DX:
                is_input = (row * STRIDE + n // X_COLUMNS < height) & (
                    column_x + n % X_COLUMNS < width
                )
                at_output = at_dx + (n // X_COLUMNS * width + n % X_COLUMNS) * CHANNELS
                tl.store(at_output, total.to(dx.dtype.element_ty), inside & is_input)
        row += 1
        at_dx += STRIDE * width * CHANNELS
        near = near[REACH:]
    if GIVES_SUMS:
        part_sums = sums + part.to(tl.int64) * (KERNEL * KERNEL * CHANNELS) + channel
        for tap in tl.static_range(KERNEL * KERNEL):
            tl.store(part_sums + tap * CHANNELS, tl.sum(totals[tap], 0)[None, :], inside)
