"""The first lines of a verdict: the answer, a bar of the card, what holds most, the smallest change, what was not seen. verdict.py has the rest (-v).

Each line is one that a user acts on. Runs nothing.
"""
import re
from typing import Any, Optional, Sequence

from cenote.base import source
from cenote.base.quantity import readable as size
from cenote.fit import bar, cards, for_now, generated, observed, replays, verdict
from cenote.fit.bar import Part
from cenote.fit.outcome import DECIDING, Outcome
from cenote.fit.verdict import Answer

HOLDERS_MAX = 3
TEXT_MAX = 80  # of a line of the program
MORE = "all of it: -v"
WORDS = {  # of a kind in a bar: its letter and its name. What is not here is "other".
    "parameters": ("P", "parameters"), "gradients": ("G", "gradients"), "optimizer state": ("O", "optimizer state"), "KV cache": ("K", "KV cache"),
    "activations": ("A", "activations"), "gradients of activations": ("A", "activations"), "activations, computed again": ("A", "activations"),
    "inputs": ("I", "inputs"), "buffers": ("B", "buffers")}
OTHER = ("T", "other tensors")
KEPT, CONTEXT = ("k", "kept by the allocator"), ("c", "context")
OF_STATE = ("parameters", "gradients", "optimizer state", "buffers")  # such a kind is one holder: its parts are as many as the model's
OF_KIND = ("optimizer.step()",)  # names that say what the kind says
TENSORS = {"outside of modules": "tensors"}
LINE = re.compile(r":\d+$")  # a name that is a line of the program
LOGITS = ("lm_head", "logits")  # the module that makes them, in most models of Transformers


def kind(name: str) -> str:
    return WORDS.get(name, OTHER)[1]


# --- the bar

def parts(figures: dict[str, Any]) -> list[Part]:
    """Of a device at its peak, in order of size."""
    found: dict[tuple[str, str], int] = {}
    for name, bytes in (figures.get("kinds") or {}).items():
        word = WORDS.get(name, OTHER)
        found[word] = found.get(word, 0) + bytes
    unknown = figures["live_peak"] - sum(found.values())
    if unknown > 0:
        found[OTHER] = found.get(OTHER, 0) + unknown
    ordered = sorted(found.items(), key=lambda part: -part[1])
    rest = {KEPT: max(figures["reserved_peak"] - figures["live_peak"], 0), CONTEXT: figures["others"]}
    return [Part(*word, bytes) for word, bytes in (*ordered, *rest.items()) if bytes]


def bar_lines(evidence: Outcome, capacity: int, has_kept: bool = True, limit: str = "the card ends") -> list[str]:
    """`has_kept`: with what the allocator keeps beside live tensors. `limit`: what the capacity is."""
    worst = evidence.worst()
    return bar.lines([part for part in parts(worst[1]) if has_kept or part.letter != KEPT[0]], capacity, limit) if worst is not None else []


# --- what holds most

def place(row: dict[str, Any]) -> str:
    """Layers as one: `layers.*` has what its modules have."""
    name = str(row["name"])
    if name.startswith("outside modules"):
        return row["line"] or "no line that is known"
    if LINE.search(name):
        return name
    words = ["*" if word.isdecimal() else word for word in name.split(".")]
    star = next((at for at, word in enumerate(words) if "*" in word), len(words) - 1)
    return ".".join(words[:star + 1])


def holders(figures: dict[str, Any]) -> list[tuple[str, int]]:
    """In words that users have, and bytes; the most first."""
    found: dict[str, int] = {}
    for name, bytes in (figures.get("kinds") or {}).items():
        if name in OF_STATE:
            found[name] = bytes
    for row in (figures.get("names") or {"patterns": []})["patterns"]:
        if row["kind"] in OF_STATE:
            continue
        of, what = place(row), kind(row["kind"])
        if what == "activations" and of.rpartition(".")[2] in LOGITS:
            what = "logits"
        elif what == OTHER[1]:
            what = "" if of == row["kind"] else row["kind"] if of in OF_KIND else TENSORS.get(row["kind"], row["kind"])
        key = what if of in OF_KIND else f"{what} of {of}" if what and of != what else of
        found[key] = found.get(key, 0) + row["bytes"]
    return sorted(found.items(), key=lambda one: -one[1])


def holder_lines(evidence: Outcome) -> list[str]:
    worst = evidence.worst()
    most = holders(worst[1])[:HOLDERS_MAX] if worst is not None else []
    where = ""
    if worst is not None and sum(len(report["devices"]) for report in evidence.used) > 1:
        where = f" on {'' if worst[0]['rank'] is None else 'rank ' + worst[0]['rank'] + ', '}cuda:{worst[2]}, which has most"
    return [f"  most{where}: {', '.join(f'{name} {size(bytes)}' for name, bytes in most)}"] if most else []


