"""The screen of `cenote top` as lines of text, for a terminal of any width. Draws, and knows neither keys nor terminals.

A line is a list of pieces, each with a style: the terminal shows styles as colours, a file does not have them.
"""
from __future__ import annotations

import time
from collections import deque
from typing import Iterable, Iterator, NamedTuple, Optional, Sequence

from cenote.base.quantity import readable
from cenote.live.boards import Row
from cenote.live.moment import Card, Member, Moment, Other

PLAIN, BOLD, DIM, USED, CACHED, ASLEEP, BESIDE, BAD, CHOSEN = "plain bold dim used cached asleep beside bad chosen".split()
SPARKS, PLAIN_SPARKS = " ▁▂▃▄▅▆▇█", " .,:;-=+#"  # the second: for a terminal without Unicode
KEPT = 240  # moments of a history
ROWS = 8  # of a list in the view of one process
KEYS = (("arrows, j k", "choose a process"), ("enter", "that process: tags, kinds, steps; again: back"), ("p", "peaks in place of what is held now"),
        ("s", "the process writes a snapshot at its next call, for `cenote view`"), ("t", "the process gives free memory back at its next call"),
        ("h ?", "these keys"), ("q", "end"))

Piece = tuple[str, str]
Line = list[Piece]


class History(NamedTuple):
    """What a process held, newest last."""

    reserved: "deque[int]"


Histories = dict[tuple[str, int], History]  # by card and process


class State(NamedTuple):
    """What the user has chosen."""

    chosen: int = 0  # of all members, in the order of the screen
    opened: bool = False
    peaks: bool = False
    helps: bool = False
    said: str = ""  # what became of the last wish
    sparks: str = SPARKS


def members(moment: Moment) -> list[tuple[Card, Member]]:
    return [(card, member) for card in moment.cards for member in card.members]


def size(value: Optional[int]) -> str:
    return "?" if value is None else readable(value).replace(" bytes", " B") if value else "-"


def cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[:max(0, width - 3)] + "..." if width > 3 else text[:width]


