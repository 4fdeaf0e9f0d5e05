"""Programs that script refuses. test_script_refused.py reads each, and compares the messages with a golden file.

A name beginning with ``gpu_`` is read as a kernel with one block of 32 threads.
"""
# mypy: ignore-errors
# pyright: reportInvalidTypeForm=false, reportGeneralTypeIssues=false, reportIndexIssue=false
# pyright: reportArgumentType=false, reportCallIssue=false, reportOptionalMemberAccess=false
# pyright: reportAttributeAccessIssue=false, reportUndefinedVariable=false, reportAssignmentType=false
# ruff: noqa
# The reason for both: these programs are wrong on purpose, and tensor types are not types to mypy.

import math

from taskmap.ir import repeat, spatial
from taskmap.ir.construct import index
from taskmap.ir.nodes import Buffer
from taskmap.ir.script.read import (
    barrier,
    block,
    dim,
    exp,
    kernel,
    local,
    matmul,
    move,
    parallel,
    pow,
    region,
    register,
    script,
    shared,
    thread,
    unroll,
    vector,
)
from taskmap.ir.types import f16, f32, i32, i64

n = dim("n")
table = (1.0, 2.0, 3.0)
settings = {"on": True}
other = Buffer("other", f32, (8,))


@kernel
def whole(x: f32[8], y: f32[8]):
    for i in range(8):
        y[i] = x[i]


@script
def without_end(y, i):
    without_end(y, i)


@script
def early(x):
    if x > 0.0:
        return x
    return -x


@script
def first(y):
    y[0] = 1.0


def broken(value):
    raise ValueError("broken on purpose")


def untyped_parameter(x, y: f32[8]):
    y[0] = 1.0


def float_parameter(alpha: f32, y: f32[8]):
    y[0] = alpha


def number_as_type(x: 8, y: f32[8]):
    y[0] = 1.0


def variadic(*x: f32[8]):
    pass


def keyword_only(x: f32[8], *, y: f32[8]):
    y[0] = 1.0


def default_value(x: f32[8], y: f32[8] = None):
    y[0] = 1.0


def fractional_size(x: f32[8], y: "f32[8 / 2]"):
    y[0] = 1.0


def while_loop(x: f32[8], y: f32[8]):
    i = 0
    while x[i] > 0.0:
        y[i] = 1.0


def breaks(x: f32[8], y: f32[8]):
    for i in range(8):
        if x[i] > 0.0:
            break
        y[i] = x[i]


def continues(x: f32[8], y: f32[8]):
    for i in range(8):
        if x[i] > 0.0:
            continue
        y[i] = x[i]


def loop_else(x: f32[8], y: f32[8]):
    for i in range(8):
        y[i] = x[i]
    else:
        y[0] = 0.0


def returns(x: f32[8], y: f32[8]):
    return x[0]


def tries(x: f32[8], y: f32[8]):
    try:
        y[0] = x[0]
    except ValueError:
        pass


def uses_with(x: f32[8], y: f32[8]):
    with open("f") as f:
        y[0] = 1.0


def raises(x: f32[8], y: f32[8]):
    raise ValueError


def inner_function(x: f32[8], y: f32[8]):
    def double(v):
        return v * 2.0

    y[0] = double(x[0])


def uses_lambda(x: f32[8], y: f32[8]):
    double = lambda v: v * 2.0
    y[0] = double(x[0])


def imports(x: f32[8], y: f32[8]):
    import os


def declares_global(x: f32[8], y: f32[8]):
    global n
    y[0] = 1.0


def deletes(x: f32[8], y: f32[8]):
    del x


def asserts_data(x: f32[8], y: f32[8]):
    assert x[0] > 0.0
    y[0] = 1.0


def asserts_false(x: f32[8], y: f32[8]):
    assert x.shape[0] % 16 == 0, "the size must be a multiple of 16."
    y[0] = 1.0


def assigns_again(x: f32[8], y: f32[8]):
    total = 0.0
    for i in range(8):
        total = total + x[i]
    y[0] = total


def updates_a_name(x: f32[8], y: f32[8]):
    total = x[0]
    total += x[1]
    y[0] = total


def reuses_an_index(x: f32[8], y: f32[8]):
    for i in range(8):
        for i in range(8):
            y[i] = x[i]


def uses_after_the_block(x: f32[8], y: f32[8]):
    if x[0] > 0.0:
        t = x[1]
    else:
        t = x[2]
    y[0] = t


def undefined_name(x: f32[8], y: f32[8]):
    y[0] = x[0] * scale


def two_targets(x: f32[8], y: f32[8]):
    y[0] = y[1] = x[0]


def wrong_number_of_names(x: f32[8], y: f32[8]):
    a, b = 1.0, 2.0, 3.0
    y[0] = a


def unpacks_a_value(x: f32[8], y: f32[8]):
    a, b = x[0]
    y[0] = a


def sets_an_attribute(x: f32[8], y: f32[8]):
    x.name = 3


def stores_to_a_tuple(x: f32[8], y: f32[8]):
    table[0] = x[0]


def value_without_a_use(x: f32[8], y: f32[8]):
    x[0] + 1.0


def declares_only(x: f32[8], y: f32[8]):
    t: f32
    y[0] = 1.0


def walrus(x: f32[8], y: f32[8]):
    y[0] = (t := x[0])


def slice_of_a_tensor(x: f32[8], y: f32[8]):
    y[0:4] = x[0:4]


def whole_tensor(x: f32[8], y: f32[8]):
    y[0] = x + 1.0


def stores_a_tensor(x: f32[8], y: f32[8]):
    y[0] = x


def wrong_rank(x: f32[8, 8], y: f32[8]):
    y[0] = x[0]


