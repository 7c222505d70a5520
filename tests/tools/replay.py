"""cenote-replay, run as users run it."""
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

FIELDS = (
    "trace records live_peak_bytes reserved_peak_bytes reserved_peak_default_budget_bytes address_peak_bytes driver_calls_first "
    "driver_calls_last driver_calls_other waits ooms metadata_bytes driver_ns seconds under lag pending_peak_bytes driver_first_ns "
    "driver_last_ns pace orders_first orders_last driver_first_split"
).split()

# What PyTorch's native allocator holds over the live peak, by lag (cenote replay --under native --repeat 4).
NATIVE = {
    "pipeline": {"0": 1.402, "0.05": 2.141},
    "serve_llm": {"0": 1.327, "0.05": 1.392},
    "train_convnet": {"0": 1.643, "0.05": 1.643},
    "train_transformer": {"0": 1.285, "0.05": 1.285},
}


def replay(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run([REPLAY, *arguments], capture_output=True, text=True, timeout=patience(100))


class Replay(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        os.environ.pop("CENOTE_CONF", None)

    def trace(self, text: str, name: str = "t.csv", head: str = "t_us,op,id,bytes,stream,device\n") -> str:
        path = pathlib.Path(self.folder.name) / name
        path.write_text(head + text)
        return str(path)

    def figures(self, *arguments: str) -> dict:
        done = replay("--json", *arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = done.stdout.splitlines()
        self.assertEqual(len(lines), 1)
        return json.loads(lines[0])

    def refused(self, status: int, word: str, *arguments: str):
        done = replay(*arguments)
        self.assertEqual(done.returncode, status, done.stderr)
        self.assertIn(word, done.stderr)

    def test_captures_that_are_not_announced(self):
        """The streams of a trace live as long as its replay: what they free comes back, and the pool can be destroyed."""
        os.environ["CENOTE_CONF"] = "announced:0"
        self.addCleanup(os.environ.pop, "CENOTE_CONF")
        path = self.trace(f"0,a,1,{4 * MIB},1,0\n1,f,1,,0,0\n2,a,2,{4 * MIB},2,0\n3,f,2,,0,0\n")
        got = self.figures("--page-mib", "2", path)
        self.assertEqual(got["reserved_peak_bytes"], 4 * MIB)

    def test_two_blocks_of_a_page(self):
        path = self.trace(f"0,a,1,{2 * MIB},0,0\n1,f,1,,0,0\n2,a,2,{2 * MIB},0,0\n3,a,3,{2 * MIB},0,0\n4,f,3,,0,0\n", "two pages.csv")
        got = self.figures("--page-mib", "2", "--repeat", "3", path)
        self.assertEqual(list(got), FIELDS)
        self.assertEqual(got["trace"], "two pages")
        self.assertEqual(got["records"], 5)
        self.assertEqual(got["live_peak_bytes"], 4 * MIB)
        self.assertEqual(got["reserved_peak_bytes"], 4 * MIB)
        self.assertEqual(got["reserved_peak_default_budget_bytes"], 4 * MIB)
        self.assertGreaterEqual(got["address_peak_bytes"], 4 * MIB)
        self.assertEqual(got["driver_calls_first"], 6)  # two handles, each created and mapped, after one that was tried
        self.assertEqual(got["driver_calls_last"], 0)
        self.assertEqual((got["waits"], got["ooms"]), (0, 0))

    def test_small_blocks_share_a_page(self):
        records = "".join(f"{i},a,{i},{1000 + i},0,0\n" for i in range(1000))
        got = self.figures("--page-mib", "2", self.trace(records))
        self.assertEqual(got["live_peak_bytes"], sum(1000 + i for i in range(1000)))
        self.assertEqual(got["reserved_peak_bytes"], 2 * MIB)

    def test_out_of_memory_is_counted(self):
        path = self.trace(f"0,a,1,{600 * MIB},0,0\n1,a,2,{5000 * MIB},0,0\n2,u,2,,1,0\n3,f,2,,0,0\n4,f,1,,0,0\n")
        got = self.figures("--capacity", "2GiB", "--repeat", "2", path)
        self.assertEqual(got["ooms"], 2)
        self.assertGreaterEqual(got["reserved_peak_bytes"], 600 * MIB)

    def test_devices_have_a_pool_each(self):
        path = self.trace(f"0,a,1,{64 * MIB},0,0\n1,a,2,{64 * MIB},1,1\n2,u,2,,2,1\n3,s,,,,\n4,f,2,,1,1\n5,f,1,,0,0\n")
        got = self.figures("--page-mib", "2", path)
        self.assertEqual(got["live_peak_bytes"], 128 * MIB)
        self.assertEqual(got["reserved_peak_bytes"], 128 * MIB)

    def test_lag_keeps_memory_of_another_stream_busy(self):
        path = self.trace(f"0,a,1,{64 * MIB},1,0\n1,f,1,,1,0\n2,a,2,{64 * MIB},2,0\n3,f,2,,2,0\n")
        prompt = self.figures("--page-mib", "2", path)
        late = self.figures("--page-mib", "2", "--gpu-lag", "100%", path)
        self.assertEqual(prompt["reserved_peak_bytes"], 64 * MIB)
        self.assertEqual(late["reserved_peak_bytes"], 128 * MIB)

    def test_a_step_of_lag_is_as_long_as_a_step(self):
        """What stream 2 used is freed six records before more is asked for; a step has five records, the whole trace ten."""
        first = f"0,a,1,{MIB},1,0\n0,u,1,,2,0\n0,f,1,,1,0\n0,a,3,512,1,0\n0,s,,,,\n"
        second = f"0,f,3,,1,0\n0,a,3,512,1,0\n0,f,3,,1,0\n0,a,2,{MIB},1,0\n0,s,,,,\n"
        path = self.trace(first + second)
        peaks = [self.figures("--gpu-lag", lag, path)["pending_peak_bytes"] // MIB for lag in ("0.5", "step", "0.7")]
        self.assertEqual(peaks, [1, 1, 2])
        self.assertEqual(self.figures("--gpu-lag", "step", self.trace(f"{first}{second}".replace("0,s,,,,\n", "")))["pending_peak_bytes"] // MIB, 2)

    def test_what_is_live_or_pending(self):
        """Of a block that another stream used, nothing can be given away until the device is done with it."""
        first = f"0,a,1,{MIB},1,0\n0,u,1,,2,0\n0,f,1,,1,0\n"  # freed at the third record
        second = f"0,a,2,{MIB},1,0\n0,u,2,,1,0\n0,f,2,,1,0\n"  # used on its own stream alone
        for lag, held in (("0", 1), ("0.2", 1), ("0.4", 2), ("1", 2)):
            got = self.figures("--gpu-lag", lag, self.trace(first + second))
            self.assertEqual((got["live_peak_bytes"], got["pending_peak_bytes"]), (MIB, held * MIB), lag)
        self.assertEqual(self.figures("--gpu-lag", "1", "--repeat", "3", self.trace(second + first))["pending_peak_bytes"], 2 * MIB)

    def test_a_trace_without_times_has_a_pace(self):
        """Moving pages may cost a part of the program's time: a long trace without times may not be held to that of the driver's calls."""
        records = f"0,a,1,{64 * MIB},0,0\n0,f,1,,0,0\n"
        self.assertEqual(self.figures(self.trace(records))["pace"], "assumed")
        self.assertEqual(self.figures(self.trace(records.replace("0,f", "1,f")))["pace"], "trace")

    def test_models_of_others(self):
        path = self.trace(f"0,a,1,{64 * MIB},1,0\n1,u,1,,2,0\n2,f,1,,1,0\n")
        done = replay("--json", "--under", "cenote,native,expandable", "--prices", "h100", "--repeat", "2", path)
        self.assertEqual(done.returncode, 0, done.stderr)
        ours, native, expandable = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertEqual([each["under"] for each in (ours, native, expandable)], ["cenote", "native", "expandable"])
        self.assertEqual((native["driver_first_ns"], native["driver_last_ns"]), (90000 + 534, 534 + 534))  # a segment, events, a question
        self.assertEqual(expandable["driver_first_ns"], 1500 + 4 * (18000 + 1450 + 50000) + 534)
        self.assertEqual(expandable["reserved_peak_bytes"], 80 * MIB)
        self.assertEqual(ours["driver_first_ns"] + ours["driver_last_ns"] <= ours["driver_ns"], True)
        self.assertEqual(set(native["driver_first_split"].values()), {0})

    def test_waits_of_streams_are_counted_by_repetition(self):
        """With order:2 the second stream waits for what the first one still uses; the first does the same when it comes round again."""
        path = self.trace(f"0,a,1,{64 * MIB},1,0\n1,f,1,,1,0\n2,a,2,{64 * MIB},2,0\n3,f,2,,2,0\n")
        for order, first, last, reserved in (1, 0, 0, 128), (2, 1, 2, 64):
            os.environ["CENOTE_CONF"] = f"order:{order}"
            got = self.figures("--gpu-lag", "1", "--repeat", "2", path)
            self.assertEqual((got["orders_first"], got["orders_last"], got["reserved_peak_bytes"]), (first, last, reserved * MIB))
        del os.environ["CENOTE_CONF"]

    def test_where_the_driver_time_goes(self):
        """Eight pages of 2 MiB are made for the first stream and move to the second; one more tells at the start what the device can do."""
        block = 16 * MIB
        path = self.trace(f"0,a,1,{block},1,0\n1,f,1,,1,0\n2,a,2,{block},2,0\n3,f,2,,2,0\n")
        got = self.figures("--prices", "h100", path)
        split = got["driver_first_split"]
        self.assertEqual((split["pages_created"], split["pages_moved"]), (8, 8))
        self.assertEqual((split["create_ns"], split["map_ns"], split["access_ns"]), (9 * 18000, 17 * 1450, 17 * 50000))
        self.assertEqual((split["unmap_ns"], split["release_ns"]), (30000, 32000))
        self.assertLess(sum(split[each] for each in split if each.endswith("_ns")), got["driver_first_ns"])
        self.refused(1, "--under", "--under", "native,other", path)
        self.refused(1, "--under", "--under", "", path)
        self.refused(2, "the models know one", "--under", "native", self.trace("0,a,1,512,0,1\n"))

    def test_providers(self):
        path = self.trace(f"0,a,1,{64 * MIB},0,0\n1,f,1,,0,0\n")
        for provider in ("vmm", "async", "plain"):
            got = self.figures("--provider", provider, path)
            self.assertGreaterEqual(got["reserved_peak_bytes"], 64 * MIB, provider)
            self.assertGreater(got["driver_calls_first"], 0, provider)

    def test_prices(self):
        path = self.trace(f"0,a,1,{64 * MIB},0,0\n1,f,1,,0,0\n")
        cost = {name: self.figures("--prices", name, path)["driver_ns"] for name in ("a100", "h100", "h200", "contended")}
        self.assertEqual(cost["a100"], self.figures(path)["driver_ns"])
        self.assertLess(cost["h100"], cost["a100"])
        self.assertLess(cost["h200"], cost["h100"])
        self.assertGreater(cost["contended"], 3 * cost["h100"])
        self.refused(1, "plain file", "--prices", "/dev/zero", path)
        self.refused(1, "No such file", "--prices", "none", path)
        self.refused(1, "too long", "--prices", "h" * 600, path)

    def test_table_and_several_files(self):
        path = self.trace(f"0,a,1,{64 * MIB},0,0\n1,f,1,,0,0\n")
        done = replay("--harvest-budget", "off", path, path)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(len(done.stdout.splitlines()), 4)

    def test_our_own_traces(self):
        for path in sorted(str(p) for p in pathlib.Path("traces").glob("*.csv.gz")):
            got = self.figures("--gpu-lag", "0.05", path)
            self.assertEqual((got["waits"], got["ooms"]), (0, 0), path)
            self.assertGreaterEqual(got["reserved_peak_bytes"], got["live_peak_bytes"], path)

    def test_memory_that_cannot_move_costs_no_more_than_native(self):
        for name, most in NATIVE.items():
            for lag in most:
                for provider in ("async", "plain"):
                    got = self.figures("--repeat", "4", "--provider", provider, "--gpu-lag", lag, f"traces/{name}.csv.gz")
                    self.assertLessEqual(got["reserved_peak_bytes"] / got["live_peak_bytes"], most[lag], f"{name} {provider} {lag}")

    def test_broken_files(self):
        broken = self.trace("0,a,1,512,0,0\n1,f,2,,0,0\n")
        self.refused(2, f"{broken}:3: id 2 is not live", broken)
        self.refused(2, "No such file", "/no/such/file.csv")
        self.refused(2, "column bytes is missing", self.trace("", head="t_us,op,id\n"))

    def test_wrong_arguments(self):
        path = self.trace("")
        self.refused(1, "no trace was named")
        self.refused(1, "usage", "--no-such-option", path)
        self.refused(1, "--repeat", "--repeat", "0", path)
        self.refused(1, "--capacity", "--capacity", "much", path)
        self.refused(1, "--gpu-lag", "--gpu-lag", "-1", path)
        self.refused(1, "power of two", "--page-mib", "3", path)
        self.refused(1, "auto, vmm, async, plain or guard", "--provider", "cuda", path)
        self.refused(1, "harvest_budget", "--harvest-budget", "2", path)
        self.assertEqual(replay("--help").returncode, 0)

    def test_an_empty_trace(self):
        self.refused(2, "no allocation in it", self.trace(""))
        self.refused(2, "no allocation in it", self.trace("0,s,,,,\n"))


if __name__ == "__main__":
    unittest.main()
