"""Triton kernels of an inverted residual, which compute the expanded tensor where it is used and store it nowhere.

Images are (B, H, W, C) in memory. A tile is (P, C): P pixels by C expanded channels; K and KO are the narrow channels
of the input and the output, padded to a power of two. Sums over pixels are float32 in a tile's shape until a program
ends; each program stores its own, so that results do not depend on the order in which programs run.
"""

# ruff: noqa: N803, N806, PLR0124, PLR0912, RET505, RUF005 - constants of Triton are in capitals, and it takes no other tuples

import triton
import triton.language as tl


@triton.jit
def relu6(values):
    return tl.minimum(tl.maximum(values, 0.0), 6.0)


@triton.jit
def load_narrow(images, pixels, valid, CHANNELS: tl.constexpr, PADDED: tl.constexpr):
    """(P, PADDED) of narrow images at these pixels; 0 where not valid and in the padding."""
    channels = tl.arange(0, PADDED)[None, :]
    return tl.load(images + pixels[:, None] * CHANNELS + channels, valid[:, None] & (channels < CHANNELS), other=0.0)


@triton.jit
def load_channels(values, channels, WIDE: tl.constexpr):
    """(1, C) of one value a channel; 0 beyond the last channel."""
    return tl.load(values + channels, channels < WIDE, other=0.0)[None, :]


@triton.jit
def load_tap(taps, t, channels, WIDE: tl.constexpr):
    """(1, C) of one of the nine taps (9, WIDE)."""
    return load_channels(taps + t * WIDE, channels, WIDE).to(tl.float32)


@triton.jit
def product(left, right, PRECISION: tl.constexpr):
    """The matrix product in float32. The interpreter has no product of bfloat16; float32 is the same there."""
    if PRECISION == "interpreted":
        return tl.dot(left.to(tl.float32), right.to(tl.float32))
    else:
        return tl.dot(left, right, input_precision=PRECISION)