def wrong_rank_of_a_store(x: f32[8], y: f32[8, 8]):
    y[0] = x[0]


def float_index(x: f32[8], y: f32[8]):
    y[0] = x[x[0]]


def text_as_index(x: f32[8], y: f32[8]):
    y[0] = x["a"]


def indexes_a_value(x: f32[8], y: f32[8]):
    t = x[0]
    y[0] = t[1]


def table_by_a_loop_index(x: f32[8], y: f32[8]):
    for i in range(3):
        y[i] = table[i]


def float_to_integers(x: f32[8], y: i32[8]):
    y[0] = x[0]


def stores_text(x: f32[8], y: f32[8]):
    y[0] = "zero"


def condition_that_is_no_bool(x: f32[8], y: f32[8]):
    if x[0]:
        y[0] = 1.0


def not_of_a_float(x: f32[8], y: f32[8]):
    y[0] = 1.0 if not x[0] else 0.0


def member_of(x: f32[8], y: f32[8]):
    if x[0] in table:
        y[0] = 1.0


def compares_with_text(x: f32[8], y: f32[8]):
    if x[0] == "a":
        y[0] = 1.0


def adds_text(x: f32[8], y: f32[8]):
    y[0] = x[0] + "a"


def bits_of_floats(x: f32[8], y: f32[8]):
    y[0] = x[0] & x[1]


def matrix_product_of_elements(x: f32[8], y: f32[8]):
    y[0] = x[0] @ x[1]


def power_of_integers(x: i32[8], y: i32[8]):
    y[0] = x[0] ** x[1]


def rounds(x: f32[8], y: f32[8]):
    y[0] = round(x[0])


def method_of_a_value(x: f32[8], y: f32[8]):
    y[0] = x[0].sqrt()


def attribute_that_is_not_there(x: f32[8], y: f32[8]):
    y[0] = x[math.size]


def calls_a_kernel(x: f32[8], y: f32[8]):
    whole(x, y)


def calls_a_number(x: f32[8], y: f32[8]):
    y[0] = n(3)


def calls_what_fails(x: f32[8], y: f32[8]):
    y[0] = broken(x[0])


def too_many_arguments(x: f32[8], y: f32[8]):
    first(y, x)


def endless_helper(x: f32[8], y: f32[8]):
    without_end(y, 0)


def conditional_return(x: f32[8], y: f32[8]):
    y[0] = early(x[0])


def keyword_dictionary(x: f32[8], y: f32[8]):
    y[0] = pow(**settings)


def at_with_a_wrong_keyword(x: f32[8], y: f32[8]):
    y[0] = x.at(9, default=1.0)


def loop_over_a_tensor(x: f32[8], y: f32[8]):
    for v in x:
        y[0] = v


def loop_over_a_value(x: f32[8], y: f32[8]):
    for i in n:
        y[i] = x[i]


def step_of_zero(x: f32[8], y: f32[8]):
    for i in range(0, 8, 0):
        y[i] = x[i]


def symbolic_step(x: f32[n], y: f32[n]):
    for i in range(0, 8, n):
        y[i] = x[i]


def fractional_bound(x: f32[8], y: f32[8]):
    for i in range(8 / 2):
        y[i] = x[i]


def two_indices_for_one(x: f32[8], y: f32[8]):
    for i, j in parallel(8):
        y[i] = x[j]


def one_index_for_two(x: f32[8], y: f32[8]):
    for i in spatial(2, 4).on(0):
        y[i] = x[i]


def register_without_a_type(x: f32[8], y: f32[8]):
    t = register(16)
    y[0] = 1.0


def symbolic_vector(x: f32[n], y: f32[n]):
    for i in vector(n):
        y[i] = x[i]


def stores_to_what_it_was_not_given(x: f32[8], y: f32[8]):
    other[0] = x[0]


def beyond_the_end(x: f32[8], y: f32[8]):
    for i in range(9):
        y[0] = x[i]


def barrier_on_the_cpu(x: f32[8], y: f32[8]):
    barrier()


def thread_on_the_cpu(x: f32[8], y: f32[8]):
    y[thread] = x[thread]


def block_on_the_cpu(x: f32[8], y: f32[8]):
    y[block.x] = x[0]


def no_such_worker(x: f32[8], y: f32[8]):
    for i in spatial(8).on(8):
        y[i] = x[i]


def comprehension_over_data(x: f32[8], y: f32[8]):
    y[0] = sum(x[i] for i in range(n))


def comprehension_with_a_condition(x: f32[8], y: f32[8]):
    y[0] = sum([x[i] for i in range(8) if x[i] > 0.0])


def gpu_too_few_workers(x: f32[8, 8], y: f32[8, 8]):
    for i, j in spatial(4, 4).on(thread):
        y[i, j] = x[i, j]


def gpu_too_few_workers_not_dividing(x: f32[8, 8], y: f32[8, 8]):
    for i, j in (repeat(2, 1) * spatial(4, 3)).on(thread):
        y[i, j] = x[i, j]


def gpu_too_many_workers(x: f32[8, 8], y: f32[8, 8]):
    for i, j in spatial(8, 8).on(thread):
        y[i, j] = x[i, j]


def gpu_barrier_under_a_condition(x: f32[8], y: f32[8]):
    t = shared(f32[8])
    if thread < 8:
        t[thread] = x[thread]
        barrier()
        y[thread] = t[7 - thread]


def gpu_parallel_loop(x: f32[8], y: f32[8]):
    for i in parallel(8):
        y[i] = x[i]


def gpu_wrong_owner(x: f32[8], y: f32[8]):
    t = register(f32[64], owner=spatial(32))
    for i in t.owner.on(thread):
        t[i] = 0.0
