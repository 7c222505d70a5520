"""Texts about a run that `generate()` ended: some of its tokens ran, and the rest was computed (inside/tokens.py). For verdict.py."""
from typing import Any, Optional, Sequence

from cenote.base.quantity import readable as size
from cenote.fit.outcome import Outcome


def found(outcome: Outcome) -> Optional[dict[str, Any]]:
    """Of the process that held most."""
    worst = outcome.worst()
    return worst[0].get("tokens") if worst is not None else None


def how_far(tokens: dict[str, Any]) -> str:
    return f"{tokens['of']:,} tokens: {tokens['run']:,} ran, the last {tokens['of'] - tokens['run']:,} were computed, not run; then ended"


def ends(tokens: dict[str, Any], outcome: Outcome, capacity: int) -> str:
    """When a card is full: at the earliest if nothing that the run held beside live memory serves the tokens to come, at the latest if all does."""
    worst = outcome.worst()
    assert worst is not None
    rooms = capacity - outcome.needed(), capacity - worst[1]["others"] - worst[1]["live"]
    first, last = (int(tokens["of"] + max(room, 0) // tokens["per_token"]) for room in rooms)
    return f"at token {first:,}" if first == last else f"between tokens {first:,} and {last:,}"


def lines(outcome: Outcome, cards: Sequence[tuple[str, int]]) -> list[str]:
    """`cards`: names and capacities."""
    tokens = found(outcome)
    if tokens is None or tokens["computed"] < tokens["of"] - tokens["run"]:
        return []
    told = ["  at most: a sentence may end earlier; what comes after generate() was not seen (--steps 0 runs the whole script)"]
    if tokens["per_token"] <= 0:
        return told
    full = ", ".join(f"{name} {ends(tokens, outcome, capacity)}" for name, capacity in cards if capacity > outcome.needed())
    return [f"  each token takes {size(tokens['per_token'])} more" + (f"; full would be: {full}" if full else ""), *told]