@triton.jit
def moments_kernel(
    x, shift, sums, pixels, CIN: tl.constexpr, K: tl.constexpr, P: tl.constexpr, LOOPS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """sums (programs, CIN + 1, CIN): the products of an image's channels, less `shift`, and below them its sums."""
    program = tl.program_id(0).to(tl.int64)
    k = tl.arange(0, K)
    mean = load_channels(shift, k, CIN)
    products, total = tl.zeros((K, K), tl.float32), tl.zeros((P, K), tl.float32)
    for i in range(LOOPS):
        at = (program * LOOPS + i) * P + tl.arange(0, P)
        centred = tl.where((at < pixels)[:, None], load_narrow(x, at, at < pixels, CIN, K).to(tl.float32) - mean, 0.0)
        rounded = centred.to(x.dtype.element_ty)
        products += product(tl.trans(rounded), rounded, PRECISION)
        total += centred
    own = sums + program * (CIN + 1) * CIN
    inside = (k < CIN)[:, None] & (k < CIN)[None, :]
    tl.store(own + k[:, None] * CIN + k[None, :], products, inside)
    tl.store(own + CIN * CIN + k, tl.sum(total, 0), k < CIN)


@triton.jit
def depthwise_kernel(
    x, w1, scale, shift, taps, d, sums, H, W, HO, WO,
    CIN: tl.constexpr, K: tl.constexpr, WIDE: tl.constexpr, STRIDE: tl.constexpr,
    P: tl.constexpr, C: tl.constexpr, ROWS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """d, the depthwise convolution of ReLU6(scale * (x W1^T) + shift), and its sums and sums of squares.

    A program walks down a strip of ROWS output rows, P columns wide. Each of the input's rows is expanded once for
    each of the three columns of taps, and added to all the output rows that it reaches.
    """
    columns = tl.cdiv(WO, P)
    strip, image = tl.program_id(1) // columns, tl.program_id(2).to(tl.int64)
    q = tl.program_id(1) % columns * P + tl.arange(0, P)
    c, k = tl.program_id(0) * C + tl.arange(0, C), tl.arange(0, K)
    inside = c < WIDE
    weights = tl.load(w1 + c[None, :] * CIN + k[:, None], inside[None, :] & (k < CIN)[:, None], other=0.0)
    scales, shifts = load_channels(scale, c, WIDE), load_channels(shift, c, WIDE)
    factors = ()
    for t in tl.static_range(9):
        factors = factors + (load_tap(taps, t, c, WIDE),)
    first, x, d = strip * ROWS, x + image * H * W * CIN, d + image * HO * WO * WIDE
    here, below, lowest = tl.zeros((P, C), tl.float32), tl.zeros((P, C), tl.float32), tl.zeros((P, C), tl.float32)
    total, squares = tl.zeros((P, C), tl.float32), tl.zeros((P, C), tl.float32)
    for i in range(ROWS + 3 - STRIDE):
        row = first + i - (3 - STRIDE)  # of the output: all of its input is added in this turn
        for n in tl.static_range(STRIDE):
            source = row * STRIDE + 2 - STRIDE + n
            for dx in tl.static_range(3):
                column = q * STRIDE + dx - 1
                valid = (column >= 0) & (column < W) & (source >= 0) & (source < H)
                expanded = product(load_narrow(x, source * W + column, valid, CIN, K), weights, PRECISION)
                active = tl.where(valid[:, None], relu6(expanded * scales + shifts), 0.0)
                here += active * factors[9 - 3 * STRIDE + 3 * n + dx]
                if n + 3 >= 2 * STRIDE:
                    below += active * factors[9 - 6 * STRIDE + 3 * n + dx]
                if n + 3 >= 3 * STRIDE:
                    lowest += active * factors[9 - 9 * STRIDE + 3 * n + dx]
        stored = (q < WO)[:, None] & inside[None, :] & (row >= first) & (row < HO)
        tl.store(d + (row * WO + q)[:, None] * WIDE + c[None, :], here.to(d.dtype.element_ty), stored)
        here = tl.where(stored, here, 0.0)
        total += here
        squares += here * here
        here, below, lowest = below, lowest, tl.zeros((P, C), tl.float32)
    program = image * tl.num_programs(1) + tl.program_id(1)
    tl.store(sums + program * 2 * WIDE + c, tl.sum(total, 0), inside)
    tl.store(sums + (program * 2 + 1) * WIDE + c, tl.sum(squares, 0), inside)


@triton.jit
def project_kernel(
    wide, scale, shift, w, base, bias, out, pixels,
    WIDE: tl.constexpr, NARROW: tl.constexpr, KO: tl.constexpr, ADDS: tl.constexpr,
    P: tl.constexpr, C: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """ReLU6(scale * wide + shift) W^T; or, with ADDS, wide W^T + base + bias."""
    at, k = tl.program_id(0).to(tl.int64) * P + tl.arange(0, P), tl.arange(0, KO)
    total = tl.zeros((P, KO), tl.float32)
    for start in range(0, WIDE, C):
        c = start + tl.arange(0, C)
        inside = c < WIDE
        values = tl.load(wide + at[:, None] * WIDE + c[None, :], (at < pixels)[:, None] & inside[None, :], other=0.0)
        weights = tl.load(w + k[None, :] * WIDE + c[:, None], (k < NARROW)[None, :] & inside[:, None], other=0.0)
        if not ADDS:
            scaled = values.to(tl.float32) * load_channels(scale, c, WIDE) + load_channels(shift, c, WIDE)
            values = relu6(scaled).to(wide.dtype.element_ty)
        total += product(values, weights, PRECISION)
    stored = (at < pixels)[:, None] & (k < NARROW)[None, :]
    if ADDS:
        total += tl.load(base + at[:, None] * NARROW + k[None, :], stored, other=0.0) + load_channels(bias, k, NARROW)
    tl.store(out + at[:, None] * NARROW + k[None, :], total.to(out.dtype.element_ty), stored)


@triton.jit
def project_backward_kernel(
    dp, d, w2, scale, shift, mean, factors, dd, sums, pixels,
    WIDE: tl.constexpr, NARROW: tl.constexpr, KO: tl.constexpr, REDUCES: tl.constexpr,
    P: tl.constexpr, C: tl.constexpr, LOOPS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Backward of the second BatchNorm and the projection, from the gradient `dp` of its output.

    With REDUCES sums (programs, 2 + NARROW, WIDE): of the gradient before ReLU6, of that times (d - mean), and W2's
    gradient; else dd, the gradient of d, by `factors` (3, WIDE) of the former gradient, of d - mean, and of 1.
    """
    c, k = tl.program_id(0) * C + tl.arange(0, C), tl.arange(0, KO)
    inside = c < WIDE
    weights = tl.load(w2 + k[:, None] * WIDE + c[None, :], (k < NARROW)[:, None] & inside[None, :], other=0.0)
    scales, shifts = load_channels(scale, c, WIDE), load_channels(shift, c, WIDE)
    means = load_channels(mean, c, WIDE)
    total, weighted = tl.zeros((P, C), tl.float32), tl.zeros((P, C), tl.float32)
    w2_grad = tl.zeros((KO, C), tl.float32)
    program = tl.program_id(1).to(tl.int64)
    for i in range(LOOPS):
        at = (program * LOOPS + i) * P + tl.arange(0, P)
        valid = (at < pixels)[:, None] & inside[None, :]
        grad = load_narrow(dp, at, at < pixels, NARROW, KO)
        values = tl.load(d + at[:, None] * WIDE + c[None, :], valid, other=0.0).to(tl.float32)
        scaled = values * scales + shifts
        passed = tl.where((scaled > 0.0) & (scaled < 6.0), product(grad, weights, PRECISION), 0.0)
        if REDUCES:
            total += passed
            weighted += passed * (values - means)
            w2_grad += product(tl.trans(grad), relu6(scaled).to(d.dtype.element_ty), PRECISION)
        else:
            result = passed * load_channels(factors, c, WIDE)
            result += (values - means) * load_channels(factors + WIDE, c, WIDE)
            result += load_channels(factors + 2 * WIDE, c, WIDE)
            tl.store(dd + at[:, None] * WIDE + c[None, :], result.to(d.dtype.element_ty), valid)
    if REDUCES:
        own = sums + program * (2 + NARROW) * WIDE + c
        tl.store(own, tl.sum(total, 0), inside)
        tl.store(own + WIDE, tl.sum(weighted, 0), inside)
        tl.store(own[None, :] + (2 + k[:, None]) * WIDE, w2_grad, (k < NARROW)[:, None] & inside[None, :])


@triton.jit
def load_gradient(dd, row, column, channels, HO, WO, WIDE: tl.constexpr):
    """(P, C) of dd in a row of outputs; 0 outside."""
    there = (row >= 0) & (row < HO) & (column >= 0) & (column < WO)
    pointers = dd + (row * WO + column)[:, None] * WIDE + channels[None, :]
    return tl.load(pointers, there[:, None] & (channels < WIDE)[None, :], other=0.0).to(tl.float32)


@triton.jit
def expansion_backward_kernel(
    x, w1, scale, shift, taps, w1_scaled, dd, dx, sums, H, W, HO, WO,
    CIN: tl.constexpr, K: tl.constexpr, WIDE: tl.constexpr, STRIDE: tl.constexpr, GIVES_DX: tl.constexpr,
    P: tl.constexpr, C: tl.constexpr, ROWS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Backward of the depthwise convolution, ReLU6 and the expansion, up to the first BatchNorm's own sums.

    dx, float32, with GIVES_DX: g W1_scaled, with g the gradient before ReLU6. sums (programs, 10 + CIN, WIDE): the
    taps' gradient, and those of g and of g times x. A program walks down ROWS rows of P input pixels, or with stride 2
    of squares of four, and adds up dx over blocks of channels. The outputs that a pixel has added to stay from row to
    row: `near` has SIDE x SIDE of them, around the pixel with stride 1, right of it and below with stride 2.
    """
    SIDE: tl.constexpr = 4 - STRIDE
    LEFT: tl.constexpr = STRIDE - 2
    columns = tl.cdiv(tl.cdiv(W, STRIDE), P)
    first, image = tl.program_id(0) // columns * ROWS, tl.program_id(1).to(tl.int64)
    q, k = tl.program_id(0) % columns * P + tl.arange(0, P), tl.arange(0, K)
    x, dx, dd = x + image * H * W * CIN, dx + image * H * W * CIN, dd + image * HO * WO * WIDE
    own = sums + (image * tl.num_programs(0) + tl.program_id(0)) * (10 + CIN) * WIDE
    for start in range(0, WIDE, C):
        c = start + tl.arange(0, C)
        inside = c < WIDE
        weights = tl.load(w1 + c[None, :] * CIN + k[:, None], inside[None, :] & (k < CIN)[:, None], other=0.0)
        if GIVES_DX:
            back = tl.load(w1_scaled + c[:, None] * CIN + k[None, :], inside[:, None] & (k < CIN)[None, :], other=0.0)
        scales, shifts = load_channels(scale, c, WIDE), load_channels(shift, c, WIDE)
        zero, factors, near = tl.zeros((P, C), tl.float32), (), ()
        for t in tl.static_range(9):
            factors = factors + (load_tap(taps, t, c, WIDE),)
        for n in tl.static_range(SIDE * (SIDE - 1)):
            near = near + (load_gradient(dd, first + n // SIDE + LEFT, q + n % SIDE + LEFT, c, HO, WO, WIDE),)
        total, w1_grad = zero, tl.zeros((K, C), tl.float32)
        grads = (zero, zero, zero, zero, zero, zero, zero, zero, zero)
        for i in range(ROWS):
            for n in tl.static_range(STRIDE * STRIDE):
                row, column = (first + i) * STRIDE + n // STRIDE, q * STRIDE + n % STRIDE
                valid = (column < W) & (row < H)
                inputs = load_narrow(x, row * W + column, valid, CIN, K)
                scaled = product(inputs, weights, PRECISION) * scales + shifts
                if n == 0:
                    for b in tl.static_range(SIDE):
                        grad = load_gradient(dd, first + i + 1, q + b + LEFT, c, HO, WO, WIDE)
                        # always true: Triton turns a load to the product's layout here, and not at each of its uses
                        near = near + (tl.where(scaled == scaled, grad, 0.0),)
                active, g = tl.where(valid[:, None], relu6(scaled), 0.0), zero
                for t in tl.static_range(9):  # what this pixel added to, where that is an output of this stride
                    if (n // STRIDE + 1 - t // 3) % STRIDE == 0 and (n % STRIDE + 1 - t % 3) % STRIDE == 0:
                        grad = near[
                            ((n // STRIDE + 1 - t // 3) // STRIDE - LEFT) * SIDE
                            + (n % STRIDE + 1 - t % 3) // STRIDE - LEFT
                        ]  # fmt: skip
                        g += grad * factors[t]
                        grads = grads[:t] + (grads[t] + grad * active,) + grads[t + 1 :]
                g = tl.where((scaled > 0.0) & (scaled < 6.0) & valid[:, None], g, 0.0)
                total += g
                rounded = g.to(x.dtype.element_ty)
                w1_grad += product(tl.trans(inputs), rounded, PRECISION)
                if GIVES_DX:
                    pointers = dx + (row * W + column)[:, None] * CIN + k[None, :]
                    stored = valid[:, None] & (k < CIN)[None, :]
                    before = tl.load(pointers, stored & (start > 0), other=0.0)
                    tl.store(pointers, before + product(rounded, back, PRECISION), stored)
            near = near[SIDE:]
        for t in tl.static_range(9):
            tl.store(own + t * WIDE + c, tl.sum(grads[t], 0), inside)
        tl.store(own + 9 * WIDE + c, tl.sum(total, 0), inside)
        tl.store(own + (10 + k[:, None]) * WIDE + c[None, :], w1_grad, (k < CIN)[:, None] & inside[None, :])
        if GIVES_DX:
            tl.debug_barrier()  # dx of this block of channels is there before the next adds to it
