"""Small trees that break one rule each, and what the checks of tools/check say about them."""
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools/check"))
import abi  # noqa: E402
import ends  # noqa: E402
import layers  # noqa: E402
import lengths  # noqa: E402
import library  # noqa: E402
import links  # noqa: E402
import names  # noqa: E402
import parts  # noqa: E402
import promises  # noqa: E402
import seams  # noqa: E402
import words  # noqa: E402
from tree import Tree  # noqa: E402

TABLE = "base | base/* |\nheap | pool/heap* | base pages\npages | pool/pages* | base cuda\n"


def problems(check, **files: str) -> list[str]:
    """What `check` finds in a tree of these files; `a__b_dot_c` is written a/b.c."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            path = pathlib.Path(folder, name.replace("__", "/").replace("_dot_", "."))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return check.check(Tree(pathlib.Path(folder))).problems


class Layers(unittest.TestCase):
    def include(self, file: str, line: str) -> list[str]:
        files = {"tools__check__layers_dot_txt": TABLE, "pool__heap_dot_h": "", "pool__pages_dot_h": "", "base__bits_dot_h": ""}
        return problems(layers, **(files | {file: line + "\n"}))

    def test_down_one_layer_is_fine(self):
        self.assertEqual(self.include("pool__heap_dot_c", '#include "pool/heap.h"\n#include "pool/pages.h"\n#include "base/bits.h"'), [])

    def test_up_is_not(self):
        self.assertEqual(self.include("pool__pages_dot_c", '#include "pool/heap.h"'),
                         ["pool/pages.c:1: layer pages includes pool/heap.h of layer heap"])

    def test_cuda_only_where_the_row_says_so(self):
        self.assertEqual(self.include("pool__pages_dot_c", "#include <cuda.h>"), [])
        self.assertEqual(len(self.include("base__bits_dot_c", "#include <cuda.h>")), 1)

    def test_a_file_without_a_layer(self):
        self.assertEqual(self.include("pool__other_dot_c", ""), ["pool/other.c: in no layer of tools/check/layers.txt"])

    def test_an_include_that_is_not_from_the_root(self):
        self.assertEqual(len(self.include("pool__heap_dot_c", '#include "heap.h"')), 1)


class Links(unittest.TestCase):
    """Of two libraries that are compiled here: the real one of a test, and a simulated one of one file that calls nothing."""

    def build(self, root: pathlib.Path, sources: dict[str, str]) -> None:
        for name, text in (sources | {"sim/a.c": "int sim_a;\n"}).items():
            place, before = links.LIBRARIES["libcuda.so.1" if name.startswith("sim/") else "libcenote.so"]
            for path in (root / name, target := root / "build" / place / (name.removeprefix(before) + ".o")):
                path.parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
            subprocess.run(["cc", "-O1", "-c", root / name, "-o", target], check=True)

    def found(self, table: str = "", late: str = "", **sources: str) -> list[str]:
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            self.build(root, {name.replace("__", "/").replace("_dot_", "."): text for name, text in sources.items()})
            (root / "tools/check").mkdir(parents=True)
            (root / links.TABLE).write_text(table)
            if late:
                os.utime(root / late, (2e9, 2e9))
            return links.check(Tree(root)).problems

    ROUND = {"pool__a_dot_c": "int b(void); int a(void) { return b(); }\n", "pool__b_dot_c": "int a(void); int b(void) { return a(); }\n"}

    def test_down_is_fine(self):
        self.assertEqual(self.found(pool__a_dot_c="int b(void); int a(void) { return b(); }\n", base__b_dot_c="int b(void) { return 1; }\n"), [])

    def test_a_circle_of_files(self):
        [problem] = self.found(**self.ROUND)
        self.assertIn("a circle of 2 files", problem)
        self.assertIn("pool/a.c -> pool/b.c (b) -> pool/a.c (a)", problem)

    def test_data_and_addresses_count_as_calls_do(self):
        [problem] = self.found(pool__a_dot_c="extern int there; int here; int *a(void) { return &there; }\n",
                               pool__b_dot_c="extern int here; int there; int *b = &here;\n")
        self.assertIn("a circle of 2 files", problem)

    def test_what_is_static_is_no_arrow(self):
        self.assertEqual(self.found(pool__a_dot_c="static int x(void) { return 1; } int a(void) { return x(); }\n",
                                    pool__b_dot_c="int a(void); int x(void) { return a(); }\n"), [])

    def test_a_circle_of_folders_where_files_have_none(self):
        [problem] = self.found(pool__a_dot_c="int b(void); int a(void) { return b(); }\n", base__b_dot_c="int b(void) { return 1; }\n",
                               base__c_dot_c="int a(void); int c(void) { return a(); }\n")
        self.assertIn("a circle of 2 folders", problem)

    def test_a_room_with_a_face(self):
        room = {"pool__clock__a_dot_c": "int a(void) { return 1; } int b(void) { return a(); }\n", "pool__clock__clock_dot_h": "int b(void);\n"}
        self.assertEqual(self.found(pool__c_dot_c="int b(void); int c(void) { return b(); }\n", **room), [])
        [problem] = self.found(pool__c_dot_c="int a(void); int c(void) { return a(); }\n", **room)
        self.assertIn("pool/c.c: calls a of pool/clock/, which pool/clock/clock.h does not declare", problem)

    def test_a_circle_that_is_known(self):
        self.assertEqual(self.found("pool/a.c pool/b.c | chosen\n", **self.ROUND), [])
        self.assertEqual(len(self.found("pool/a.c pool/b.c |\n", **self.ROUND)), 1)
        self.assertEqual(len(self.found("pool/a.c | chosen\n", **self.ROUND)), 2)

    def test_a_row_that_is_too_long(self):
        [problem] = self.found("pool/a.c pool/b.c pool/c.c | chosen\n", **self.ROUND)
        self.assertIn("take it out: pool/c.c", problem)

    def test_objects_of_other_sources_tell_nothing(self):
        [problem] = self.found(late="pool/a.c", pool__a_dot_c="int a;\n")
        self.assertIn("no objects of these sources", problem)


class Parts(unittest.TestCase):
    """Of a pool with two parts: turn.c owns `fill`, and log.c may read it."""
    POOL = ("struct fill {\n    int n, *others;\n    struct {\n        int x;\n    } last[2];\n};\nstruct sums {\n    int all;\n};\n"
            "struct cenote_pool {\n    struct lock lock; /* guards */\n    struct fill fill;\n    struct sums sums;\n};\n"
            "int look(int n, const struct fill *f);\nint change(int n, struct fill *f);\n")
    TABLE = "fill | pool/turn.c | pool/log.c\nsums | pool/turn.c |\n"
    OWNER = "void f(cenote_pool *p) { lock_take(&p->lock); p->fill.n++; p->sums.all = 1; }\n"

    def found(self, log: str, table: str = TABLE, owner: str = OWNER) -> list[str]:
        return problems(parts, tools__check__parts_dot_txt=table, pool__pool_dot_h=self.POOL, pool__turn_dot_c=owner,
                        pool__log_dot_c=f"int g(cenote_pool *pool)\n{{\n    {log};\n}}\n")

    def test_reads(self):
        for text in ("return pool->fill.n", "return look(1, &pool->fill)", "const struct fill *f = &pool->fill", "if (&pool->fill == f)",
                     "pool->fill.others->n = 1", "return atomic_load(&pool->fill.n)", "/* pool->sums.all = 1 */ return (*pool)->fill.n == 1"):
            self.assertEqual(self.found(text), [], text)

    def test_changes(self):
        for text in ("pool->fill.n = 1", "pool->fill.last[pool->fill.n].x |= 1", "--pool->fill.n", "return change(1, &pool->fill)",
                     "struct fill *f = &pool->fill", "atomic_store(&pool->fill.n, 1)", "s->pool->fill.n++", "memset(pool->fill.last, 0, 1)"):
            self.assertEqual(self.found(text)[:1], ["pool/log.c:3: changes fill, which tools/check/parts.txt leaves to pool/turn.c"], text)

    def test_a_part_of_others(self):
        [problem] = self.found("return pool->fill.last[pool->sums.all].x")
        self.assertIn("pool/log.c:3: reads sums", problem)

    def test_what_is_in_no_part(self):
        self.assertIn("pool/log.c:3: pool->other is in no part of pool/pool.h", self.found("return pool->other + pool->fill.n"))

    def test_the_table_is_true(self):
        log = "return pool->fill.n"
        sums = "sums | pool/turn.c |\n"
        self.assertIn("parts.txt:1: pool/x.c does not read", "".join(self.found(log, "fill | pool/turn.c | pool/log.c pool/x.c\n" + sums)))
        self.assertIn("parts.txt:1: pool/log.c does not change", "".join(self.found(log, "fill | pool/turn.c pool/log.c |\n" + sums)))
        self.assertIn("no row says which files may use sums", "".join(self.found(log, "fill | pool/turn.c | pool/log.c\n")))
        self.assertIn("the pool has no part over", "".join(self.found(log, self.TABLE + "over | pool/turn.c |\n")))

    def test_fields_are_counted(self):
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "pool").mkdir()
            pathlib.Path(folder, parts.POOL).write_text(self.POOL)
            self.assertEqual(parts.fields_of(Tree(pathlib.Path(folder)), "fill"), ["n", "others", "last"])


class Lengths(unittest.TestCase):
    def function(self, lines: int) -> str:
        return "static int f(int a,\n             int b)\n{\n" + "    a++;\n" * (lines - 4) + "}\n"

    def test_sixty_lines_and_no_more(self):
        self.assertEqual(problems(lengths, f_dot_c=self.function(60)), [])
        self.assertEqual(problems(lengths, f_dot_c=self.function(61)), ["f.c:1: a function of 61 lines, at most 60"])

    def test_cases_and_methods_are_functions_too(self):
        self.assertEqual(len(problems(lengths, f_dot_c="CASE(long)\n{\n" + "    x();\n" * 60 + "}\n")), 1)
        self.assertEqual(len(problems(lengths, f_dot_cpp="struct s {\n    int f() const {\n" + "    x();\n" * 60 + "    }\n};\n")), 1)
        self.assertEqual(len(problems(lengths, f_dot_py="def f():\n" + "    x()\n" * 60)), 1)

    def test_a_long_table_is_no_function(self):
        self.assertEqual(problems(lengths, f_dot_c="int t[] = {\n" + "    1,\n" * 90 + "};\n"), [])

    def test_long_files_long_lines_and_tabs(self):
        self.assertEqual(len(problems(lengths, f_dot_h="int x;\n" * 601)), 1)
        self.assertEqual(len(problems(lengths, f_dot_h="/*" + "x" * 150 + "*/\n")), 1)
        self.assertEqual(len(problems(lengths, f_dot_h="int x;\t/* y */\nint z; \n")), 2)

    def test_scripts_are_known_by_their_first_line(self):
        self.assertEqual(len(problems(lengths, build="#!/bin/sh\n" + "x" * 151 + "\n")), 1)
        self.assertEqual(len(problems(lengths, build="#!/usr/bin/env python3\ndef f():\n" + "    x()\n" * 60)), 1)
        self.assertEqual(problems(lengths, notes="x" * 151 + "\n"), [])

    def test_prose_is_wrapped_and_tables_and_code_are_not(self):
        long = "word " * 30
        self.assertEqual(len(problems(lengths, a_dot_md=f"{long}\n\n* {long}\n")), 2)
        self.assertEqual(len(problems(lengths, a_dot_md=f"17. an item\n    that goes on: {long}\n")), 1)
        self.assertEqual(problems(lengths, a_dot_md=f"| {long}|\n\n    {long}\n\n```\n{long}\n```\n"), [])


class Wrap(unittest.TestCase):
    def wrapped(self, text: str) -> str:
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "a.md")
            path.write_text(text)
            subprocess.run([ROOT / "tools/wrap", path], check=True)
            self.assertEqual(problems(lengths, a_dot_md=path.read_text()), [])
            return path.read_text()

    def test_long_lines_end_earlier_and_items_stay_items(self):
        self.assertEqual(self.wrapped("* " + "word " * 30 + "\nlast\n"), "* " + ("word " * 23).rstrip() + "\n  " + "word " * 7 + "last\n")

    def test_names_in_backticks_stay_on_a_line(self):
        self.assertIn("\n`make the tests`", self.wrapped("word " * 22 + "`make the tests`\n"))

    def test_what_is_short_stays(self):
        text = "A line.\nAnother.\n\n```\n" + "x" * 200 + "\n```\n| " + "y" * 200 + "\n"
        self.assertEqual(self.wrapped(text), text)


class Names(unittest.TestCase):
    def missing(self, text: str) -> list[str]:
        return problems(names, docs__a_dot_md=text, pool__heap_dot_c="int heap_take(void);\n", Makefile="test:\n")

    def test_what_exists(self):
        self.assertEqual(self.missing("`heap_take`, `heap_take()`, `pool/heap.c`, `heap.c`, `pool/`, `make test`, `build/bin/x`, `x + 1`"), [])

    def test_what_does_not(self):
        for name in ("heap_give", "heap_give()", "pool/slab.c", "slab.c", "slab/", "make tests"):
            self.assertEqual(self.missing(f"one\n`{name}`"), [f"docs/a.md:2: `{name}` does not exist"])

    def test_programs_in_fences_are_left_alone(self):
        self.assertEqual(self.missing("```\n`heap_give`\n```\n"), [])


class Seams(unittest.TestCase):
    TABLE = "feature pause on\n  lost all\n  test tests/test_it_dot_py.py\n  torch._C._cuda_pause  attribute  2.11  -\n".replace("_dot_py", "")

    def found(self, code: str, table: str = TABLE) -> list[str]:
        begins = 'from cenote.torch import features, seams\nfeatures.begin("pause", seams.get("torch._C._cuda_pause"))\n'
        files = {"python__cenote__torch__seams_dot_def": table, "tests__test_it_dot_py": "", "python__cenote__a_dot_py": begins,
                 "python__cenote__b_dot_py": code}
        return [problem.removeprefix("python/cenote/b.py:") for problem in problems(seams, **files)]

    def test_a_name_that_is_looked_up_is_fine(self):
        self.assertEqual(self.found("import torch\nx = torch.cuda.synchronize\n"), [])

    def test_a_private_name_is_not(self):
        for line in ("torch._C._cuda_pause()", "a.b._cuda_pause", "self.torch.cuda._lazy_call", "import torch._ops", "from torch._C import x",
                     "'torch.cuda._lazy_call'"):
            self.assertEqual(len(self.found(line + "\n")), 2 if "_C._cuda" in line else 1, line)

    def test_what_is_replaced_goes_through_the_register(self):
        for line in ("torch.cuda.synchronize = 1", "del self.torch.cuda", "scaler = torch.amp.GradScaler\nscaler.step = 1", "setattr(owner, 'x', 1)"):
            self.assertEqual(len(self.found(line + "\n")), 1, line)
        self.assertEqual(self.found("self.x = 1\nsetattr(self, 'x', 1)\nmoment.torch = 2\n"), [])

    def test_the_table_has_what_is_used_and_no_more(self):
        more = self.TABLE + "  torch._C._cuda_more  attribute  2.11  -\n"
        self.assertEqual(self.found("", more), ["python/cenote/torch/seams.def: no module uses torch._C._cuda_more"])
        self.assertEqual(len(self.found("features.begin('other', x)\n")), 1)
        self.assertEqual(len(self.found("", self.TABLE.replace("tests/", "none/"))), 1)


class Words(unittest.TestCase):
    def test_a_path_of_one_machine(self):
        self.assertEqual(len(problems(words, a_dot_md="see /ho" + "me/me/x\n")), 1)
        self.assertEqual(problems(words, a_dot_md="see docs/ho" + "me/x and framework/x\n"), [])


class Abi(unittest.TestCase):
    def changed(self, path: str, old: str, new: str) -> list[str]:
        """Of this tree with one change."""
        with tempfile.TemporaryDirectory() as folder:
            for source in [*ROOT.glob("include/cenote/*"), *ROOT.glob("tools/check/abi.*")]:
                copy = pathlib.Path(folder, source.relative_to(ROOT))
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_text(source.read_text())
            text = pathlib.Path(folder, path).read_text()
            self.assertIn(old, text)
            pathlib.Path(folder, path).write_text(text.replace(old, new, 1))
            return abi.check(Tree(pathlib.Path(folder))).problems

    def test_what_is_appended_is_fine(self):
        last = 'CENOTE_KIND(WORKSPACES, "workspaces")'
        self.assertEqual(self.changed("include/cenote/kinds.def", last, last + '\nCENOTE_KIND(X, "x")'), [])
        end = "} cenote_options;\n"
        self.assertEqual(self.changed("include/cenote/cenote.h", end, "    uint64_t most;\n" + end), [])

    def test_what_is_inserted_is_not(self):
        found = self.changed("include/cenote/counters.def", "CENOTE_COUNT(ooms", 'CENOTE_COUNT(x, calls, "x")\nCENOTE_COUNT(ooms')
        self.assertIn("cenote_stats.ooms has moved", "".join(found))
        found = self.changed("include/cenote/kinds.def", "CENOTE_KIND(BUFFERS", 'CENOTE_KIND(X, "x")\nCENOTE_KIND(BUFFERS')
        self.assertIn("CENOTE_KIND_BUFFERS has", "".join(found))

    def test_a_struct_has_no_holes(self):
        end = "} cenote_options;\n"
        self.assertIn("padding", "".join(self.changed("include/cenote/cenote.h", end, "    uint32_t more;\n" + end)))

    def test_a_function_takes_the_size_of_its_struct(self):
        line = "#define cenote_find(...) cenote_find(__VA_ARGS__, sizeof(cenote_block))\n"
        self.assertEqual(len(self.changed("include/cenote/cenote.h", line, "")), 1)
        self.assertEqual(len(self.changed("include/cenote/report.h", "cenote_marked *last, char *text, size_t room, size_t size)",
                                          "cenote_marked *last, char *text, size_t room)")), 1)

    def test_a_name_begins_with_the_object(self):
        found = self.changed("include/cenote/cenote.h", "cenote_pool_trim(cenote_pool *pool", "cenote_shrink(cenote_pool *pool")
        self.assertIn("cenote_shrink is about a cenote_pool", "".join(found))

    def test_a_struct_has_rows(self):
        line = "typedef struct cenote_level {"
        self.assertEqual(len(self.changed("include/cenote/cenote.h", line, "typedef struct cenote_new {\n    int x;\n} cenote_new;\n" + line)), 1)


class Library(unittest.TestCase):
    def test_declarations_over_several_lines(self):
        header = "#define CENOTE_API x\nCENOTE_API int cenote_a(void);\nCENOTE_API const char *\ncenote_b(int);\nint cenote_c(void);\n"
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "include/cenote/c.h")
            path.parent.mkdir(parents=True)
            path.write_text(header)
            self.assertEqual(library.declared(Tree(pathlib.Path(folder))), {"cenote_a", "cenote_b"})

    def test_no_library_is_a_problem(self):
        self.assertEqual(len(problems(library)), 1)


class Ends(unittest.TestCase):
    def check(self, path: str, name: str, line: str) -> list[str]:
        return problems(ends, **{path: f"int({name})(cenote_pool *pool, size_t size)\n{{\n    {line}\n}}\n"})

    def test_a_call_that_does_not_look_whether_the_pool_has_ended(self):
        self.assertEqual(len(self.check("pool__a_dot_c", "cenote_pool_a", "lock_take(&pool->lock);")), 1)
        self.assertEqual(len(self.check("stats__a_dot_c", "look", "lock_take(&pool->lock);")), 1)
        self.assertEqual(len(self.check("stats__a_dot_c", "cenote_pool_a", "if (lock_try(&group->pool->turn))")), 1)

    def test_what_may_take_them(self):
        self.assertEqual(self.check("pool__a_dot_c", "cenote_pool_a", "error = pool_take_lock(pool);"), [])
        self.assertEqual(self.check("pool__a_dot_c", "look", "lock_take(&pool->lock);"), [])
        self.assertEqual(self.check("stats__a_dot_c", "look", "lock_take(&pool->lock); bool is_open = pool->life.open;"), [])
        self.assertEqual(self.check("host__a_dot_c", "cenote_host_a", "lock_take(&pool->lock);"), [])


class Promises(unittest.TestCase):
    HEADER = """/*
 * h: first words. A call that frees
 * never fails.
 *
 *     code(1);
 */
