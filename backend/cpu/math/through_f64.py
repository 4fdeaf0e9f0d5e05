"""Functions of f32 computed in f64 and rounded once: short formulas, whose cancellations f64 has digits for."""

from __future__ import annotations

from collections.abc import Sequence

from taskmap.backend.cpu.math.types import fused, horner

# x^y = 2^(y log2 |x|), with log2(1 + f) as a polynomial in s^2 for s = f / (2 + f), to 2^-37; then what C prescribes.
_POW = (
    """\
  $V a = tm_abs_$V(x), n, f = tm_log_split_$V(a, &n);
  $V s = f / (f + 2), z = s * s;
"""
    + horner(
        "p",
        "z",
        "0x1.5d55ea1220304p-2 0x1.a587d4e0d5446p-2 0x1.27778b8995f7p-1 0x1.ec709d040e2a5p-1 0x1.71547652bf92bp+1",
    )
    + f"  $V t = y * tm_log_edges_$V(a, {fused('s', 'p', 'n')});\n"
    + "  t = tm_atmost_$V(tm_atleast_$V(t, tm_splat_$V(-160)), tm_splat_$V(130));\n"
    + "  $V whole = tm_round_$V(t), r = t - whole;\n"
    + horner(
        "e",
        "r",
        "0x1.fe1adfd9f529ap-17 0x1.446d65fd88752p-13 0x1.5d8a5346c5b22p-10 0x1.3b29db45b2444p-7 0x1.c6b08aac03cb7p-5 "
        "0x1.ebfbe0a5ce59ep-3 0x1.62e42ff119f91p-1 0x1.ffffffffab0d7p-1",
    )
    + """\
  e = tm_scale_$V(e, whole);
  $M odd = tm_trunc_$V(y) == y;
  e = tm_select_$V((x < 0) & (a < __builtin_inf()) & (tm_trunc_$V(y) != y), tm_splat_$V(__builtin_nan("")), e);
  odd = odd & (tm_trunc_$V(y * 0.5) * 2 != y);
  e = tm_select_$V(odd & (($I)tm_bits_$V(x) < 0), -e, e);
  $M one = (x == 1) | (y == 0) | ((x == -1) & (tm_abs_$V(y) == __builtin_inf()));
  return tm_select_$V(one, tm_splat_$V(1), e);"""
)
_ASINH = """\
  $V a = tm_abs_$V(x), y = tm_log_$V(a + tm_sqrt_$V(a * a + 1));
  return tm_copysign_$V(tm_select_$V(a < 0x1p-14, a - a * a * a * (1. / 6), y), x);"""
_ACOSH = "  return tm_log_$V(tm_select_$V(x < 1, x - x - 1, x + tm_sqrt_$V(x * x - 1)));"
_ATANH = """\
  $V y = 0.5 * tm_log_$V((1 + x) / (1 - x));
  return tm_select_$V(tm_abs_$V(x) < 0x1p-14, x + x * x * x * (1. / 3), y);"""
_HYPOT = """\
  $V a = tm_abs_$V(x), b = tm_abs_$V(y), root = tm_sqrt_$V(a * a + b * b);
  return tm_select_$V(a == __builtin_inf(), a, tm_select_$V(b == __builtin_inf(), b, root));"""

# exp(-a^2) g((a - 2) / (a + 2)) for a >= 0, and 2 less that of -x for x < 0. Beyond 10.2 f32 has no number so small.
_ERFC = (
    "  $V a = tm_atmost_$V(tm_abs_$V(x), tm_splat_$V(10.5)), u = (a - 2) / (a + 2);\n"
    + horner(
        "g",
        "u",
        "-0x1.1aa0c2770a725p-17 -0x1.8a863f4b7422fp-16 0x1.90d8b29a24564p-16 0x1.671c27fc8cce2p-13 "
        "0x1.785416986651fp-15 -0x1.01217a8fe05f2p-10 -0x1.bc4aaa2ee0807p-11 0x1.ca92cfa5de539p-8 "
        "0x1.e9482b58d29ap-9 -0x1.437f07e397a43p-4 0x1.eeea7d91767e6p-3 -0x1.b57034f41f7afp-2 0x1.058671b56922cp-2",
    )
    + "  $V y = g * tm_exp_$V(-a * a);\n"
    + "  return tm_select_$V(x < 0, 2 - y, y);"
)

# x times a polynomial in w = -log(1 - x^2), or in its root from w = 5 on (the scheme of M. Giles, "Approximating the
# erfinv function", 2010). With |x| > 1 the logarithm is NaN, with 1 infinite.
_ERFINV = (
    "  $V w = -tm_log_$V((1 - x) * (1 + x)), v = tm_sqrt_$V(w);\n"
    + horner(
        "p",
        "w",
        "-0x1.5d7b989f6f5d7p-41 -0x1.e14004971a2b8p-42 0x1.efe3abc2415fep-32 -0x1.288cfd291c11fp-27 "
        "0x1.269979420115dp-24 -0x1.7f8f8bfa68188p-23 -0x1.82818610c6e35p-21 0x1.afdcb2e46cedfp-20 "
        "0x1.8a3d654d94869p-15 -0x1.0d02fa2ccdc7dp-13 -0x1.320e3ec3a768bp-9 0x1.7a72c6a176f03p-7 0x1.db29fb5547287p-3 "
        "0x1.c5bf891b32dc3p-1",
    )
    + horner(
        "q",
        "v",
        "0x1.53501ab7e24f9p-17 -0x1.992c183c94f0bp-12 0x1.c05766ce768b3p-8 -0x1.26ab479f3987ep-4 0x1.024139c08650ap-1 "
        "-0x1.3d309c7e09a72p+1 0x1.17105017ffdfap+3 -0x1.612edb8733bacp+4 0x1.3dfd96d3a9bfp+5 -0x1.8cba864ca3ccp+5 "
        "0x1.47d21d036a1d4p+5 -0x1.3ce91afb628aap+4 0x1.4c98f187171a7p+2",
    )
    + "  $V y = x * tm_select_$V(w < 5, p, q);\n"
    + "  return tm_select_$V(w == __builtin_inf(), x * w, y);"
)

BINARY = {"pow": _POW, "hypot": _HYPOT}
"""Bodies of functions of `x` and `y`, f32 values in f64."""
BODIES = {"asinh": _ASINH, "acosh": _ACOSH, "atanh": _ATANH, "erfc": _ERFC, "erfinv": _ERFINV, **BINARY}
"""The same of `x`, too."""
STEP = "f32_"
"""The beginning of the names of steps: `tm_f32_pow_f64x8` takes and gives f32 values in f64."""
STEPS = {STEP + name: body for name, body in BODIES.items()}


def call(name: str, operands: Sequence[str]) -> str:
    """The body of a function of f32: a step between casts; $W is f64."""
    arguments = ", ".join(f"tm_cast_${{V}}_to_$W({x})" for x in operands)
    return f"  return tm_cast_${{W}}_to_$V(tm_{STEP}{name}_$W({arguments}));"
