"""Lowering: passes from a scheduled kernel to one that a code generator can print. The order is in ``pipeline``."""
