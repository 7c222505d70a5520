"""Cards by their names, for `--gpu a100-80gb,rtx4090`: the table in cards.def, and what it does not say.

A card is a name and a number of bytes. A size that the user writes is a card without a name. This file runs nothing; several.py asks about several
cards at once.
"""
import difflib
import functools
import os
import re
from typing import NamedTuple, Optional

from cenote.base import quantity
from cenote.launch import command_line

MIB = 1 << 20
TABLE, PRICES = (os.path.join(os.path.dirname(__file__), name) for name in ("cards.def", "prices.def"))
PRICED = {"akash": "the least that akash.network named on 2026-09-20"}  # the columns of prices.def
SIMULATED_SM = "9.0"  # the compute capability that the simulated GPU reports: an H100's
CARDS_MAX = 16
ENOUGH_MAX = 3
LESS_THAN_SMI = 23  # thousandths that a program gets less than nvidia-smi shows, at most: see cards.def
LOOKS_LIKE_GIB = 1024  # a bare number below this was meant in GiB
MAKER = re.compile(r"nvidia|geforce|rtx|blackwell|(server|workstation)edition")  # in a card's full name: two cards that are known differ in more
COUNTED = re.compile(r"(?:([1-9][0-9]?)x(?=[a-z]|[0-9]{4}))?(.+?)(?:x([1-9][0-9]?))?", re.ASCII)  # 2xl4, l4x2
AMD = re.compile(r"(amd)?(instinct)?mi[0-9]{2,3}.*|amd.*|(amd)?radeon.*")