int x; /* one */ int y; /* 0: none */
"""

    def check(self, header: str, *rows: str) -> list[str]:
        others = [name for name in promises.HEADERS if name != "cenote.h"]
        table = "\n".join(["# a comment", "cenote.h", *rows, *others]) + "\n"
        files = {f"include__cenote__{name.removesuffix('.h')}_dot_h": "" for name in others}
        return problems(promises, include__cenote__cenote_dot_h=header, tools__check__promises_dot_txt=table,
                        tests__api__test_x_dot_c="CASE(a_free)\n", **files)

    def rows(self, *tests: str) -> list[str]:
        return [f'{promises.mark(s)} "{promises.start(s)}" {test}' for s, test in zip(promises.sentences(self.HEADER), tests, strict=True)]

    def test_each_sentence_has_a_row(self):
        self.assertEqual(promises.sentences(self.HEADER), ["h: first words.", "A call that frees never fails.", "0: none"])
        self.assertEqual(self.check(self.HEADER, *self.rows("-", "api/x a_free", "untried: it cannot be")), [])
        self.assertEqual(len(self.check(self.HEADER, *self.rows("-", "api/x a_free", "-")[:2])), 1)

    def test_a_sentence_that_changed(self):
        found = self.check(self.HEADER.replace("never fails", "may fail"), *self.rows("-", "api/x a_free", "-"))
        self.assertEqual(["without a row" in found[0], "no such sentence" in found[1]], [True, True])

    def test_a_test_that_is_not_there(self):
        self.assertEqual(len(self.check(self.HEADER, *self.rows("-", "api/x a_free, api/y a_free, api/x a_fre", "-"))), 2)

    def test_a_line_that_is_no_row(self):
        self.assertIn("not a row", "".join(self.check(self.HEADER, *self.rows("-", "api/x a_free", "-"), "some words")))


if __name__ == "__main__":
    unittest.main()