def spark(values: Sequence[int], width: int, letters: str) -> str:
    top = max(values)
    return "".join(letters[min(8, 1 + value * 8 // top) if value else 0] for value in list(values)[-width:]).rjust(width)


def bar(card: Card, width: int) -> Line:
    """What is under blocks, what is cached, and what others hold, of the card."""
    beside = max(0, card.used - card.reserved) if card.used is not None else 0
    parts = [(USED, "#", sum(member.awake for member in card.members)), (CACHED, "=", sum(member.cached for member in card.members)),
             (BESIDE, "o", beside)]
    whole, pieces, left = max(1, card.total, sum(value for _, _, value in parts)), [], width
    for style, letter, value in parts:
        cells = min(left, round(width * value / whole))
        left -= cells
        pieces.append((letter * cells, style))
    return [("[", PLAIN), *(piece for piece in pieces if piece[0]), ("." * left, DIM), ("]", PLAIN)]


def card_lines(card: Card, width: int) -> Iterator[Line]:
    used = card.used if card.used is not None else card.reserved
    name = f"GPU {card.number}" if card.number is not None else f"GPU {card.key.split(' ')[-1].removeprefix('0000:')}"
    end = f" {readable(used):>9} of {readable(card.total)}"
    label = cut(f"{name} {card.name or card.key}", max(16, width - 60)).ljust(16)
    yield [(label + " ", BOLD), *bar(card, max(10, width - len(label) - len(end) - 3)), (end, PLAIN)]


COLUMNS = f"{'PID':>7} {'RANK':>4} {'LIVE':>9} {'CACHED':>9} {'ASLEEP':>9} {'STEP':>6} {'GROWTH':>9} "
PEAKS = f"{'PID':>7} {'RANK':>4} {'PEAK LIVE':>9} {'PEAK HELD':>9} {'ASLEEP':>9} {'STEP':>6} {'GROWTH':>9} "
HISTORY_FROM = 45  # columns for a command and its history, from which on the history is shown


def member_line(member: Member, history: Optional[History], width: int, state: State, chosen: bool) -> Line:
    first, second = (member.peak("allocated"), member.peak("reserved")) if state.peaks else (member.current("allocated"), member.cached)
    rank, step, growth = member.rank or "-", member.number("steps") or "-", member.growth
    grows = size(int(growth)) if growth else "-"
    text = f"{member.person.pid:>7} {rank:>4} {size(first):>9} {size(second):>9} {size(member.number('asleep')):>9} {step:>6} "
    ooms = member.number("ooms")
    failed = f"out of memory {ooms} times " if ooms else ""
    room = width - len(COLUMNS) - len(failed)
    line_of_history = spark(history.reserved, 10, state.sparks) + " " if history and room >= HISTORY_FROM else ""
    style = CHOSEN if chosen else PLAIN
    command = cut(short(member.person.command), max(0, room - len(line_of_history)))
    return [(text, style), (f"{grows:>9} ", BAD if growth else style), (failed, BAD), (line_of_history, USED), (command, style)]


def short(command: str) -> str:
    """The script before all else: "python -u project/train.py --lr 1" is "train.py --lr 1"."""
    words = command.split(" ")
    if words[0].startswith("python"):
        begin = next((place for place, word in enumerate(words) if place and not word.startswith("-")), 0)
        words = words[begin:]
    return " ".join([words[0].rpartition("/")[2] or words[0], *words[1:]])


def other_line(other: Other, width: int) -> Line:
    text = f"{other.person.pid:>7} {'':>4} {size(other.held):>9} {'':>9} {'':>9} {'':>6} {'':>9} "
    return [(cut(f"{text}{other.person.user}, without cenote: {short(other.person.command)}", width), DIM)]


def row_lines(title: str, rows: Iterable[Row], width: int, whole: int) -> Iterator[Line]:
    """Those that hold anything, the largest first."""
    held = sorted((row for row in rows if row.current or row.peak), key=lambda row: (row.current, row.peak), reverse=True)
    if held:
        yield [(f"  {title:<24} {'LIVE':>10} {'PEAK':>10} {'BLOCKS':>8}", BOLD)]
    for row in held[:ROWS]:
        cells = min(20, row.current * 20 // max(1, whole))
        text = f"  {cut(row.name or f'no {title.lower()}', 24):<24} {size(row.current):>10} {size(row.peak):>10} {row.blocks:>8} "
        yield [(text, PLAIN), ("#" * min(cells, max(0, width - len(text))), USED)]
    if len(held) > ROWS:
        yield [(f"  and {len(held) - ROWS} more", DIM)]


def detail_lines(card: Card, member: Member, history: Optional[History], state: State, width: int) -> Iterator[Line]:
    """One process: everything that its board says."""
    yield [(f"{member.person.pid} {member.person.command}", BOLD)]
    rank = f", rank {member.rank}" if member.rank else ""
    provider = member.pools[0].texts.get("provider", "")
    yield [(f"  {member.user_of_memory or 'cenote'} of {member.person.user} on {card.name or card.key}, {provider}{rank}", DIM)]
    if history:
        yield [("  held  ", PLAIN), (spark(history.reserved, max(1, min(KEPT, width - 30)), state.sparks), USED),
               (f" {size(member.current('reserved'))}", PLAIN)]
    allocated = member.current("allocated")
    limit = sum(pool.numbers.get("limit", 0) for pool in member.pools)
    known = [("live", allocated), ("cached", member.cached), ("asleep", member.number("asleep")), ("peak live", member.peak("allocated")),
             ("peak held", member.peak("reserved")), ("limit", limit)]
    yield [("  " + ", ".join(f"{name} {size(value)}" for name, value in known if value), PLAIN)]
    driver = sum(pool.figures.get("driver_ns", 0) for pool in member.pools[:1]) / 1e9
    counts = [("waits", "waits"), ("pages made", "pages_created"), ("pages moved", "pages_harvested"), ("out of memory", "ooms")]
    yield [("  " + ", ".join(f"{member.number(name)} {label}" for label, name in counts) + f", {driver:.2f} s in the driver", PLAIN)]
    if member.held is not None:
        yield [(f"  beside cenote (context, libraries): {size(max(0, member.held - member.current('reserved')))}", PLAIN)]
    growth = member.growth
    if growth:
        yield [(f"  each of the last steps left more: {size(int(growth))} a step", BAD)]
    for title, rows in (("KIND", [row for pool in member.pools for row in pool.kinds]), ("TAG", [row for pool in member.pools for row in pool.tags]),
                        ("GROUP", [row for pool in member.pools for row in pool.groups]),
                        ("PHASE", [row for pool in member.pools for row in pool.phases])):
        yield from row_lines(title, rows, width, allocated)


def empty_lines() -> Iterator[Line]:
    yield [("No process that this user may look at has a pool of cenote.", PLAIN)]
    yield [("Start one:  CENOTE=on python train.py", DIM)]
    yield [("       or:  cenote run --sim 80GiB --allocator cenote train.py", DIM)]


def key_lines() -> Iterator[Line]:
    for keys, what in KEYS:
        yield [(f"  {keys:<12}", BOLD), (what, PLAIN)]


def fitted(line: Line, width: int) -> Line:
    """What does not fit a terminal of that width is left out."""
    found: Line = []
    for text, style in line:
        found.append((text[:width], style))
        width -= len(found[-1][0])
    return found


def many(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}es" if what.endswith("s") else f"{count} {what}s"


def listing(moment: Moment, histories: Histories, state: State, width: int) -> Iterator[Line]:
    """All cards, and under each the processes that hold memory of it."""
    number = 0
    for card in moment.cards:
        yield []
        yield from card_lines(card, width)
        if card.members or card.others:
            yield [((PEAKS if state.peaks else COLUMNS) + "COMMAND", DIM)]
        for member in card.members:
            yield member_line(member, histories.get((card.key, member.person.pid)), width, state, number == state.chosen)
            number += 1
        yield from (other_line(other, width) for other in card.others)


def title(moment: Moment, has_keys: bool) -> Line:
    beside = sum(len(card.others) for card in moment.cards)
    counted = f"{many(len(moment.cards), 'GPU')}, {many(len(members(moment)), 'process')}" + (f", {beside} without cenote" if beside else "")
    clock = time.strftime("%H:%M:%S", time.localtime(moment.at))
    unknown = ", contexts not counted" if any(card.used is None for card in moment.cards) else ""
    return [("cenote top ", BOLD), (f"{clock}  {counted}{unknown}", PLAIN), ("   h: keys" if has_keys else "", DIM)]


def lines(moment: Moment, histories: Histories, state: State, width: int) -> list[Line]:
    every = members(moment)
    found = [title(moment, state.chosen >= 0)]
    if state.said:
        found += [[(state.said[at:at + width], BOLD)] for at in range(0, len(state.said), max(1, width))]
    if state.helps:
        found += key_lines()
    elif state.opened and every:
        card, member = every[min(state.chosen, len(every) - 1)]
        found += detail_lines(card, member, histories.get((card.key, member.person.pid)), state, width)
    else:
        found += [] if every else empty_lines()
        found += listing(moment, histories, state, width)
    return [fitted(line, width) for line in found]


def remember(histories: Histories, moment: Moment) -> None:
    for card, member in members(moment):
        history = histories.setdefault((card.key, member.person.pid), History(deque(maxlen=KEPT)))
        history.reserved.append(member.current("reserved"))
