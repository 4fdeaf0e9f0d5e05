"""sinh and cosh of f32 and f64, from half of exp(|x|) and its reciprocal, which do not overflow before the result."""

from __future__ import annotations

from taskmap.backend.cpu.math.types import fused, horner


def sinh_and_cosh(bound: str, core: str, power: str, coefficients: str) -> dict[str, str]:
    """Bodies of both. Infinite from ``bound`` on; ``core`` declares n and the parts of ``power``, exp(x) / 2^n.

    coefficients: of p, highest power first, in sinh(x) = x + x^3 p(x^2) for |x| < 1.
    """
    half = (
        f"  $V a = tm_abs_$V(x), signed_x = x;\n  x = tm_atmost_$V(a, tm_splat_$V({bound}));\n"
        + core
        + f"  $V e = tm_scale_$V({power}, n - 1);\n"
    )
    sinh = (
        "  $V s = a * a;\n"
        + horner("p", "s", coefficients)
        + f"  $V y = tm_select_$V(a < 1, {fused('a * s', 'p', 'a')}, e - 0.25$f / e);\n"
        + "  return tm_copysign_$V(y, signed_x);"
    )
    return {"sinh": half + sinh, "cosh": half + "  return e + 0.25$f / e;"}
