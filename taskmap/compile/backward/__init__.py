"""Forward and backward graphs of one step: where AOTAutograd's joint graph is cut, and what passes between its parts.

    partition    forward and backward, where the program overwrites its inputs
    saved        the strides of what forward saves for backward

May import: `compile.aliases` and `graph`.
"""
