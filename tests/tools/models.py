"""The models of PyTorch's allocator in cenote-replay, by hand. tests/python/test_waste.py compares them with the real PyTorch."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from patience import patience  # noqa: E402  (needs the path above)

REPLAY = pathlib.Path(os.environ["CENOTE_BIN"]) / "cenote-replay"
MIB = 1 << 20
HEAD = "t_us,op,id,bytes,stream,device\n"


def replay(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run([REPLAY, *arguments], capture_output=True, text=True, timeout=patience(100))


class Models(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        os.environ.pop("CENOTE_CONF", None)

    def path(self, name: str) -> str:
        return str(pathlib.Path(self.folder.name) / name)

    def reserved(self, model: str, records: list[str], *arguments: str) -> int:
        path = pathlib.Path(self.path("t.csv"))
        path.write_text(HEAD + "".join(f"{i},{line}\n" for i, line in enumerate(records)))
        done = replay("--json", "--under", model, *arguments, str(path))
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)["reserved_peak_bytes"]

    def refused(self, word: str, *arguments: str, status: int = 1):
        done = replay(*arguments)
        self.assertEqual(done.returncode, status, done.stderr)
        self.assertIn(word, done.stderr)
        self.assertEqual(done.stdout, "")

    def test_native_segments(self):
        got = self.reserved("native", [f"a,1,{MIB},0,0", "a,2,100,0,0", f"a,3,{MIB + 1},0,0", f"a,4,{10 * MIB - 512},0,0", f"a,5,{10 * MIB},0,0",
                           f"a,6,{11 * MIB},0,0"])
        self.assertEqual(got, (2 + 20 + 10 + 12) * MIB)  # the fourth is what the third left of its 20 MiB

    def test_native_rests(self):
        """A rest of up to 1 MiB of a large block stays with it; streams and small blocks have pools of their own."""
        freed = [f"a,1,{20 * MIB},1,0", "f,1,,1,0"]
        for records, reserved in (([f"a,2,{19 * MIB},1,0", f"a,3,{MIB},1,0"], 22), ([f"a,2,{16 * MIB},1,0", f"a,3,{3 * MIB},1,0"], 20),
                                  ([f"a,2,{20 * MIB},2,0"], 40)):
            self.assertEqual(self.reserved("native", freed + records), reserved * MIB)

    def test_expandable_pages(self):
        got = self.reserved("expandable", [f"a,1,{30 * MIB},0,0", "f,1,,0,0", f"a,2,{35 * MIB},0,0", "a,3,512,0,0"])
        self.assertEqual(got, (40 + 2) * MIB)
        got = self.reserved("expandable", [f"a,1,{15 * MIB},0,0", f"a,2,{5 * MIB},0,0", "f,1,,0,0", f"a,3,{16 * MIB},0,0"])
        self.assertEqual(got, 40 * MIB)  # the hole of 15 MiB is too small

    def test_what_is_kept_goes_back_when_memory_is_short(self):
        records = ["a,1,314572800,0,0", "f,1,,0,0", "a,2,367001600,0,0"]
        self.assertEqual(self.reserved("native", records), 650 * MIB)
        self.assertEqual(self.reserved("native", records, "--capacity", "1GiB"), 350 * MIB)

    def test_a_used_block_comes_back_when_the_device_is_done(self):
        records = [f"a,1,{20 * MIB},1,0", "u,1,,2,0", "f,1,,1,0", f"a,2,{20 * MIB},1,0"]
        self.assertEqual(self.reserved("native", records), 20 * MIB)
        self.assertEqual(self.reserved("native", records, "--gpu-lag", "1"), 40 * MIB)

    # --- curves

    def curve(self, records: list[str], *arguments: str) -> list[list[int]]:
        path, out = pathlib.Path(self.path("t.csv")), pathlib.Path(self.path("curve.csv"))
        path.write_text(HEAD.strip() + ",tag,address,reserved\n" + "".join(f"{i},{line}\n" for i, line in enumerate(records)))
        done = replay("--curve", str(out), *arguments, str(path))
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))
        head, *lines = out.read_text().splitlines()
        self.assertEqual(head, "reserved,address")
        return [[int(number) for number in line.split(",")] for line in lines]

    def test_a_curve_has_a_point_for_each_record(self):
        records = [f"a,1,{3 * MIB},0,0,0,,", "a,2,512,0,0,0,,", "s,,,,,,,", "f,1,,0,0,0,,", f"a,3,{3 * MIB},0,0,0,,"]
        self.assertEqual([held // MIB for held, _ in self.curve(records, "--under", "native")], [20, 22, 22, 22, 22])
        self.assertEqual([held for held, _ in self.curve(records, "--under", "cenote", "--page-mib", "4")], [4 * MIB] * 5)

    def test_a_recording_begins_with_what_the_card_held(self):
        """A segment of 20 MiB with a block of 7 MiB in the middle; the cache goes; then a new segment, where the card had it."""
        for allocator in ("native", "expandable"):
            records = [f"a,1,{8 * MIB},0,0,1,{64 * MIB},{20 * MIB}", f"a,2,{7 * MIB},0,0,1,{72 * MIB},{20 * MIB}",
                       f"a,3,{5 * MIB},0,0,1,{79 * MIB},{20 * MIB}", f"f,1,,0,0,0,,{20 * MIB}", f"f,3,,0,0,0,,{20 * MIB}",
                       f"s,,,,,,,{20 * MIB}", f"a,4,{5 * MIB},0,0,0,0,{20 * MIB}", f"a,5,{9 * MIB},0,0,0,{640 * MIB},{40 * MIB}"]
            got = self.curve(records, "--under", allocator, "--recorded", "5")
            self.assertEqual([held // MIB for held, _ in got], [20] * 7 + [40])
            places = [79, 640] if allocator == "native" else [64, 79]  # expandable segments keep the piece that can grow
            self.assertEqual([address // MIB for _, address in got if address], [64, 72, 79, *places])
            got = self.curve([*records[:5], "f,2,,0,0,0,,", "s,,,,,,,"], "--under", allocator, "--recorded", "5")
            self.assertEqual([held // MIB for held, _ in got], [20] * 6 + [0])

    def test_expandable_pages_between_mapped_ones(self):
        """A hole of 40 MiB that went back, 10 MiB free before it and behind it: 55 MiB take the hole, and no page more."""
        records = [f"a,1,{30 * MIB},0,0,0,{MIB << 20},{40 * MIB}", f"a,2,{60 * MIB},0,0,0,,", f"a,3,{5 * MIB},0,0,0,,", "f,2,,0,0,0,,", "s,,,,,,,",
                   f"a,4,{55 * MIB},0,0,0,,"]
        got = self.curve(records, "--under", "expandable", "--recorded", "0")
        self.assertEqual([held // MIB for held, _ in got], [40, 100, 100, 100, 60, 100])
        self.assertEqual((got[5][1] - got[0][1]) // MIB, 30)

    def test_which_of_equal_free_blocks(self):
        """The older segment lies above. Once its block was split and came back, PyTorch's object is younger than that of the other."""
        taken = [f"a,1,{20 * MIB},0,0,0,{640 * MIB},{20 * MIB}", f"a,2,{20 * MIB},0,0,0,{64 * MIB},{40 * MIB}", "f,1,,0,0,0,,"]
        split = [f"a,3,{8 * MIB},0,0,0,,", "f,3,,0,0,0,,"]
        for name, whole, was_split in ((None, 64, 64), ("address", 64, 64), ("piece", 640, 64), ("segment", 640, 640)):
            ties = ("--ties", name) if name else ()
            for between, place in (([], whole), (split, was_split)):
                got = self.curve([*taken, *between, "f,2,,0,0,0,,", f"a,4,{20 * MIB},0,0,0,,"], "--under", "native", "--recorded", "0", *ties)
                self.assertEqual((got[-1][0], got[-1][1]), (40 * MIB, place * MIB), (name, between))

    def test_what_the_card_held_overlaps(self):
        laid = [f"a,{i},{8 * MIB},0,0,1,{64 * MIB},{20 * MIB}" for i in (1, 2)]
        text = HEAD.strip() + ",tag,address,reserved\n" + "".join(f"{i},{line}\n" for i, line in enumerate(laid))
        pathlib.Path(self.path("t.csv")).write_text(text)
        self.refused("overlap", "--under", "expandable", "--curve", self.path("c"), "--recorded", "2", self.path("t.csv"), status=3)

    def test_a_curve_of_one_trace(self):
        pathlib.Path(self.path("t.csv")).write_text(HEAD + f"0,a,1,{1 << 30},0,0\n")
        self.refused("no trace", "--curve", self.path("c"))
        self.refused("--curve", "--curve", self.path("c"), self.path("t.csv"), self.path("t.csv"))
        self.refused("--curve", "--curve", self.path("c"), "--under", "native,expandable", self.path("t.csv"))
        self.refused("--curve", "--recorded", "1", self.path("t.csv"))
        self.refused("--recorded", "--curve", self.path("c"), "--recorded", "-1", self.path("t.csv"))
        self.refused("--ties", "--curve", self.path("c"), "--ties", "newest", self.path("t.csv"))
        self.refused("No such file", "--curve", self.path("no/c"), self.path("t.csv"), status=2)
        self.refused("--capacity", "--curve", self.path("c"), "--capacity", "1GiB", self.path("t.csv"), status=3)


if __name__ == "__main__":
    unittest.main()
