"""Strategies: whole schedules as values, each in a file of at most 50 lines. `docs/design/schedules-as-values.md`."""
