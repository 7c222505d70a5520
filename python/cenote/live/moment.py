"""One moment of all cards: which processes hold what of each. Put together from boards (libcenote's counters) and, where it is there, NVML.

A card of a simulated GPU belongs to the processes that name its machine, or to one process alone; NVML knows real cards only. What is not known is
None: a figure that could not be read is not zero.
"""
from __future__ import annotations

import os
import pwd
import time
from contextlib import suppress
from typing import Mapping, NamedTuple, Optional

from cenote.launch import environment
from cenote.live import boards, nvml

JOBS = ("SLURM_JOB_ID", "OMPI_MCA_ess_base_jobid", "PMIX_NAMESPACE", "TORCHELASTIC_RUN_ID")  # what launchers call all ranks of a job
GROWING = 8  # steps that each left some more: then the pool grows


class Person(NamedTuple):
    """What the system says of a process."""

    pid: int
    command: str
    user: str
    job: str  # the same for ranks of one; "": not known
    machine: str  # of its simulated GPU; "": its GPU is real


class Member(NamedTuple):
    """A process with cenote, on one card."""

    person: Person
    pools: tuple[boards.Pool, ...]
    held: Optional[int]  # on the card, cenote's and all else of the process, as NVML says

    @property
    def rank(self) -> str:
        return next((pool.texts["rank"] for pool in self.pools if pool.texts.get("rank")), "")

    @property
    def user_of_memory(self) -> str:
        return next((pool.texts["user"] for pool in self.pools if pool.texts.get("user")), "")

    def current(self, level: str) -> int:
        return sum(pool.current(level) for pool in self.pools)

    def peak(self, level: str) -> int:
        return sum(pool.peak(level) for pool in self.pools)

    def number(self, name: str) -> int:
        return sum(pool.numbers.get(name, 0) for pool in self.pools)

    @property
    def cached(self) -> int:
        """Reserved, and under no block. Blocks that sleep have no memory."""
        return max(0, self.current("reserved") + self.number("asleep") - self.current("allocated"))

    @property
    def awake(self) -> int:
        """Of the card's memory, what is under blocks."""
        return max(0, self.current("reserved") - self.cached)

    @property
    def growth(self) -> Optional[float]:
        """Bytes a step, if each of the last steps left more than the one before. None: it does not grow, or too few steps are over."""
        found = [(notes[-1].live - notes[-GROWING - 1].live) / GROWING for pool in self.pools
                 if len(notes := pool.notes) > GROWING and all(a.live < b.live for a, b in zip(notes[-GROWING - 1:], notes[-GROWING:]))]
        return sum(found) if found else None


class Other(NamedTuple):
    """A process that holds memory beside cenote's."""

    person: Person
    held: Optional[int]


class Card(NamedTuple):
    key: str
    name: str
    uuid: str
    number: Optional[int]  # as nvidia-smi counts; None: of a simulated GPU, or NVML is not there: then as the processes count
    total: int
    used: Optional[int]  # by all processes and the driver
    members: tuple[Member, ...]
    others: tuple[Other, ...]

    @property
    def reserved(self) -> int:
        return sum(member.current("reserved") for member in self.members)


class Moment(NamedTuple):
    at: float  # of time.time()
    cards: tuple[Card, ...]
    has_nvml: bool


def read_file(path: str) -> bytes:
    with suppress(OSError), open(path, "rb") as file:
        return file.read(1 << 20)
    return b""


def text(raw: bytes) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in raw.decode("utf-8", "replace"))


def command_of(pid: int) -> str:
    words = [text(word) for word in read_file(f"/proc/{pid}/cmdline").split(b"\0")[:-1]]
    if not words:
        return text(read_file(f"/proc/{pid}/comm").strip()) or "?"
    return " ".join([os.path.basename(words[0]), *words[1:]])


def user_of(pid: int) -> str:
    try:
        number = os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return "?"
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def variables_of(pid: int) -> dict[str, str]:
    """The environment that the process began with."""
    pairs = (text(item).partition("=") for item in read_file(f"/proc/{pid}/environ").split(b"\0"))
    return {name: value for name, mark, value in pairs if mark}


