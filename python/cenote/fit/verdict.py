"""Makes the verdict of `cenote dry-run` from its runs (outcome.py), as text and as JSON. Runs nothing.

The answer to the question is the verdict of its first run, or "depends": values that cannot be known decide.
"""
import os
import signal
from typing import Any, NamedTuple, Optional, Sequence

from cenote.base import quantity, source
from cenote.base.quantity import MIB, readable as size
from cenote.fit import cards, for_now, generated, named, observed, replays, search_room
from cenote.fit.outcome import Outcome

NAMED_LEAST = 8 * MIB  # smaller parts are not listed
TIGHT = 20  # a verdict is tight if less than 1/20 of the card is left: bench/accuracy has programs that needed so much more on a card
ROWS_MAX = 16  # of devices and ranks in the list

READS_MAX = 8  # places at which unknown values were read that are listed
WORDS = {"fits": "fits", "grows": "fits for now", "caught": "fits after it caught an out of memory", "fits not": "does not fit",
         "unknown": "no verdict", "depends": "depends on values"}
EVIDENCE = ("fits", "grows", "caught", "fits not")
SHOWN = {"evaluation": "forward without gradients"}  # phases: a teacher has it in each step, where no evaluation was seen
LIMITS = "set_per_process_memory_fraction"
READ = {"number": "a number", "flag": "a flag", "copy": "a copy", "count": "a count", "loss": "a loss", "scaler": "a flag of GradScaler"}
NAMES = {"native": "PyTorch's own allocator", "expandable": "expandable segments"}
TO_TYPE = {"native": "PyTorch's own, with nothing set", "expandable": "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", "cenote": "CENOTE=on"}

NOT_KNOWN = """not known without a GPU: what kernels would compute (values that are read back are zeros or stale, so sizes and loops that depend on
them may differ); workspaces of cuBLAS, cuDNN and NCCL, and the context, are models; nothing else is on the card. docs/dry-run.md has more."""


class Answer(NamedTuple):
    """All runs of one question."""

    outcome: Outcome
    largest: Optional[Outcome]  # on the largest simulated GPU
    others: list[Outcome]  # under other allocators
    other: Optional[Outcome]  # with other values where they cannot be known
    played: replays.Replays = {}  # of the evidence

    @property
    def evidence(self) -> Outcome:
        """The run that tells what the program needs."""
        return self.largest if self.largest is not None and self.largest.fits else self.outcome

    @property
    def verdict(self) -> str:
        """A run that ended without a verdict is no evidence."""
        if self.other is not None and self.outcome.verdict in EVIDENCE and self.other.verdict in EVIDENCE:
            if (self.outcome.verdict == "fits not") != (self.other.verdict == "fits not"):
                return "depends"
        return self.outcome.verdict


# --- parts of lines