class Card(NamedTuple):
    name: str  # empty: a size
    capacity: int  # bytes that are simulated
    sm: str = ""
    is_by_smi: bool = False  # the capacity is nvidia-smi's: a program gets somewhat less
    times: int = 0  # of such cards in the machine: l4x2; 0: not said
    hourly: float = 0.0  # dollars, for one; 0: not asked for, or not known

    @property
    def title(self) -> str:
        return self.name or quantity.write_size(self.capacity)

    @property
    def full_title(self) -> str:
        return f"{self.name} ({quantity.readable(self.capacity)})" if self.name else self.title

    @property
    def sure(self) -> int:
        """Bytes that a program gets at least."""
        return self.capacity - (self.capacity * LESS_THAN_SMI // 1000 if self.is_by_smi else 0)


@functools.cache
def table() -> dict[str, Card]:
    found = {}
    with open(TABLE, encoding="utf-8") as file:
        for line in file:
            if line.strip() and not line.startswith("#"):
                name, cuda, smi, sm, *_ = line.split()
                found[name] = Card(name, int(smi if cuda == "-" else cuda) * MIB, sm, cuda == "-")
    return found


@functools.cache
def prices(of: str) -> dict[str, float]:
    with open(PRICES, encoding="utf-8") as file:
        rows = [line.split() for line in file if line.strip() and not line.startswith("#")]
    return {row[0]: float(row[1 + list(PRICED).index(of)]) for row in rows}


def priced(card: Card, of: Optional[str]) -> Card:
    return card._replace(hourly=prices(of).get(card.name, 0.0)) if of else card


def per_hour(text: str) -> str:
    return text if text in PRICED else command_line.refuse(f"{text[:40]!r} is no list of prices; there is {', '.join(PRICED)}")


def plain(name: str) -> str:
    return MAKER.sub("", "".join(character for character in name.lower() if character.isalnum()))


def named(text: str) -> Optional[Card]:
    """By its name, however it is spelled: RTX 4090, rtx-4090, NVIDIA GeForce RTX 4090, 4090."""
    return {plain(name): card for name, card in table().items()}.get(plain(text))


def counted(text: str) -> Optional[Card]:
    """By its name, and how many: l4x2, 2xL4."""
    match = COUNTED.fullmatch(text.lower().replace(" ", ""))
    card = named(match[2]) if match else None
    return card._replace(times=int(match[1] or match[3])) if match and card and bool(match[1]) != bool(match[3]) else None


def read(text: str) -> Card:
    """A size or a name. ArgumentTypeError with a sentence for the user for anything else."""
    card = named(text) or counted(text)
    if card is not None:
        return card
    try:
        size = quantity.read_size(text)
    except ValueError:
        if AMD.fullmatch("".join(character for character in text.lower() if character.isalnum())):
            command_line.refuse(f"{text[:40]!r} is a card of AMD's: the simulated GPU is one of NVIDIA's, and PyTorch for ROCm has other libraries, "
                                "whose memory is not known here")
        command_line.refuse(f"{text[:40]!r} is neither a size such as 80GiB nor a card that is known: {nearest(text)}; "
                            "for another card give its memory: --gpu 16GiB (2 % less than nvidia-smi shows)")
    if text.isdecimal() and 0 < size < LOOKS_LIKE_GIB:
        command_line.refuse(f"{text[:40]!r} is {size} bytes: was {size}GiB meant?")
    return Card("", command_line.capacity(text))


def nearest(text: str) -> str:
    wanted = plain(text)
    known = {plain(name): name for name in table()}
    close = [name for plain_name, name in known.items() if wanted and (plain_name.startswith(wanted) or wanted in plain_name)]
    close += [known[name] for name in difflib.get_close_matches(wanted, known, 4, 0.5) if known[name] not in close]
    return ", ".join(close[:4]) or "there are " + ", ".join(table())


def enough(bytes: int, most: int = ENOUGH_MAX) -> list[Card]:
    """The smallest cards that have so much, of each size one."""
    by_size = {card.sure: card for card in reversed(table().values()) if card.sure >= bytes}
    return [by_size[size] for size in sorted(by_size)[:most]]


def known() -> str:
    """`--gpu list`."""
    rows = [f"  {card.name:<14}{quantity.readable(card.capacity):>10}{', as nvidia-smi shows it' if card.is_by_smi else ''}"
            for card in sorted(table().values(), key=lambda card: card.capacity)]
    return "\n".join(["cards that --gpu knows, and the memory that a program finds there; for another card give a size: --gpu 16GiB", *rows])


def read_list(text: str) -> list[Card]:
    cards = [read(part.strip()) for part in text.split(",")]
    if len(cards) > CARDS_MAX:
        command_line.refuse(f"{len(cards)} cards, and at most {CARDS_MAX} at once")
    return list({(card.title, card.times): card for card in cards}.values())


def devices(cards: list[Card], asked: Optional[int]) -> Optional[int]:
    """How many there are: `asked` for by --devices, or part of the names. ArgumentTypeError if they contradict each other."""
    counts = {card.times for card in cards} | ({asked} if asked is not None else set())
    if counts <= {0}:
        return None
    if len(counts - {0}) > 1 or (asked is None and 0 in counts):
        command_line.refuse("all cards of one command have the same number of devices: name them alike, or leave the number to --devices")
    return command_line.devices(str(max(counts)))


def of_other_kernels(cards: list[Card]) -> list[Card]:
    """A program that chooses kernels by the card takes those of an H100."""
    return [card for card in cards if card.sm and card.sm != SIMULATED_SM]


def caveats(cards: list[Card]) -> list[str]:
    """What of these cards is not simulated."""
    lines = []
    others = of_other_kernels(cards)
    if others:
        lines.append(f"of these cards only the memory is simulated: a program sees an H100, of compute capability {SIMULATED_SM}, and takes the "
                     f"kernels for that ({', '.join(f'{card.name} has {card.sm}' for card in others)})")
    by_smi = [card.name for card in cards if card.is_by_smi]
    if by_smi:
        lines.append(f"for {', '.join(by_smi)} only what nvidia-smi shows is known: a program gets 0.4 to 2.3 % less on the cards where both are "
                     "known")
    return lines


def price_lines(cards: list[Card], of: Optional[str]) -> list[str]:
    if of is None:
        return []
    lacking = [card.title for card in cards if not card.hourly]
    return [f"per hour: {PRICED[of]}, for one card" + (f"; no price of {', '.join(lacking)}" if lacking else "")]
