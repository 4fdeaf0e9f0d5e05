"""GPU kernels written in script, on which the CUDA C++ generator is tested."""
# mypy: ignore-errors
# pyright: reportInvalidTypeForm=false, reportGeneralTypeIssues=false, reportIndexIssue=false
# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false
# pyright: reportOptionalMemberAccess=false
# The reason: the parameters of kernels are annotated with tensor types, which are not types to a type checker.

from taskmap.ir import repeat, row_major, spatial
from taskmap.ir.nodes import Kernel
from taskmap.ir.script.read import (
    barrier,
    block,
    ceil_div,
    checked_index,
    dim,
    exp,
    instruction,
    kernel,
    matmul,
    move,
    region,
    register,
    shared,
    tensor_map,
    thread,
    unroll,
    vector,
)
from taskmap.ir.types import f16, f32, i64

m, n, k = dim("m"), dim("n"), dim("k")

mma = instruction("mma_m16n8k16_f16_f32")
ldmatrix = instruction("ldmatrix_x4")
ldmatrix_trans = instruction("ldmatrix_x2_trans")
copy_or_zero = instruction("cp_async_zfill_16")
commit, wait = instruction("cp_async_commit"), instruction("cp_async_wait")
shuffle = instruction("shuffle_xor")


@kernel(grid=(ceil_div(n, 256),), threads=256)
def gate(x: f16[n], y: f16[n], z: f16[n]):
    i = block.x * 256 + thread
    z[i] = exp(x[i]) + y[i]


@kernel(grid=(4,), threads=128)
def scale(x: f32[2048], z: f32[2048]):
    i = block.x * 512 + thread * 4
    for lane in vector(4):
        z[i + lane] = x[i + lane] * 2.0


@kernel(grid=(ceil_div(m, 8), ceil_div(n, 8)), threads=32)
def simple_matmul(a: f32[m, k], b: f32[k, n], c: f32[m, n]):
    tile_a, tile_b = shared(f32[8, 8]), shared(f32[8, 8])
    acc = register(f32[8, 8], owner=spatial(8, 4) * repeat(1, 2), init=0.0)
    row, col = block.x * 8, block.y * 8
    for step in range(ceil_div(k, 8)):
        for i, j in (repeat(2, 1) * spatial(4, 8)).on(thread):
            tile_a[i, j] = a[row + i, step * 8 + j]
            tile_b[i, j] = b[step * 8 + i, col + j]
        barrier()
        for kk in range(8):
            for i, j in acc.owner.on(thread):
                acc[i, j] += tile_a[i, kk] * tile_b[kk, j]
        barrier()
    for i, j in acc.owner.on(thread):
        c[row + i, col + j] = acc[i, j]


@kernel(grid=(2, 2), threads=64)
def tensor_matmul(a: f16[64, 64], b: f16[64, 64], c: f32[64, 64]):
    """Specs alone: lowering finds ldmatrix, mma and cp.async."""
    tile_a = shared(f16[32, 32], layout=row_major(32, 32).swizzled(2, 3, 3))
    tile_b = shared(f16[32, 32], layout=row_major(32, 32).swizzled(2, 3, 3))
    acc = register(f32[32, 32], owner=spatial(2, 1) * repeat(1, 4) * mma.owner_c, init=0.0)
    row, col = block.x * 32, block.y * 32
    for step in range(2):
        chunks = (repeat(2, 1) * spatial(16, 4)).on(thread)
        move(tile_a, region(a, (row, step * 32), (32, 32)), by=chunks, asynchronous=True)
        move(tile_b, region(b, (step * 32, col), (32, 32)), by=chunks)
        commit()
        wait(0)
        barrier()
        matmul(acc, tile_a, tile_b)
        barrier()
    move(region(c, (row, col), (32, 32)), acc)


