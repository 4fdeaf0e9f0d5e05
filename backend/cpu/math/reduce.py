"""Reductions of the lanes of a vector to one value, by halves: lane l with lane l + L/2, and so on."""

from __future__ import annotations

from taskmap.backend.cpu.math.types import Vector

# The function that joins two values; max and min give NaN if a lane is NaN, as torch's do.
COMBINE = {"hsum": "add", "hprod": "mul", "hmax": "max", "hmin": "min"}


def reduction(name: str, v: Vector) -> str:
    """`tm_hsum_V(x)`, `tm_hprod_V`, `tm_hmax_V`, `tm_hmin_V`: one element. The 16-bit floats are combined in f32."""
    if v.lanes == 1:
        return v.render("TM_INLINE $T tm_${name}_$V($V x) { return x; }", name=name)
    if v.is_half:
        value = "tm_cast_f32x1_to_${D}x1(tm_${name}_$F(tm_cast_${V}_to_$F(x)))"
        return v.render(f"TM_INLINE $T tm_${{name}}_$V($V x) {{ return {value}; }}", name=name)
    text = "TM_INLINE $T tm_${name}_$V($V x) { return tm_${name}_$H(tm_${op}_$H(tm_lo_$V(x), tm_hi_$V(x))); }"
    return v.render(text, name=name, op=COMBINE[name])
