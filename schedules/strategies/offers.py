"""The option ``strategies``: values that a user gives, as offers for the groups of a model."""

from __future__ import annotations

from collections.abc import Sequence

from taskmap.ir.decompose.strategy import Strategy
from taskmap.ir.errors import InvalidOptionError
from taskmap.schedules.strategies.offer import OfferedStrategy

_WANTED = "It takes a list of finished trees, or of functions def s(m, n, k) that return one."


def offers_of(strategies: Sequence[object]) -> tuple[OfferedStrategy, ...]:
    """The offers. Raises InvalidOptionError for a value that is not a strategy."""
    return tuple(_offer(number, given) for number, given in enumerate(strategies))


def _offer(number: int, given: object) -> OfferedStrategy:
    given = getattr(given, "make", given) if getattr(given, "signature", None) is not None else given  # @taskmap.kernel
    name = f"strategies[{number}]" if isinstance(given, Strategy) else getattr(given, "__name__", "")
    offer = OfferedStrategy(name, given)  # type: ignore[arg-type]  # checked here
    why = offer.why_no_strategy()
    if why:
        shown = f"strategies[{number}]" if isinstance(given, Strategy) else repr(given)
        raise InvalidOptionError(f"option 'strategies' cannot contain {shown}", why=f"{why}.", hint=_WANTED)
    return offer