@kernel(grid=(ceil_div(m, 32), ceil_div(n, 32)), threads=64)
def edge_matmul(a: f16[m, k], b: f16[k, n], c: f16[m, n]):
    """Instructions by hand, edges filled with zeros by the copy. Rows of a and b are multiples of 8 elements."""
    tile_a = shared(f16[2, 32, 32], layout=row_major(2, 32, 32).swizzled(2, 3, 3))
    tile_b = shared(f16[2, 32, 32], layout=row_major(2, 32, 32).swizzled(2, 3, 3))
    acc = register(f32[32, 32], owner=spatial(2, 1) * repeat(1, 4) * mma.owner_c, init=0.0)
    row, col, warp = block.x * 32, block.y * 32, thread // 32
    for step in range(ceil_div(k, 32)):
        stage = step % 2
        for i, j in (repeat(2, 1) * spatial(16, 4)).on(thread):
            left = max(min(k - step * 32 - j * 8, 8), 0) if row + i < m else 0
            below = max(min(n - col - j * 8, 8), 0) if step * 32 + i < k else 0
            from_a = region(a, (min(row + i, m - 1), min(step * 32 + j * 8, k - 8)), (1, 8))
            from_b = region(b, (min(step * 32 + i, k - 1), min(col + j * 8, n - 8)), (1, 8))
            copy_or_zero(region(tile_a, (stage, i, j * 8), (1, 1, 8)), from_a, left * 2)
            copy_or_zero(region(tile_b, (stage, i, j * 8), (1, 1, 8)), from_b, below * 2)
        commit()
        wait(0)
        barrier()
        for kk in unroll(2):
            left_tile = register(f16[16, 16], owner=mma.owner_a)
            ldmatrix(left_tile, region(tile_a, (stage, warp * 16, kk * 16), (1, 16, 16)))
            for j in unroll(4):
                right_tile = register(f16[16, 8], owner=mma.owner_b)
                ldmatrix_trans(right_tile, region(tile_b, (stage, kk * 16, j * 8), (1, 16, 8)))
                mma(region(acc, (warp * 16, j * 8), (16, 8)), left_tile, right_tile)
        barrier()
    for i, j in acc.owner.on(thread):
        c[row + i, col + j] = f16(acc[i, j])


@kernel(grid=(m,), threads=32)
def row_sum(x: f32[m, 100], y: f32[m]):
    """Each warp adds up a row: first every lane its elements, then the lanes by halves."""
    total = register(f32[1], init=0.0)
    for j in range(ceil_div(100, 32)):
        total[0] += x.at(block.x, j * 32 + thread, otherwise=0.0)
    for distance in [16, 8, 4, 2, 1]:
        total[0] += shuffle(32, total[0], distance)
    if thread == 0:
        y[block.x] = total[0]


@kernel(grid=(ceil_div(n, 32),), threads=32)
def pick(x: f32[m], at: i64[n], y: f32[n]):
    """A gather whose indices are checked."""
    i = block.x * 32 + thread
    if i < n:
        y[i] = x[checked_index(at[i], m)]


EVERY: tuple[Kernel, ...] = (gate, scale, simple_matmul, tensor_matmul, edge_matmul, row_sum, pick)

product_of_group = instruction("wgmma_m64n64k16_f16_f32")
descriptor = instruction("wgmma_descriptor")
wgmma_fence, wgmma_commit = instruction("wgmma_fence"), instruction("wgmma_commit")
wgmma_wait = instruction("wgmma_wait")
load_box, fence_init = instruction("tma_load_2d"), instruction("fence_mbarrier_init")
mbarrier_init, mbarrier_wait = instruction("mbarrier_init"), instruction("mbarrier_wait")
arrive_expecting = instruction("mbarrier_arrive_expect_tx")
_ATOMS = row_major(2, 64, 64).swizzled(3, 3, 3)


@kernel(grid=(ceil_div(m, 64), ceil_div(n, 64)), threads=128)
def hopper_matmul(a: f16[m, k], b: f16[n, k], c: f32[m, n]):
    """a @ b.T by a warpgroup, with operands loaded by TMA."""
    map_a, map_b = tensor_map(a, (64, 64), swizzle=128), tensor_map(b, (64, 64), swizzle=128)
    tile_a, tile_b = shared(f16[2, 64, 64], layout=_ATOMS), shared(f16[2, 64, 64], layout=_ATOMS)
    full = shared(i64[2])
    acc = register(f32[64, 64], owner=product_of_group.owner_c, init=0.0)
    if thread == 0:
        mbarrier_init(full[0], 1)
        mbarrier_init(full[1], 1)
        fence_init()
    barrier()
    for step in range(ceil_div(k, 64)):
        stage = step % 2
        if thread == 0:
            arrive_expecting(full[stage], 2 * 64 * 64 * 2)
            load_box(region(tile_a, (stage, 0, 0), (1, 64, 64)), map_a, full[stage], step * 64, block.x * 64)
            load_box(region(tile_b, (stage, 0, 0), (1, 64, 64)), map_b, full[stage], step * 64, block.y * 64)
        mbarrier_wait(full[stage], step // 2 % 2)
        wgmma_fence()
        for kk in unroll(4):
            left = descriptor(128, tile_a[stage, 0, kk * 16], 16, 1024)
            right = descriptor(128, tile_b[stage, 0, kk * 16], 16, 1024)
            product_of_group(0, 0, acc, left, right, 1)
        wgmma_commit()
        wgmma_wait(0)
        barrier()
    for i, j in acc.owner.on(thread):
        c[block.x * 64 + i, block.y * 64 + j] = acc[i, j]
