#!/usr/bin/env python3
"""Do the parts of a snapshot agree with each other?   judge_snapshot.py [--quiet] FILE...   Silence, or the first thing that does not hold.

A snapshot that is not of one moment, because other threads worked meanwhile, is held to what docs/snapshot.md promises.
--quiet: none did."""
import bisect
import gzip
import json
import sys


def rounded(size):
    return (size + 511) // 512 * 512


def rows(table):
    return [dict(zip(table["columns"], row)) for row in table["rows"]]


def expect(holds, words):
    if not holds:
        raise AssertionError(words)


def equal(a, b, words):
    expect(a == b, f"{words}: {a} != {b}")


class Snapshot:
    def __init__(self, path):
        opened = gzip.open(path, "rt", encoding="utf-8") if path.endswith(".gz") else open(path, encoding="utf-8")
        with opened as file:
            self.all = json.load(file)
        self.counters = self.all["counters"]
        self.whole = self.all["one_moment"]
        self.pages = {page["page"]: page for page in rows(self.all["pages"])}
        self.pieces = [dict(zip(self.all["piece_columns"], piece)) for segment in self.all["segments"] for piece in segment["pieces"]]
        self.slots = {}
        for region in self.all["regions"]:
            for row in region["slots"]:
                slot = dict(zip(self.all["slot_columns"], row))
                self.slots[region["region"], slot["slot"]] = slot

    def now(self, name):
        return self.counters[name]["current"]

    def of_state(self, state):
        return [piece for piece in self.pieces if piece["state"] == state]

    def is_seen(self, page, ends):
        """A page on its way to the driver is mapped no more, or its region has left its arena."""
        if not page["home"]:
            return False
        region = next(region for region in self.all["regions"] if region["region"] == page["home"][0])
        at = region["base"] + page["home"][1] * (region["bytes"] // region["count"])
        return any(begin <= at < end for begin, end in ends)

    def judge_pieces(self):
        free = self.of_state("free")
        expect(not any(piece[name] for piece in free for name in ("requested", "tag", "kind", "born", "site")), "a free piece has no label")
        expect(all(0 < piece["requested"] <= piece["size"] for piece in self.pieces if piece["state"] != "free"), "blocks hold what was asked for")
        expect(all(piece["born"] <= self.all["pool"]["steps"] for piece in self.pieces), "no block was born in the future")
        ends = []
        for segment in self.all["segments"]:
            at = segment["address"]
            for piece in segment["pieces"]:
                equal(piece[0], at, "pieces tile their segment")
                at += piece[1]
            if segment["address"]:
                ends.append((segment["address"], at))
        if not self.whole:
            return
        ends.sort()
        expect(all(a[1] <= b[0] for a, b in zip(ends, ends[1:])), "segments lie apart")
        live, pending = self.of_state("live"), self.of_state("pending")
        equal(len(live), self.now("blocks"), "live pieces are the blocks")
        equal(sum(piece["requested"] for piece in live), self.now("requested"), "live pieces add up to what is requested")
        equal(sum(rounded(piece["requested"]) for piece in live), self.now("allocated"), "live pieces add up to what is allocated")
        equal(sum(rounded(piece["requested"]) for piece in live + pending), self.now("active"), "live and pending pieces are active")
        equal(sum(arena["blocks"] for arena in self.all["arenas"]), len(live) + len(pending), "arenas count their blocks")
        unseen = sum(page["bytes"] for page in self.pages.values() if page["state"] == "leaving" and not self.is_seen(page, ends))
        equal(sum(piece["size"] for piece in self.pieces) + unseen, self.now("reserved"), "pieces add up to what is reserved")

    def judge_pages(self):
        if not self.whole:
            return
        pages = self.pages.values()
        equal(sum(page["bytes"] for page in pages), self.now("reserved"), "pages add up to what is reserved")
        equal(sum(1 for page in pages if page["owner"] and page["home"]), self.counters["pages_owned"], "owned pages are counted")
        equal(sum(1 for page in pages if page["maps"] > 1), self.counters["pages_aliased"], "aliased pages are counted")
        maps, busy = {}, {}
        for spot, slot in self.slots.items():
            page = slot["page"]
            if page:
                maps[page] = maps.get(page, 0) + 1
                expect(page in self.pages, f"slot {spot} maps page {page}, which is not there")
                equal("h" in slot["marks"], self.pages[page]["home"] == list(spot), f"the home of page {page}")
                if "s" in slot["marks"]:
                    equal(self.pages[page]["freed"], slot["freed"], f"when page {page} was last used")
                if "b" in slot["marks"] and "t" not in slot["marks"]:
                    expect(page not in busy, f"page {page} lies under live bytes twice")
                    busy[page] = spot
                    equal(self.pages[page]["owner"], list(spot), f"the owner of page {page}")
            elif "b" in slot["marks"]:
                expect("t" in slot["marks"], f"live bytes at slot {spot} lie on no page")
        for number, page in self.pages.items():
            equal(maps.get(number, 0), page["maps"], f"slots that map page {number}")
            owner = self.slots.get(tuple(page["owner"])) if page["owner"] else None
            expect(not page["owner"] or number in busy or (owner and "t" in owner["marks"]), f"page {number} is owned by no live bytes")

    def judge_place(self):
        """Live blocks lie on pages that are mapped."""
        if not self.whole:
            return
        regions = sorted(self.all["regions"], key=lambda region: region["base"])
        bases = [region["base"] for region in regions]
        for piece in self.of_state("live") + self.of_state("pending"):
            region = regions[bisect.bisect_right(bases, piece["address"]) - 1]
            expect(region["base"] <= piece["address"] and piece["address"] + piece["size"] <= region["top"], "a block lies in a region")
            page_bytes = region["bytes"] // region["count"]
            first = (piece["address"] - region["base"]) // page_bytes
            last = (piece["address"] + piece["size"] - 1 - region["base"]) // page_bytes
            for slot in [0] if region["segment"] else range(first, last + 1):
                found = self.slots.get((region["region"], slot))
                expect(found and found["page"] and "b" in found["marks"], f"live bytes at {piece['address']:#x} lie on a page")

    def judge_rows(self):
        for division, listed in self.all["rows"].items():
            if division in ("class", "phase", "kind") or (self.whole and division != "group"):
                equal(sum(row["allocated"]["current"] for row in listed), self.now("allocated"), f"rows by {division} add up")
                equal(sum(row["blocks"] for row in listed), self.now("blocks"), f"blocks by {division} add up")
            for row in listed:
                level = row["allocated"]
                equal(level["total_in"] - level["total_out"], level["current"], f"what came and went of {division} {row['name']}")
                expect(level["current"] <= level["peak"] and row["at_peak"] <= level["peak"], f"the peak of {division} {row['name']}")
        if not self.whole:
            return
        for division in ("tag", "kind", "phase"):
            sums = {}
            for piece in self.of_state("live"):
                sums[piece[division]] = sums.get(piece[division], 0) + rounded(piece["requested"])
            told = {row["key"]: row["allocated"]["current"] for row in self.all["rows"][division] if row["allocated"]["current"]}
            equal(sums, told, f"pieces by {division} are the rows by {division}")
        sums = {}
        for segment in self.all["segments"]:
            key = segment["group"], segment["stream_id"]
            sums[key] = sums.get(key, 0) + sum(piece[1] for piece in segment["pieces"])
        for arena in self.all["arenas"]:
            equal(arena["reserved"], sums.get((arena["group"], arena["stream_id"]), 0), f"what lies in arena {arena['arena']}")

    def judge_steps(self):
        steps = rows(self.all["steps"])
        count = self.all["pool"]["steps"]
        equal([step["step"] for step in steps], list(range(count, count - len(steps), -1)), "steps are numbered, the newest first")
        expect(all(after["ns"] >= before["ns"] for after, before in zip(steps, steps[1:])), "steps follow each other")
        expect(all(step["live"] <= step["peak"] and step["live"] <= step["reserved"] for step in steps), "what a step left was there")

    def judge_levels(self):
        expect(self.now("requested") <= self.now("allocated") <= self.now("active") <= self.now("reserved"), "levels lie in each other")

    def judge_pending(self):
        if not self.whole:
            return
        waiting = {row["address"] for row in rows(self.all["pending"])}
        equal(len(waiting), self.counters["pending_blocks"], "pending blocks are counted")
        pending = {piece["address"] for piece in self.of_state("pending")}
        expect(waiting <= pending, "what waits is pending")

    def judge_fences(self):
        fences = self.all["fences"]
        due = fences["due"]
        expect(fences["done"] <= fences["begun"] <= fences["now"], "done, begun, now")
        expect(due == sorted(due) and (not due or (fences["done"] < due[0] and due[-1] <= fences["begun"])), f"fences due are in order: {fences}")
        for page in self.pages.values():
            expect(page["freed"] <= fences["now"], "nothing was freed in the future")
            expect(page["freed"] <= fences["done"] if page["complete"] else page["freed"] > fences["done"] or not self.whole,
                   f"page {page['page']} is complete")
        expect(all(slot["freed"] <= fences["now"] for slot in self.slots.values()), "nothing was freed in the future")
        if not self.whole:
            return
        groups = {0} | {group["group"] for group in self.all["groups"]}
        named = [each["group"] for part in ("arenas", "segments", "captures") for each in self.all[part]]
        expect(set(named) <= groups, "groups that are named are there")

    def judge(self):
        for name in [name for name in dir(self) if name.startswith("judge_")]:
            getattr(self, name)()


def main():
    failed, quiet = 0, "--quiet" in sys.argv
    for path in [argument for argument in sys.argv[1:] if argument != "--quiet"]:
        try:
            snapshot = Snapshot(path)
            expect(snapshot.whole or not quiet, "no other thread was at work: of one moment")
            snapshot.judge()
        except (AssertionError, ValueError, KeyError) as problem:
            print(f"{path}: {problem!r}")
            failed = 1
    return failed or len(sys.argv) < 2


sys.exit(main())