def plural(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def parts(figures: dict[str, int]) -> str:
    ordered = sorted(((SHOWN.get(name, name), bytes) for name, bytes in figures.items()), key=lambda part: -part[1])
    named = [f"{name} {size(bytes)}" for name, bytes in ordered if bytes >= NAMED_LEAST] or [f"{name} {size(bytes)}" for name, bytes in ordered[:3]]
    return ", ".join(named)


def own_frame(failure: dict[str, Any]) -> Optional[dict[str, Any]]:
    """The innermost line of the user's own code."""
    return next((one for one in failure["stack"] if one["is_own"]), None)


def at(frame: dict[str, Any]) -> str:
    return f"{source.shown(frame['file'])}:{frame['line']}"


def where(failure: dict[str, Any]) -> str:
    frame = own_frame(failure) or next(iter(failure["stack"]), None)
    phase = f", {SHOWN.get(failure['phase'], failure['phase'])}" if failure["phase"] != "outside" else ""
    place = f", at {at(frame)}" if frame else ""
    when = f"token {failure['token']:,}" if failure.get("token") else f"step {failure['step']}"
    return f"{when}{phase}{place}"


def brief(outcome: Outcome) -> str:
    """Half a line."""
    if outcome.verdict == "unknown":
        return why_unknown(outcome)
    failure, worst = outcome.failure, outcome.worst()
    if failure is not None:
        return f"memory ran out in {where(failure)}"
    assert worst is not None
    until = f"; {for_now.short(outcome.paces[0])}" if outcome.verdict == "grows" else ""
    return f"peak {size(outcome.needed())} ({size(worst[1]['live_peak'])} live){until}"


def how_it_ended(status: int) -> str:
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"


def told(error: dict[str, Any], outcome: Outcome) -> str:
    frame = next((one for one in error["stack"] if one["is_own"]), None)
    place = f" at {at(frame)}" if frame else ""
    text = error["text"].splitlines()[0] if error["text"] else ""
    return (f"the script ended with {error['type']}{place}{': ' if text else ''}{text[:200]}, in step {outcome.steps + 1}"
            f"{too_few_devices(error, outcome)}")


def too_few_devices(error: dict[str, Any], outcome: Outcome) -> str:
    if "invalid device ordinal" not in error["text"]:
        return ""
    most = max((int(report["ranks"]) for report in outcome.reports if str(report.get("ranks") or "").isdecimal()), default=0)
    here = plural(outcome.devices, "device")
    if most > outcome.devices:
        return f" ({plural(most, 'rank')}, {here}: add --devices {most})"
    return f" ({here}: add --devices with as many as it uses)"


def why_unknown(outcome: Outcome) -> str:
    if outcome.stopped:
        return f"it still ran, in step {outcome.steps + 1}, when its time was over: {outcome.stopped}"
    cannot = next((report["cannot"] for report in outcome.reports if report.get("cannot")), "")
    if cannot:
        return f"{cannot}; `--allocator native` needs none"
    if outcome.ranks_errors:
        report = outcome.ranks_errors[0]
        return f"rank {report['rank']}: {told(report['error'], outcome)}"
    if outcome.errors and not outcome.was_ended:
        return told(outcome.errors[0], outcome)
    if outcome.status and not outcome.was_ended:
        return f"the script ended with {how_it_ended(outcome.status)}" + (f", in step {outcome.steps + 1}" if outcome.used else "")
    if outcome.is_idle:
        return "it made no step, and another run did"
    if not outcome.reports:
        return "the script did not import a PyTorch with CUDA"
    return "the script used no GPU"


def last_words(outcome: Outcome) -> list[str]:
    return ["  it printed last:", *("    " + line for line in outcome.tail.splitlines()[-6:])] if outcome.tail.strip() else []


# --- the verdict as text

def headline(program: Sequence[str], outcome: Outcome, devices: int, card: str) -> str:
    name = " ".join(program[:2]) if program[0] == "-m" else program[1] if program[0] == "--" else program[0]
    if outcome.world is not None:
        ran = sorted({int(report["rank"]) for report in outcome.reports})
        named = f"{plural(len(ran), 'rank')} ({', '.join(map(str, ran[:ROWS_MAX]))})" if len(ran) > 1 else f"rank {ran[0] if ran else '?'}"
        return (f"--- cenote dry-run {source.shown(name)}: {named} of {outcome.world:,}, {devices} a node, "
                f"simulated GPUs of {card}, {NAMES.get(outcome.allocator, outcome.allocator)} ---")
    gpus = f"{devices} GPUs of {card} each" if devices > 1 else f"GPU of {card}"
    return f"--- cenote dry-run {source.shown(name)}: simulated {gpus}, {NAMES.get(outcome.allocator, outcome.allocator)} ---"


def peak_lines(outcome: Outcome) -> list[str]:
    worst = outcome.worst()
    if worst is None:
        return []
    report, figures, number = worst
    most = f"rank {report['rank']} has most: " if outcome.world is not None and len(outcome.used) > 1 else ""
    lines = [f"  {most}peak in step {figures['peak_step']}: {size(figures['live_peak'])} live, "
             f"{size(figures['reserved_peak'])} held by the allocator, {size(figures['others'])} context and others"]
    for title, name in (("kind", "kinds"), ("phase", "phases")):
        if figures.get(name):
            lines.append(f"    by {title + ':':<6} {parts(figures[name])}")
    return lines + named.lines(figures.get("names"), "at the peak")


def device_lines(outcome: Outcome) -> list[str]:
    rows = [(report, number, figures) for report in outcome.used for number, figures in report["devices"].items()]
    if len(rows) < 2:
        return []
    lines = [f"  {'rank ' + report['rank'] if report['rank'] is not None else 'process ' + str(report['pid'])}, cuda:{number}: "
             f"{size(figures['live_peak'])} live, {size(figures['reserved_peak'])} held" for report, number, figures in rows[:ROWS_MAX]]
    return lines + ([f"  and {len(rows) - ROWS_MAX} more"] if len(rows) > ROWS_MAX else [])


def how_far(outcome: Outcome) -> str:
    tokens = generated.found(outcome)
    if tokens is not None and outcome.was_ended:
        return generated.how_far(tokens)
    if outcome.was_ended:
        return f"{plural(outcome.steps, 'step')} of the optimizer, then ended"
    return f"to its end, {plural(outcome.steps, 'step')} of an optimizer" if outcome.steps else "to its end, no step of an optimizer"


def fits_lines(outcome: Outcome, played: replays.Replays) -> list[str]:
    needed = outcome.needed()
    first = f"{size(needed)} of {size(outcome.capacity)}, {size(outcome.capacity - needed)} left ({how_far(outcome)})"
    lines = [f"fits for now: {for_now.short(outcome.paces[0])}", f"  peak so far {first}"] if outcome.verdict == "grows" else [f"fits: peak {first}"]
    held = outcome.held() if outcome.limit else 0
    if outcome.limit:
        lines.append(f"  the program lets PyTorch hold {size(outcome.limit)} ({LIMITS}): {size(max(outcome.limit - held, 0))} of that left")
    if outcome.capacity - needed < outcome.capacity // TIGHT or outcome.limit - held < outcome.limit // TIGHT:
        lines.append("  that is tight: some programs needed 5 % more on a card than in a dry run (docs/accuracy.md)")
    lines += generated.lines(outcome, [("this GPU", outcome.capacity)])
    return lines + range_lines(outcome, played, outcome.capacity) + growth_lines(outcome) + peak_lines(outcome) + device_lines(outcome)


def growth_lines(outcome: Outcome) -> list[str]:
    late = for_now.late_lines(outcome.used)
    if outcome.paces:
        late = [line for pace in outcome.paces[:ROWS_MAX] for line in for_now.lines_of(pace, outcome.allocator)] + late
        if outcome.grows:
            return late
    unknown = for_now.unknown_lines(outcome.used, outcome.steps, outcome.was_ended) if generated.found(outcome) is None else []
    return late + for_now.told_lines(outcome.used) + unknown


def failure_lines(outcome: Outcome, failure: dict[str, Any]) -> list[str]:
    lines = [f"{WORDS[outcome.verdict]}: memory ran out in {where(failure)}"]
    frame = own_frame(failure)
    if frame and frame["text"]:
        lines.append(f"    {frame['text'][:120]}")
    lines += named.place_lines(failure.get("place"))
    inner = failure["stack"][0] if failure["stack"] else None
    if inner and inner is not frame:
        lines.append(f"  inside {inner['function']} at {at(inner)}")
    callers = [one for one in failure["stack"] if one["is_own"] and one is not frame][:4]
    lines += [f"  called at {at(one)} in {one['function']}" for one in callers]
    if failure["bytes"] is not None:
        lines.append(asked_line(outcome, failure))
        for title, name in (("kind", "kinds"), ("phase", "phases")):
            if failure[name]:
                lines.append(f"    by {title + ':':<6} {parts(failure[name])}")
        lines += named.lines(failure.get("names"), "when memory ran out", named.LINES_BEFORE_END)
    if outcome.was_caught:
        times = plural(outcome.failures, "time")
        worst = outcome.worst()
        held = f", and held {size(min(outcome.needed(), outcome.capacity))} at most" if worst else ""
        lines.append(f"  the error was caught, {times}: the program went on ({how_far(outcome)}{held})")
    elif outcome.status < 0:
        lines.append(f"  then the program was {how_it_ended(outcome.status)}")
    return lines


def asked_line(outcome: Outcome, failure: dict[str, Any]) -> str:
    """What did not fit, and what the card was full of."""
    asked = size(failure["bytes"]) if failure["bytes"] < 1 << 60 else "an absurd size"
    kept, others = failure["reserved"] - failure["live"], outcome.others_on(failure["device"])
    used = [f"{size(failure['live'])} of tensors", *([f"{size(kept)} kept for later tensors"] if kept >= NAMED_LEAST else []),
            *([f"{size(others)} of CUDA context and libraries"] if others else [])]
    on = f" on cuda:{failure['device']}" if failure["device"] or outcome.devices > 1 else ""
    return f"  asked for {asked}{on}; in use: {' + '.join(used)}, of {size(outcome.capacity)}"


def needs_lines(outcome: Outcome, largest: Optional[Outcome], played: replays.Replays) -> list[str]:
    if largest is None:
        return []
    name = quantity.write_size(largest.capacity)
    if largest.failure is not None:
        failure = largest.failure
        place = f" (there in {where(failure)})" if failure else ""
        return [f"  needs more than {name}, the largest simulated GPU{place}"]
    if largest.verdict == "unknown":
        return [f"  what it needs is not known: on a GPU of {name} {why_unknown(largest)}"]
    least, capacity = largest.least_needed(), outcome.capacity
    missing, is_own = outcome.missing(largest)
    if is_own:
        first = (f"  needs at least {size(outcome.limit + missing)} beside the context, and lets PyTorch hold {size(outcome.limit)} "
                 f"({LIMITS}): {size(missing)} missing")
    elif outcome.was_caught:
        first = f"  without that error it needs at least {size(least)}, {size(missing)} more than there is"
    elif missing:
        first = f"  needs at least {size(least)}: {size(missing)} missing"
    else:
        first = f"  needs at least {size(least)}, which is less than {size(capacity)}: what is missing is lost between blocks"
    lines = [f"{first} (on a GPU of {name}, {how_far(largest)})"]
    if largest.verdict == "grows":
        lines.append(f"  and more with each step: there it {for_now.short(largest.paces[0])}")
    return [*lines, *range_lines(largest, played, largest.capacity), *growth_lines(largest), *peak_lines(largest), *device_lines(largest)]


def enough_lines(needed: Outcome, more_than: int) -> list[str]:
    """The smallest cards on which it would fit, by a run that had room."""
    if needed.verdict != "fits":
        return []
    found = cards.enough(max(needed.needed(), more_than + 1))
    if not found:
        return [f"  no card that is known by name has {size(needed.needed())}"]
    tight = [", tight" if card.sure - needed.needed() < card.sure // TIGHT else "" for card in found]
    return ["  smallest known cards that would be enough: " + ", ".join(f"{card.name} ({size(card.sure)}{word})" for card, word in zip(found, tight))]


def allocator_lines(outcome: Outcome, largest: Optional[Outcome], others: Sequence[Outcome], played: replays.Replays) -> list[str]:
    if not others:
        if outcome.failure is not None and largest is not None and largest.fits:
            is_live = outcome.missing(largest)[0] or not played
            why = "the tensors that are live at one time are too large" if is_live else "each needs more than there is"
            return [f"  no allocator would {'spare it the error' if outcome.was_caught else 'make it fit'}: {why}", *replay_lines(largest, played)]
        return replay_lines(outcome, played)
    rows = [f"    {one.allocator:<15} {WORDS[one.verdict]}: {brief(one)}" for one in (outcome, *others)]
    fitting = [f"{one.allocator} ({TO_TYPE[one.allocator]})" if one.allocator in TO_TYPE else one.allocator for one in (outcome, *others) if one.fits]
    none = "not known" if any(one.verdict == "unknown" for one in others) else "none of these"
    return [f"  under which allocator it fits: {', '.join(fitting) or none}", *rows]


def replay_lines(evidence: Outcome, played: replays.Replays) -> list[str]:
    """With how much the program would get through, each allocator giving back what it can."""
    if evidence.grows:
        return []
    context = evidence.needed() - evidence.held()
    words = {name: f"under {NAMES[name]}" for name in NAMES} | {"cenote": f"with {TO_TYPE['cenote']}"}
    enough = [f"{size(played[name].least + context)} {words[name]}" for name in replays.PLAYED if name in played and played[name].least]
    return [f"  it would get through with {', '.join(enough)}"] if enough else []


def range_lines(evidence: Outcome, played: replays.Replays, capacity: int) -> list[str]:
    """What it may hold on a card, where a number would lie."""
    own, needed = played.get(evidence.allocator), evidence.needed()
    if own is None or not own.is_wide:
        return []
    low, high = needed - (own.held - own.low), needed + (own.high - own.held)
    lines = [f"  on a card it may hold {size(low)} to {size(high)}: sizes of cuDNN's scratch memory and the order of addresses differ there"]
    return lines + ([f"  do not count on less than {size(high)}"] if needed <= capacity < high else [])


def value_lines(outcome: Outcome, other: Optional[Outcome]) -> list[str]:
    """What the program read back that kernels would have computed."""
    if not outcome.keeps_values:
        return [NOT_KNOWN]
    reads, until = outcome.unknown_reads, " until memory ran out" if outcome.verdict == "fits not" else ""
    if not reads:
        all_of_them = "" if outcome.known_reads == 1 else "all of them "
        return [f"it read back {plural(outcome.known_reads, 'value')}{until}, {all_of_them}known without a GPU" if outcome.known_reads else
                f"it read back no values{until}"]
    times = sum(row["times"] for row in reads)
    got = f"a {outcome.unknown} one" if times == 1 else f"{outcome.unknown} ones"
    lines = [f"it read back {plural(times, 'value')}{until} that cannot be known without a GPU, and got {got}:"]
    for row in reads[:READS_MAX]:
        place = f"{source.shown(row['file'])}:{row['line']}" if row["file"] else "at other places"
        lines.append(f"  {place}: {READ[row['kind']]}" + (f", {row['times']} times" if row["times"] > 1 else ""))
    if len(reads) > READS_MAX:
        lines.append(f"  and at {len(reads) - READS_MAX} more places")
    if other is not None:
        lines.append(f"  with the {other.unknown} ones: {WORDS[other.verdict]}, {brief(other)}")
    elif outcome.may_differ:
        lines.append("  no run with other ones was made: sizes may depend on them")
    return lines


def answer_lines(answer: Answer) -> list[str]:
    outcome, failure = answer.outcome, answer.outcome.failure
    lines = []
    if answer.verdict == "depends":
        lines.append("depends on values: the two runs below differ in values that cannot be known")
    if failure is not None:
        lines += failure_lines(outcome, failure)
        lines += growth_lines(outcome) if answer.largest is None or not answer.largest.grows else []
        lines += needs_lines(outcome, answer.largest, answer.played)
    else:
        lines += fits_lines(outcome, answer.played)
    if outcome.verdict == "fits not" and answer.largest is not None and not outcome.missing(answer.largest)[1]:
        lines += enough_lines(answer.largest, outcome.capacity)
    lines += allocator_lines(outcome, answer.largest, answer.others, answer.played)
    evidence = answer.evidence
    lines += search_room.lines(evidence.used)
    lines += observed.lines(evidence.used, evidence.was_ended)
    unstepped = (answer.largest or outcome).unstepped  # a run that ran out of memory may not have come to its first step
    if unstepped:
        lines.append(f"  {plural(unstepped, 'optimizer')} built and never stepped: no state of an optimizer is in these figures")
    return lines + value_lines(evidence, answer.other)


def text(program: Sequence[str], answer: Answer, devices: int, card: str) -> str:
    outcome = answer.outcome
    lines = ["", headline(program, outcome, devices, card)]
    if outcome.verdict != "unknown":
        return "\n".join([*lines, *answer_lines(answer)])
    lines.append(f"no verdict: {why_unknown(outcome)}")
    if outcome.failure is not None:
        lines.append(f"  memory had run out before, in {where(outcome.failure)}, and the script went on")
    return "\n".join([*lines, *last_words(outcome), *peak_lines(outcome), *growth_lines(outcome)])


# --- JSON

def outcome_content(outcome: Outcome) -> dict[str, Any]:
    return {"verdict": outcome.verdict, "allocator": outcome.allocator, "capacity": outcome.capacity, "exit_status": outcome.status,
            "steps": outcome.steps, "ended_after_steps": outcome.was_ended, "needed": outcome.needed(), "least_needed": outcome.least_needed(),
            "caught": outcome.was_caught, "out_of_memory": outcome.failures, "failure": outcome.failure, "processes": outcome.reports,
            "why_unknown": why_unknown(outcome) if outcome.verdict == "unknown" else None,
            "unknown": outcome.unknown, "unknown_reads": outcome.unknown_reads, "known_reads": outcome.known_reads, "stopped": outcome.stopped,
            "optimizers_unstepped": outcome.unstepped, "search_room": search_room.most(outcome.used),
            "growth": [for_now.content(pace) for pace in outcome.paces], "world": outcome.world}


def content(program: Sequence[str], answer: Answer) -> dict[str, Any]:
    outcome, largest = answer.outcome, answer.largest
    return {"program": [os.fspath(part) for part in program], **outcome_content(outcome), "verdict": answer.verdict,
            "missing": outcome.missing(largest)[0] if largest is not None and largest.fits else None,
            "largest": outcome_content(largest) if largest is not None else None, "others": [outcome_content(one) for one in answer.others],
            "replays": {name: one._asdict() for name, one in answer.played.items()},
            "other_values": outcome_content(answer.other) if answer.other is not None else None}
