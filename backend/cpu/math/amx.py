"""Tile registers of AMX, one macro for each instruction: the register's number is part of the instruction.

    tm_tile_configure()  tm_tile_release()                     eight tiles of 16 rows of 64 bytes, and none
    tm_tile_load(t, p, s)  tm_tile_store(t, p, s)  tm_tile_zero(t)   rows lie s elements apart
    tm_tdpbf16ps(c, a, b)  tm_tdpb{ss,su,us,uu}d(c, a, b)      c += a · b
    tm_prefetch_line(p)                                        brings a line of memory to the second-level cache
    tm_sim_...                                                 the same on the software model (tile_model.c)

Inline assembly, because built-ins of tiles differ between compilers, and so that no header is included.
"""

from __future__ import annotations

from taskmap.ir.isa.amx import AMX, ROW_BYTES, ROWS, TILES

_PRODUCTS = frozenset(i.family for i in AMX if i.family.startswith("tdp"))
_EACH = (", ".join([str(ROW_BYTES)] * TILES), ", ".join([str(ROWS)] * TILES))
_MACROS = {
    "tile_palette": f"""\
static const struct {{ u8 palette, start, unused[14]; u16 bytes[16]; u8 rows[16]; }} tm_tile_palette
  __attribute__((aligned(64))) = {{1, 0, {{0}}, {{{_EACH[0]}}}, {{{_EACH[1]}}}}};""",
    "tile_configure": '#define tm_tile_configure() __asm__ volatile("ldtilecfg %0" : : "m"(tm_tile_palette))',
    "tile_release": '#define tm_tile_release() __asm__ volatile("tilerelease" : : : "memory")',
    "tile_zero": '#define tm_tile_zero(t) __asm__ volatile("tilezero %%tmm" #t : : )',
    "tile_load": """\
#define tm_tile_load(t, p, s) \\
  __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #t : : "r"(p), "r"((i64)(s) * (i64)sizeof *(p)) : "memory")""",
    "tile_store": """\
#define tm_tile_store(t, p, s) \\
  __asm__ volatile("tilestored %%tmm" #t ", (%0,%1,1)" : : "r"(p), "r"((i64)(s) * (i64)sizeof *(p)) : "memory")""",
    "prefetch_line": "#define tm_prefetch_line(p) __builtin_prefetch(p, 0, 2)",
    **{
        name: f'#define tm_{name}(c, a, b) __asm__ volatile("{name} %%tmm" #b ", %%tmm" #a ", %%tmm" #c : : )'
        for name in _PRODUCTS
    },
}
_SIM, _MODEL = "sim_", "_1"
_MODEL_PARAMETERS = {
    "tile_configure": {"&tm_tile_palette": "const void *palette"},
    "tile_release": {},
    "tile_zero": {"t": "int tile"},
    "tile_load": {"t": "int tile", "p": "const void *from", "(i64)(s) * (i64)sizeof *(p)": "i64 stride"},
    "tile_store": {"t": "int tile", "p": "void *to", "(i64)(s) * (i64)sizeof *(p)": "i64 stride"},
    **{name: {"c": "int c", "a": "int a", "b": "int b"} for name in _PRODUCTS},
}
"""The arguments of each function of the model, as the macro passes them, and their declarations."""


def tile_text(symbol: str) -> str | None:
    """The definition of a macro of tiles, or the declaration of a function of the model, by its name; None for another
    name."""
    name = symbol.removeprefix("tm_")
    if name in _MACROS:
        return _MACROS[name]
    plain = name.removeprefix(_SIM).removesuffix(_MODEL)
    if not name.startswith(_SIM) or plain not in _MODEL_PARAMETERS:
        return None
    passed = _MODEL_PARAMETERS[plain]
    if name.endswith(_MODEL):
        return f"extern void {symbol}({', '.join(passed.values()) or 'void'});"
    macro = ", ".join("s" if "(s)" in x else x for x in passed if not x.startswith("&"))
    return f"#define {symbol}({macro}) {symbol}{_MODEL}({', '.join(passed)})"
