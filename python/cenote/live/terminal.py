"""The screen of `cenote top` in a terminal, redrawn each second, and its keys. Curses of the standard library; colours where the terminal has them.

    drawn -> a key: drawn at once -> a second is over: another moment, drawn -> ... -> q: the terminal is as it was
"""
from __future__ import annotations

import curses
import locale
import os
import time
from contextlib import suppress
from typing import Optional

from cenote.live import boards, screen
from cenote.live.moment import Member, Moment, Watcher
from cenote.live.screen import State

COLOURS = {screen.USED: curses.COLOR_GREEN, screen.CACHED: curses.COLOR_YELLOW, screen.ASLEEP: curses.COLOR_BLUE, screen.BESIDE: curses.COLOR_MAGENTA,
           screen.BAD: curses.COLOR_RED}
ATTRIBUTES = {screen.BOLD: curses.A_BOLD, screen.DIM: curses.A_DIM, screen.CHOSEN: curses.A_REVERSE}


def snapshot_path(pid: int) -> str:
    """In the user's state folder. The process writes the file, as its own user."""
    folder = os.path.join(os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state"), "cenote")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    return os.path.join(folder, time.strftime(f"snapshot-{pid}-%Y%m%d-%H%M%S.json"))


class Asked:
    """What was wished of a process, until its answer is there."""

    def __init__(self, member: Member, what: str, path: str = "") -> None:
        self.what, self.path, self.pool = what, path, member.pools[0]
        self.before = self.pool.numbers.get("answers", 0)
        self.was_asked = all([boards.wish(pool, what, path if pool is self.pool else f"{path}.{place}" if path else "")
                              for place, pool in enumerate(member.pools)])

    def answer(self, moment: Moment) -> Optional[str]:
        """None: not yet."""
        if not self.was_asked:
            return f"{self.pool.place.pid}: its board cannot be written: are you its user?"
        now = next((pool for _, member in screen.members(moment) for pool in member.pools
                    if (pool.place, pool.slot) == (self.pool.place, self.pool.slot)), None)
        if now is None:
            return f"{self.pool.place.pid} has ended"
        if now.numbers.get("answers", 0) == self.before or now.numbers.get("answers", 0) % 2:
            return None
        if now.numbers.get("error"):
            return f"{self.pool.place.pid}: {self.what}: {now.texts.get('said', '')}"
        if self.path:
            return f"written: cenote view {self.path}"
        went = max(0, self.pool.current("reserved") - now.current("reserved"))
        return f"{self.pool.place.pid}: trimmed, {screen.size(went)} went, {screen.size(now.current('reserved'))} held now"


class Terminal:
    def __init__(self, window: "curses.window", watcher: Watcher, every: float) -> None:
        self.window, self.watcher, self.every = window, watcher, every
        self.encoding = "utf-8" if locale.nl_langinfo(locale.CODESET) == "UTF-8" else "ascii"
        self.state = State(sparks=screen.SPARKS if self.encoding == "utf-8" else screen.PLAIN_SPARKS)
        self.histories: screen.Histories = {}
        self.asked: Optional[Asked] = None
        self.colours = dict(ATTRIBUTES)
        self.moment = self.take()

    def prepare(self) -> None:
        curses.curs_set(0)
        if curses.has_colors():
            curses.use_default_colors()
            for number, (style, colour) in enumerate(COLOURS.items(), 1):
                curses.init_pair(number, colour, -1)
                self.colours[style] = curses.color_pair(number)

    def take(self) -> Moment:
        moment = self.watcher.take()
        screen.remember(self.histories, moment)
        if self.asked and (said := self.asked.answer(moment)) is not None:
            self.state, self.asked = self.state._replace(said=said), None
        chosen = self.chosen(moment)
        if self.state.opened and chosen and not self.asked:
            for pool in chosen.pools:
                boards.wish(pool, "refresh")
        return moment

    def chosen(self, moment: Moment) -> Optional[Member]:
        every = screen.members(moment)
        return every[min(self.state.chosen, len(every) - 1)][1] if every else None

    def draw(self) -> None:
        self.window.erase()
        height, width = self.window.getmaxyx()
        for row, line in enumerate(screen.lines(self.moment, self.histories, self.state, width)[:height]):
            column = 0
            for text, style in line:
                shown = text[:max(0, width - 1 - column)].encode(self.encoding, "replace").decode(self.encoding)
                if shown:
                    with suppress(curses.error):  # the window has become smaller meanwhile
                        self.window.addstr(row, column, shown, self.colours.get(style, 0))
                column += len(shown)
        self.window.refresh()

    def ask(self, what: str) -> None:
        member = self.chosen(self.moment)
        if member is None or self.asked:
            return
        try:
            path = snapshot_path(member.person.pid) if what == "snapshot" else ""
        except OSError as error:
            self.state = self.state._replace(said=f"no folder for snapshots: {error}")
            return
        self.asked = Asked(member, what, path)
        self.state = self.state._replace(said=f"{member.person.pid}: {what}: at its next call ...")

    def press(self, key: int) -> bool:
        """False: the user has had enough."""
        state, last = self.state, max(0, len(screen.members(self.moment)) - 1)
        if key in (ord("q"), 3):
            return False
        if key in (27, curses.KEY_BACKSPACE) or state.helps:
            self.state = state._replace(helps=False, opened=False)
        elif key in (ord("h"), ord("?")):
            self.state = state._replace(helps=True)
        elif key in (curses.KEY_DOWN, ord("j")):
            self.state = state._replace(chosen=min(last, state.chosen + 1))
        elif key in (curses.KEY_UP, ord("k")):
            self.state = state._replace(chosen=max(0, min(last, state.chosen) - 1))
        elif key in (curses.KEY_ENTER, 10, 13):
            self.state = state._replace(opened=not state.opened)
            self.moment = self.take()
        elif key == ord("p"):
            self.state = state._replace(peaks=not state.peaks)
        elif key in (ord("s"), ord("t")):
            self.ask("snapshot" if key == ord("s") else "trim")
        return True

    def run(self) -> None:
        self.prepare()
        due = time.monotonic() + self.every
        while True:
            self.draw()
            self.window.timeout(max(0, int(1000 * (due - time.monotonic()))))
            key = self.window.getch()
            if key != -1 and not self.press(key):
                return
            if time.monotonic() >= due:
                due = time.monotonic() + self.every
                self.moment = self.take()


def show(watcher: Watcher, every: float) -> None:
    os.environ.setdefault("ESCDELAY", "25")
    locale.setlocale(locale.LC_ALL, "")
    curses.wrapper(lambda window: Terminal(window, watcher, every).run())