# --- the answer

def run_out(failure: dict[str, Any]) -> str:
    frame = verdict.own_frame(failure)
    module = (failure.get("place") or {}).get("module")
    text = frame["text"] if frame else ""
    text = f": {text if len(text) <= TEXT_MAX else text[:TEXT_MAX] + ' ...'}" if text else ""
    return f"memory ran out in {verdict.where(failure)}{f', in {module}' if module else ''}{text}"


def upper(evidence: Outcome, played: replays.Replays) -> int:
    """What it may hold on a card, at most."""
    own, needed = played.get(evidence.allocator), evidence.needed()
    return needed + own.high - own.held if own is not None and own.is_wide else needed


def fits_lines(outcome: Outcome, played: replays.Replays) -> list[str]:
    most, needed, capacity = upper(outcome, played), outcome.needed(), outcome.capacity
    ran = verdict.how_far(outcome)
    if outcome.verdict == "grows":
        lines = [f"fits for now: {for_now.short(outcome.paces[0])}",
                 f"  so far {size(needed)} of {size(capacity)}, {size(capacity - needed)} left ({ran})"]
    elif most > capacity:
        lines = [f"fits here: {size(needed)} of {size(capacity)} ({ran}); a card may need up to {size(most)}: do not count on less"]
    else:
        peak = f"{size(needed)} to {size(most)}" if most > needed else size(needed)
        tight = ", which is tight: some programs needed 5 % more on a card" if capacity - most < capacity // verdict.TIGHT else ""
        lines = [f"fits: {peak} of {size(capacity)}, {size(capacity - most)} left{tight} ({ran})"]
    return [*lines, *limit_lines(outcome), *generated.lines(outcome, [("this GPU", capacity)])]


def limit_lines(outcome: Outcome) -> list[str]:
    if not outcome.limit:
        return []
    left = outcome.limit - outcome.held()
    tight = ", which is tight" if left < outcome.limit // verdict.TIGHT else ""
    return [f"  the program lets PyTorch hold {size(outcome.limit)} ({verdict.LIMITS}): {size(max(left, 0))} of that left{tight}"]


def lacks(answer: Answer) -> str:
    """How much is missing, by the run that had room."""
    outcome, largest = answer.outcome, answer.largest
    if largest is None or not largest.fits:
        return verdict.needs_lines(outcome, largest, {})[0].strip() if largest is not None else ""
    missing, is_own = outcome.missing(largest)
    if is_own:
        return (f"needs at least {size(outcome.limit + missing)} beside the context, and lets PyTorch hold {size(outcome.limit)} ({verdict.LIMITS}): "
                f"{size(missing)} more than that")
    if outcome.was_caught:
        return f"without that error it needs at least {size(largest.least_needed())}, {size(missing)} more than there is"
    if not missing:
        return f"needs at least {size(largest.least_needed())}, and what is missing is lost between blocks"
    return f"needs at least {size(largest.least_needed())}, {size(missing)} more than there is"


def failure_lines(answer: Answer, failure: dict[str, Any]) -> list[str]:
    outcome = answer.outcome
    lines = [f"{verdict.WORDS[outcome.verdict]}: {lacks(answer) or run_out(failure)}"]
    if lacks(answer):
        lines.append(f"  {run_out(failure)}")
    if outcome.was_caught:
        lines.append(f"  the error was caught, {verdict.plural(outcome.failures, 'time')}, and the program went on ({verdict.how_far(outcome)})")
    if answer.largest is not None and answer.largest.verdict == "grows":
        lines.append(f"  with room for that, it {for_now.rises(answer.largest.paces[0])}")
    return lines


# --- the smallest change

def change_lines(answer: Answer, advised: Sequence[str]) -> list[str]:
    """What to type or to buy. `advised`: the command for advice."""
    outcome = answer.outcome
    if outcome.fits:
        return end_lines(outcome) or verdict.replay_lines(outcome, answer.played)
    lines = []
    fitting = [verdict.TO_TYPE[one.allocator] for one in answer.others if one.fits and one.allocator in verdict.TO_TYPE]
    if fitting:
        lines.append(f"  to make it fit: {' or '.join(fitting)}")
    largest = answer.largest
    if largest is not None and largest.fits:
        is_own = outcome.missing(largest)[1]
        enough = [] if is_own or largest.grows else cards.enough(max(largest.needed(), outcome.capacity + 1))
        lines += end_lines(largest)
        lines += [f"  a larger card: {', '.join(f'{card.name} ({size(card.sure)})' for card in enough)}"] if enough else []
        lines += [f"  a change to it: {advised[0].partition(': ')[2]}"] if advised else []
        lines += [f"  or let it hold more: {verdict.LIMITS}"] if is_own else verdict.replay_lines(largest, answer.played)
    return lines


