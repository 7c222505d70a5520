"""cenote-qualify, run as users run it, on the simulated GPU."""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from patience import patience  # noqa: E402  (needs the path above)

BIN = pathlib.Path(os.environ["CENOTE_BIN"])
SIM = BIN.parent / "sim"
STATUS = {"fit": 0, "fit without": 3, "use provider:plain": 4}
FENCES = "fences (shortages and trims wait for the context)"
ALIASES = "aliases (CENOTE_CONF=aliases:off)"
FILES, RDMA, FABRIC = "sharing memory with other processes", "RDMA (network cards, gdrcopy)", "fabric handles"

# Each quirk of sim/quirks.def: the verdict, and what it is fit without.
QUIRKS = {
    "wsl-rdma": ("fit without", [RDMA]),
    "rdma-required": ("fit", []),
    "fabric": ("fit", []),
    "decompression": ("fit", []),
    "decompression-refused": ("fit", []),
    "fabric-not-permitted": ("fit without", [FABRIC]),
    "fabric-invalid": ("fit without", [FABRIC]),
    "attribute-lies": ("fit without", [FILES, RDMA]),
    "vmm-lies": ("use provider:plain", None),
    "mapping-ceiling": ("fit", []),
    "handle-ceiling": ("fit", []),
    "stale-aliases": ("fit without", [ALIASES]),
    "local-memory": ("fit", []),
    "unified-memory": ("fit", []),
}
MACHINES = {
    "capacity:8GiB": ("fit", []),
    "vmm:0": ("use provider:plain", None),
    "driver_version:12040": ("fit without", [FENCES]),
    "driver_version:11080": ("fit without", ["destroying streams unless the program says so (cenote_stream_retire)", FENCES]),
}


def qualify(shape: str, *arguments: str) -> subprocess.CompletedProcess:
    """On a device whose clock goes on only where the program waits: it cannot be late."""
    variables = {name: value for name, value in os.environ.items() if name not in ("CENOTE_CONF", "LD_PRELOAD", "CENOTE_DRIVER")}
    variables.update(CENOTE_SIM=f"manual_clock:1,quiet:1,{shape}", LD_LIBRARY_PATH=str(SIM))
    return subprocess.run([BIN / "cenote-qualify", *arguments], env=variables, capture_output=True, text=True, timeout=patience(100))


