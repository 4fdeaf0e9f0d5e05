"""Registers that warpgroups hand to each other: a warp gets no more than others release."""

from taskmap.backend.store.objects import KernelStore
from tests.backend.sim.kernels import clean, kernel, kinds

BODY = """\
  if (threadIdx.x < 256) {
    tm_setmaxnreg_inc<232>();
  } else {
    tm_setmaxnreg_dec<40>();
  }
"""


def test_registers_come_from_those_that_give_them_back(store: KernelStore) -> None:
    clean(kernel(BODY, "", threads=384), [], store)
    clean(kernel(BODY.replace("232", "224"), "", threads=384), [], store)
    for old, new in (("232", "240"), ("40", "64"), ("tm_setmaxnreg_dec<40>();", "")):
        assert kinds(kernel(BODY.replace(old, new), "", threads=384), [], store) == {"deadlock"}


def test_more_is_not_fewer(store: KernelStore) -> None:
    assert kinds(kernel(BODY.replace("dec<40>", "inc<40>"), "", threads=384), [], store) == {"misuse"}
