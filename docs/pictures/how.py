"""Draws how.svg, how cenote works in one figure.

    python docs/pictures/how.py
"""
import pathlib

WIDTH, HEIGHT = 940, 375
INK, FAINT, PAPER = "#222222", "#6b7280", "#ffffff"
A, B, FREE = "#00798c", "#d1495b", "#eef0f2"
SLOT, LEFT_A, LEFT_B, ARENA, STORE = 82, 30, 540, 104, 262
STORY = ("Page 4 lies under no live byte of stream 1 any more: stream 2 gets it mapped where it needs it (bold; cuMemMap), and nothing",
         "is copied. The old mapping stays (dashed): a program that repeats itself comes to need no calls of the driver.")

lines: list[str] = []


def box(x: float, y: float, width: float, height: float, color: str, edge: str = INK, dash: str = "") -> None:
    more = f' stroke-dasharray="{dash}"' if dash else ""
    lines.append(f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="3" fill="{color}" stroke="{edge}"{more}/>')


def text(x: float, y: float, words: str, size: int = 13, color: str = INK, anchor: str = "middle", weight: str = "normal") -> None:
    lines.append(f'<text x="{x}" y="{y}" font-size="{size}" fill="{color}" text-anchor="{anchor}" font-weight="{weight}">{words}</text>')


def mapping(x: float, to: float, color: str, width: float = 1.5, dash: str = "") -> None:
    more = f' stroke-dasharray="{dash}"' if dash else ""
    lines.append(f'<path d="M{x} {ARENA + 40} C{x} {ARENA + 100} {to} {STORE - 60} {to} {STORE}" fill="none" stroke="{color}" '
                 f'stroke-width="{width}"{more}/>')


def arena(left: float, name: str, color: str, slots: int, blocks: list[tuple[float, float, str]]) -> None:
    """Blocks: where they begin and end, in slots, and what stands on them; those without words were freed."""
    text(left, ARENA - 48, name, 14, color, "start", "bold")
    text(left, ARENA - 30, "addresses; blocks packed by 512 bytes", 12, FAINT, "start")
    box(left, ARENA, slots * SLOT, 40, PAPER, FAINT)
    for begin, end, words in blocks:
        box(left + begin * SLOT, ARENA, (end - begin) * SLOT, 26, color if words else FREE, PAPER if words else FAINT, "" if words else "4 3")
        text(left + (begin + end) / 2 * SLOT, ARENA + 18, words or "free", 12, PAPER if words else FAINT)
    for i in range(slots):
        box(left + i * SLOT, ARENA + 26, SLOT, 14, PAPER, FAINT)


def draw() -> str:
    arena(LEFT_A, "arena of stream 1", A, 5, [(0, 1.3, "block"), (1.3, 2.6, "block"), (2.6, 4.3, ""), (4.3, 5, "block")])
    arena(LEFT_B, "arena of stream 2", B, 4, [(0, 0.8, "block"), (0.8, 2.0, "block"), (2.0, 4, "a new block")])
    pages = [LEFT_A + 40 + i * (SLOT + 8) for i in range(8)]
    owner = {0: A, 1: A, 2: A, 3: B, 4: A, 5: B, 6: B, 7: B}
    for i in (0, 1, 2, 4):
        mapping(LEFT_A + (i + 0.5) * SLOT, pages[i] + SLOT / 2, A)
    mapping(LEFT_A + 3.5 * SLOT, pages[3] + SLOT / 2, FAINT, 1.5, "5 4")
    for slot, page in ((0, 5), (1, 6), (3, 7)):
        mapping(LEFT_B + (slot + 0.5) * SLOT, pages[page] + SLOT / 2, B)
    mapping(LEFT_B + 2.5 * SLOT, pages[3] + SLOT / 2, B, 3.5)
    for i, x in enumerate(pages):
        box(x, STORE, SLOT, 34, owner[i], PAPER)
        text(x + SLOT / 2, STORE + 22, f"page {i + 1}", 12, PAPER)
    text(pages[0], STORE + 58, "one store of physical pages for the device, 8 MiB each on an 80 GB card (cuMemCreate)", 13, INK, "start", "bold")
    for i, words in enumerate(STORY):
        text(pages[0], STORE + 80 + 18 * i, words, 13, INK, "start")
    text(LEFT_A, 26, "Every stream draws from its own arena. Blocks never cross arenas; pages do.", 16, INK, "start", "bold")
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="Helvetica, Arial, sans-serif">'
    return "\n".join([head, f'<rect width="{WIDTH}" height="{HEIGHT}" fill="{PAPER}"/>', *lines, "</svg>"]) + "\n"


if __name__ == "__main__":
    pathlib.Path(__file__).with_name("how.svg").write_text(draw(), encoding="utf-8")