class Qualify(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def path(self, name: str) -> str:
        return str(pathlib.Path(self.folder.name) / name)

    def judged(self, shape: str) -> dict:
        done = qualify(shape, "--seconds", "0", "--json", self.path("q.json"))
        found = json.loads(pathlib.Path(self.path("q.json")).read_text())
        self.assertEqual(done.returncode, STATUS[found["verdict"]], done.stdout + done.stderr)
        self.assertIn(f"verdict: {found['verdict']}", done.stdout)
        self.assertEqual(found["conf"], "provider:plain" if found["verdict"] == "use provider:plain" else
                         "aliases:off" if ALIASES in found["without"] else "")
        for sentence in found["without"]:
            self.assertIn(sentence, done.stdout.splitlines()[0])
        return found

    def check(self, shape: str, verdict: str, without: list):
        found = self.judged(shape)
        self.assertEqual(found["verdict"], verdict, found)
        if without is not None:
            self.assertEqual(found["without"], without, found)

    # --- verdicts

    def test_each_quirk_has_its_verdict(self):
        rows = re.findall(r'^QUIRK\(\w+, "([^"]+)"', pathlib.Path("sim/quirks.def").read_text(), re.MULTILINE)
        self.assertEqual(sorted(rows), sorted(QUIRKS))
        for quirk, (verdict, without) in QUIRKS.items():
            with self.subTest(quirk):
                self.check(f"quirks:{quirk}", verdict, without)

    def test_other_machines(self):
        for shape, (verdict, without) in MACHINES.items():
            with self.subTest(shape):
                self.check(shape, verdict, without)

    def test_a_call_that_is_refused_is_named(self):
        found = self.judged("quirks:wsl-rdma")
        (rdma,) = [row for row in found["experiments"] if row["name"] == "rdma"]
        self.assertEqual((rdma["outcome"], rdma["note"]), ("fails", "cuMemSetAccess: CUDA_ERROR_UNKNOWN"))
        self.assertEqual([row["outcome"] for row in found["experiments"] if row["outcome"] == "not run"], [])

    def test_random_programs_need_no_alias(self):
        rows = {row["name"]: row for row in self.judged("quirks:stale-aliases")["experiments"]}
        failed = {name for name, row in rows.items() if row["outcome"] == "fails"}
        self.assertEqual(failed, {"alias_stream", "alias_event", "alias_fence", "alias_dependent"})
        self.assertIn("words were not what had been written", rows["alias_stream"]["note"])
        self.assertEqual((rows["programs"]["outcome"], rows["programs"]["note"]), ("holds", "with aliases:off"))
        notes = {row["name"]: row["note"] for row in self.judged("capacity:8GiB")["experiments"]}
        self.assertEqual(notes["programs"], "")

    def test_facts_of_captures(self):
        notes = {row["name"]: row["note"] for row in self.judged("capacity:8GiB")["experiments"]}
        self.assertIn("CAPTURE_UNSUPPORTED; the capture is invalid", notes["capture_fence"])
        self.assertIn("CAPTURED_EVENT; the capture is invalid", notes["capture_event"])
        self.assertIn("CAPTURE_UNSUPPORTED; the capture is invalid", notes["capture_id"])

    def test_it_gives_back_what_it_took(self):
        done = qualify("capacity:8GiB", "--seconds", "0")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertNotRegex(done.stdout, "FAILS|[?]")
        self.assertRegex(done.stdout, r"1 random program, \d+ blocks")

    # --- prices

    def test_prices_are_what_calls_take(self):
        """The simulated driver takes at least as long as a file says; what the program then writes makes a replay cost that."""
        told = {"cuMemCreate": 400000, "cuMemSetAccess": 90000, "cuMemMap": 0}
        given, found = pathlib.Path(self.path("given")), pathlib.Path(self.path("found"))
        given.write_text("# a card\n\n" + "".join(f"{name} {ns}  # remark\n" for name, ns in told.items()))
        done = qualify(f"spend_cost:1,prices:{given}", "--seconds", "0", "--prices", str(found))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        prices = dict(line.split() for line in found.read_text().splitlines()[1:])
        for name, ns in told.items():
            self.assertGreaterEqual(int(prices[name]), ns)
        self.assertGreaterEqual(int(prices["cuMemUnmap"]), 25600)  # the file names it not: sim/machine/cost.def

        trace = pathlib.Path(self.path("t.csv"))
        trace.write_text("t_us,op,id,bytes,stream,device\n0,a,1,8388608,0,0\n1,f,1,0,0,0\n")
        costs = []
        for more in ([], ["--prices", str(given)]):
            command = [BIN / "cenote-replay", "--json", "--page-mib", "8", *more, trace]
            done = subprocess.run(command, capture_output=True, text=True, timeout=patience(100))
            self.assertEqual(done.returncode, 0, done.stderr)
            costs.append(json.loads(done.stdout)["driver_ns"])
        self.assertGreaterEqual(costs[1] - costs[0], 400000 - 193000)

    def test_prices_beside_others(self):
        """Alone, beside a thread that launches, and beside processes, which end with the program."""
        prices = self.judged("capacity:8GiB")["prices"]
        kinds = ("nothing", "launches", "processes")
        runs = {kind: [(row["page_bytes"], row["run"]) for row in prices if row["beside"] == kind] for kind in kinds}
        self.assertEqual(runs["nothing"], runs["launches"])
        self.assertEqual(runs["nothing"], runs["processes"])
        self.assertGreaterEqual(len(runs["nothing"]), 8)
        for row in prices:
            self.assertEqual("longest_launch_ns" in row, row["beside"] != "processes")
            self.assertTrue(all(row[call] for call in ("cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemUnmap", "cuMemRelease")), row)

    def test_the_first_use(self):
        rows = re.findall(r"^EXPERIMENT\((\w+), \d+, \w+, (\w+),", pathlib.Path("tools/qualify/experiments.def").read_text(), re.MULTILINE)
        for shape, conf in (("capacity:8GiB", ""), ("quirks:stale-aliases", "aliases:off"), ("quirks:wsl-rdma", "")):
            done = qualify(shape, "--first-use", "--json", self.path("q.json"))
            found = json.loads(pathlib.Path(self.path("q.json")).read_text())
            self.assertEqual((done.returncode, found["conf"]), (STATUS[found["verdict"]], conf), done.stdout + done.stderr)
            tried = {row["name"] for row in found["experiments"] if row["outcome"] != "not run"}
            self.assertEqual(tried, {name for name, when in rows if when == "FIRST"})
            self.assertEqual((found["prices"], found["programs"]["programs"]), ([], 0))
            self.assertNotIn("RDMA", done.stdout)

    def test_a_first_use_without_a_verdict(self):
        """Memory may be short for a moment; pages that are refused are found out by libcenote itself."""
        done = qualify("capacity:3MiB,context_bytes:1MiB", "--first-use")
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("no verdict: a page is created", done.stderr)
        done = qualify("quirks:vmm-lies", "--first-use", "--json", self.path("q.json"))
        found = json.loads(pathlib.Path(self.path("q.json")).read_text())
        self.assertEqual((done.returncode, found["conf"], found["without"]), (4, "", ["pages"]))

    def test_prices_that_are_none(self):
        for text in ("cuMemCreate\n", "cuMemCreate ten\n", "cuLaunch 5\n", "cuMemCreate 5 6\n"):
            given = pathlib.Path(self.path("given"))
            given.write_text(text)
            done = qualify(f"prices:{given}", "--seconds", "0")
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(text.strip(), done.stderr)
        self.assertIn("No such file", qualify(f"prices:{self.path('none')}").stderr)

    # --- arguments

    def test_wrong_arguments(self):
        for arguments in (["--seconds", "-1"], ["--seconds", "x"], ["--device", "1.5"], ["--what"], ["more"], ["--json"]):
            done = qualify("capacity:8GiB", *arguments)
            self.assertEqual((done.returncode, done.stdout, len(done.stderr.splitlines())), (2, "", 1), done.stderr)
            self.assertIn("cenote qualify: ", done.stderr)

    def test_nothing_can_be_tried(self):
        done = qualify("capacity:8GiB", "--device", "3")
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("CUDA_ERROR_INVALID_DEVICE", done.stderr)
        self.assertEqual(qualify("devices:0").returncode, 1)

    def test_a_file_that_cannot_be_written(self):
        done = qualify("capacity:8GiB", "--seconds", "0", "--json", self.path("no/such/folder"))
        self.assertEqual(done.returncode, 1)
        self.assertIn("cannot be written", done.stderr)

    def test_help(self):
        done = qualify("capacity:8GiB", "--help")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("--prices FILE", done.stdout)


if __name__ == "__main__":
    unittest.main()