def machine_of(variables: Mapping[str, str], pid: int) -> str:
    """Of a process's simulated GPU; "": it has none."""
    items = variables.get(environment.SIM, "").split(",")
    named = next((item.partition(":")[2] for item in items if item.startswith("machine:")), f"of process {pid}")
    return named if environment.SIM in variables else ""


def person_of(pid: int) -> Person:
    variables = variables_of(pid)
    name = next((variable for variable in JOBS if variables.get(variable)), "")
    job = f"{name}={variables[name]} {variables.get('MASTER_PORT', '')}".strip() if name else ""
    return Person(pid, command_of(pid), user_of(pid), job, machine_of(variables, pid))


def place_of(bus: tuple[int, int, int]) -> str:
    return "{:04x}:{:02x}:{:02x}.0".format(*bus)


def key_of(pool: boards.Pool, machine: str) -> str:
    """A card, on this machine or a simulated one. Without a place on the bus it is known by its number in the process."""
    bus = nvml.bus_of(pool.texts.get("bus", ""))
    place = place_of(bus) if bus else f"device {pool.numbers.get('device', 0)}"
    return f"{machine} {place}".strip()


def order(member: Member) -> tuple[str, int, int]:
    rank = int(member.rank) if member.rank.isdecimal() else 0
    return member.person.job, rank, member.person.pid


class Watcher:
    """Takes moments. Boards that were found are kept: to look for new ones takes longer than to read these."""

    LOOK_EVERY = 2.0  # s, chosen: so late a new process is seen at most

    def __init__(self) -> None:
        self.places: set[boards.Place] = set()
        self.looked = float("-inf")
        self.persons: dict[int, Person] = {}
        try:
            self.nvml: Optional[nvml.Library] = nvml.Library()
        except OSError:
            self.nvml = None

    def person(self, pid: int) -> Person:
        if pid not in self.persons:
            self.persons[pid] = person_of(pid)
        return self.persons[pid]

    def pools(self) -> list[boards.Pool]:
        """Those that have held anything: PyTorch has a pool for each card that it sees."""
        if time.monotonic() - self.looked >= self.LOOK_EVERY:
            self.looked = time.monotonic()
            self.places = set(boards.find())
            self.persons = {pid: person for pid, person in self.persons.items() if os.path.exists(f"/proc/{pid}")}
        return [pool for place in self.places for pool in boards.read(place) if pool.peak("reserved") or pool.peak("allocated")]

    def take(self) -> Moment:
        by_card: dict[str, dict[int, list[boards.Pool]]] = {}
        for pool in self.pools():
            pid = pool.place.pid
            by_card.setdefault(key_of(pool, self.person(pid).machine), {}).setdefault(pid, []).append(pool)
        machine = machine_of(os.environ, os.getpid())  # NVML answers for the machine that this process is on
        known = {f"{machine} {place_of(card.bus)}".strip(): card for card in self.nvml.cards()} if self.nvml else {}
        cards = [self.card(key, by_card.get(key, {}), known.get(key)) for key in {**known, **by_card}]
        return Moment(time.time(), tuple(sorted(cards, key=lambda card: (card.number is None, card.number or 0, card.key))), self.nvml is not None)

    def card(self, key: str, by_pid: dict[int, list[boards.Pool]], known: Optional[nvml.Card]) -> Card:
        held = known.processes if known else {}
        members = tuple(sorted((Member(self.person(pid), tuple(pools), held.get(pid)) for pid, pools in by_pid.items()), key=order))
        others = tuple(Other(self.person(pid), bytes_) for pid, bytes_ in sorted(held.items()) if pid not in by_pid)
        first = members[0].pools[0] if members else None
        if known:
            return Card(key, known.name, known.uuid, known.number, known.total, known.used, members, others)
        assert first  # a card that NVML does not know is one of a pool
        return Card(key, first.texts.get("card", ""), "", None, first.numbers.get("capacity", 0), None, members, others)