def end_lines(outcome: Outcome) -> list[str]:
    """What ends its growth."""
    hint = outcome.paces[0].causes[0]["hint"] if outcome.grows and outcome.paces[0].causes else ""
    return [f"  to make that end: {hint}"] if hint else []


# --- what was not seen

def unknown_lines(evidence: Outcome, other: Optional[Outcome]) -> list[str]:
    """Values that may decide sizes: losses and flags do not."""
    if not evidence.may_differ:
        return []
    reads = [row for row in evidence.unknown_reads if row["kind"] in DECIDING]
    first = reads[0]
    at = f" at {source.shown(first['file'])}:{first['line']}" if first["file"] else ""
    more = f" and at {verdict.plural(len(reads) - 1, 'more place')}" if len(reads) > 1 else ""
    with_others = (f"; with the {other.unknown} ones: {verdict.WORDS[other.verdict]}, {verdict.brief(other)}" if other is not None else
                   ", and no run with other ones was made")
    return [f"  sizes depend on {verdict.READ[first['kind']]}{at}{more}, which cannot be known without a GPU{with_others}"]


def is_short_of_steps(evidence: Outcome) -> bool:
    """Whether nothing can be said about growth."""
    return generated.found(evidence) is None and bool(for_now.unknown_lines(evidence.used, evidence.steps, evidence.was_ended))


def not_seen(evidence: Outcome, unstepped: int, which: list[cards.Card]) -> str:
    missing = observed.missing(evidence.used)
    missing[-1:] = [f"{missing[-1]} (--steps 0 runs the whole script)"] if missing and evidence.was_ended else missing[-1:]
    missing += [f"the state of {verdict.plural(unstepped, 'optimizer')} that did not step"] if unstepped else []
    missing += ["growth"] if is_short_of_steps(evidence) else []
    by_smi = [card.name for card in which if card.is_by_smi]
    missing += [f"what a program gets of {', '.join(by_smi)}, where only nvidia-smi's figure is known (up to 2.3 % less)"] if by_smi else []
    others = [card.name for card in cards.of_other_kernels(which)]
    missing += [f"kernels of {', '.join(others)} (it ran as on an H100)"] if others else []
    if not missing:
        return f"  {MORE}"
    return f"  not seen: {', '.join(missing)}; {MORE}"


# --- all of them

def below_table(needed: Outcome, played: replays.Replays, which: list[cards.Card]) -> list[str]:
    """Of several cards (several.py): what the program needs, on whichever of them."""
    return [*bar_lines(needed, needed.needed()), *holder_lines(needed), *verdict.replay_lines(needed, played), *unknown_lines(needed, None),
            not_seen(needed, needed.unstepped, which)]


def below_search(best: Outcome, which: list[cards.Card]) -> list[str]:
    """Of the largest value that fits (search.py)."""
    return [*bar_lines(best, best.capacity), *holder_lines(best), *unknown_lines(best, None), not_seen(best, best.unstepped, which)]


def room(answer: Answer) -> int:
    """Where the bar ends: the card, or what the program allows itself."""
    outcome, largest = answer.outcome, answer.largest
    if largest is not None and largest.fits and outcome.missing(largest)[1]:
        worst = largest.worst()
        return outcome.limit + (int(worst[1]["others"]) if worst is not None else 0)
    return outcome.capacity


def text(program: Sequence[str], answer: Answer, devices: int, card: cards.Card, advised: Sequence[str]) -> str:
    outcome, evidence = answer.outcome, answer.evidence
    lines = ["", verdict.headline(program, outcome, devices, card.full_title)]
    if outcome.verdict == "unknown":
        lines.append(f"no verdict: {verdict.why_unknown(outcome)}")
        if outcome.failure is not None:
            lines.append(f"  memory had run out before, in {verdict.where(outcome.failure)}, and the script went on")
        return "\n".join([*lines, *verdict.last_words(outcome)])
    if answer.verdict == "depends":
        lines.append("depends on values that cannot be known:")
    failure = outcome.failure
    lines += failure_lines(answer, failure) if failure is not None else fits_lines(outcome, answer.played)
    lines += for_now.late_lines(evidence.used)
    if failure is None or answer.largest is None or answer.largest.fits:  # else no run tells what it needs
        is_lost = answer.largest is not None and not outcome.missing(answer.largest)[0]  # between blocks: that is what the allocator keeps
        end = room(answer)
        limit = "the card ends" if end == outcome.capacity else "what it lets itself hold, and the context"
        lines += [*bar_lines(evidence, end, failure is None or is_lost, limit), *holder_lines(evidence)]
    lines += change_lines(answer, advised)
    lines += unknown_lines(evidence, answer.other)
    unstepped = (answer.largest or outcome).unstepped
    return "\n".join([*lines, not_seen(evidence, unstepped, [card])])
