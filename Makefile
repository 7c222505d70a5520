# The verbs of this project; CMakeLists.txt does the work. `make help` lists them.

ifneq ($(findstring $$,$(CURDIR)),)
$(error the name of this folder has a dollar in it, which CMake and ccache take for a variable: call it otherwise)
endif

JOBS ?= $(shell nproc)
SECONDS ?= 60

# For the shell: make expands all lines of a recipe before it runs the first, and tools/setup in that one may install what they look for.
GENERATOR = $$(command -v ninja >/dev/null && echo -G Ninja)
# What was compiled in one clone is in the cache for every other: paths in it are relative (cmake/flags.cmake takes them out of objects).
ifndef CCACHE_BASEDIR
export CCACHE_BASEDIR := $(CURDIR)
endif
CCACHE = $$(command -v ccache >/dev/null && echo -DCMAKE_C_COMPILER_LAUNCHER=ccache -DCMAKE_CXX_COMPILER_LAUNCHER=ccache)

# $(call build_in,FOLDER,OPTIONS,TARGET): configure once with a generator that stays, then build; without a TARGET, everything.
define build_in
	@test -e $(1)/CMakeCache.txt || cmake -S . -B $(1) $(GENERATOR) $(CCACHE) $(2)
	@cmake -S . -B $(1) $(2) >/dev/null
	@cmake --build $(1) -j$(JOBS) $(if $(3),--target $(3))
endef

RELEASE = -DCMAKE_BUILD_TYPE=Release -DCENOTE_DEBUG=0 -DCENOTE_LTO=ON -DCENOTE_TESTS=OFF
DEBUG   = -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCENOTE_DEBUG=1 -DCENOTE_WERROR=ON
# Compiled in half the time, and lines are named all the same. What gcc warns of here and not elsewhere is not true.
ASAN    = $(DEBUG) -DCENOTE_WERROR=OFF -DCENOTE_DEBUG=2 -DCENOTE_SANITIZE=address,undefined -DCMAKE_BUILD_TYPE=Sanitizers $(foreach language,C CXX,\
	'-DCMAKE_$(language)_FLAGS_SANITIZERS=-O1 -g1')
# clang is asked for its warnings: nothing is optimised, described to a debugger, or linked.
UNLINKED = $(foreach kind,LINK_EXECUTABLE CREATE_SHARED_LIBRARY CREATE_SHARED_MODULE,$(foreach language,C CXX,\
	'-DCMAKE_$(language)_$(kind)=<CMAKE_COMMAND> -E touch <TARGET>'))
CLANG   = -DCENOTE_TESTS=OFF -DCMAKE_BUILD_TYPE=None -DCENOTE_DEBUG=2 -DCENOTE_WERROR=ON -DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++ $(UNLINKED)

# What the sanitizer builds leave out, by folder of tests/: they measure time, take minutes there, or build programs that
# know nothing of sanitizers.
# Tests have no time-outs of their own: one that hangs ends after CENOTE_TEST_HANGS seconds, which tools/test stretches for this machine.
CTEST = ctest --output-on-failure --no-tests=error -j$(JOBS) --timeout $${CENOTE_TEST_HANGS:-1200}
REPORT = "$${CENOTE_TEST_REPORTS:-$$PWD/build-debug}"
SLOW  = -LE 'bench|slow|install'
# The thread sanitizer has locks and threads of its own, which a child of a fork waits for; in host/process children open pinned memory.
FORKS = -LE 'bench|slow|install|faults|processes' -E '^host/process$$'

# CENOTE_TEST_ALL: what cannot run has failed. Each folder of Python tests is a process of its own: tests/torch starts itself again on a simulated GPU.
# One thread for what computes on the CPU: threads that wait for work spin, and take the processors from the tests beside them.
PYTEST = OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 CENOTE_TEST_ALL=1 CENOTE_BUILD="$$PWD/build-debug" CENOTE_SIM_LIBRARIES="$$PWD/build-debug/sim" .venv/bin/python -m pytest

.PHONY: help build run test quick deep bench table policy docs check format faults fuzz mutants coverage gpu install wheel matrix outcomes clean

help:
	@echo 'make build    the library and programs, for speed, in build/'
	@echo 'make run      a training program of PyTorch under its own allocators and cenote: a table, and a picture in build/run.png'
	@echo 'make test     everything a change has to pass: tests, sanitizers, both compilers, make check'
	@echo 'make quick    what a change in the C sources has to pass before a commit: a part of make test, in a minute once it is built'
	@echo 'make deep     slower: thread sanitizer, long random programs and fuzzing, valgrind, clang-tidy, cppcheck'
	@echo 'make bench    benchmarks, PyTorch included'
	@echo 'make table    twelve programs of PyTorch libraries on the simulated GPU: what each allocator of PyTorch reserves (10 minutes)'
	@echo 'make policy   recorded programs under two lists of prices, the GPU level and behind: waste, driver time, waits; TRACES="FILE..." beside ours'
	@echo 'make docs     the documents as a site with search, in build/site; a link that leads nowhere is an error'
	@echo 'make check    rules of the house: include order, lengths, names in documents, exported symbols'
	@echo 'make format   clang-format for .c and .cpp files changed since the last commit'
	@echo 'make faults   fails every driver call of every scenario on purpose, once and for good'
	@echo 'make fuzz     fuzzing with clang, SECONDS=60'
	@echo 'make mutants  puts deliberate bugs into the sources, one at a time: does a test notice? ONLY="WORD..." for some of them'
	@echo 'make coverage which branches of pool/ the tests take, and why the rest is not taken (clang)'
	@echo 'make outcomes tests/torch under native, cenote and cenote without its adapter: what passes, and why the rest is skipped; UNDER="WORD..." for some'
	@echo 'make gpu      the tests that need no simulation, on the real driver'
	@echo 'make install  PREFIX=/usr/local'
	@echo 'make matrix   each Python that is here with each PyTorch that the wheel has an adapter for, as a table'
	@echo 'make wheel    the source package and the wheel, in dist/, and tries them with each Python that is here (docs/release.md)'
	@echo 'make clean    removes the build folders'

build:
	@tools/setup build
	$(call build_in,build,$(RELEASE))

run: build
	@tools/setup run
	@echo "An inference server in C on a simulated GPU (examples/tiny_runtime, docs/custom-runtime.md):"
	@CENOTE_SIM=capacity:1GiB,lag:300000,manual_clock:1,charge_cost:1 build/bin/example-tiny-runtime
	@.venv/bin/cenote compare --picture build/run.png examples/training.py
	@echo
	@echo "Next, with a program of yours:"
	@echo "    .venv/bin/cenote dry-run --gpu 24GiB YOUR.py                    does it fit a GPU of that size?"
	@echo "    .venv/bin/cenote run --sim 80GiB --report memory.html YOUR.py   what takes the memory? A page for a browser"
	@echo "    pip install . && CENOTE=on python YOUR.py                       on a GPU; before that: cenote qualify"

# Of what is built for speed the tests look at the library alone.
test:
	@tools/setup test
	$(call build_in,build,$(RELEASE),cenote_library)
	$(call build_in,build-debug,$(DEBUG))
	@env -u PYTHONDONTWRITEBYTECODE .venv/bin/python -m compileall -q python/cenote tests # hundreds of programs import these
	@tools/test $(JOBS) $(LANES)

quick:
	@tools/setup test
	$(call build_in,build-debug,$(DEBUG))
	@tools/test $(JOBS) quick sources

# Lanes of `make test`, the longest first: none needs what another one makes. tools/test runs them and counts what they write to REPORT.
LANES = torch-cenote python dry-run torch sanitizers debug torch-apart clang check
.PHONY: $(LANES:%=lane-%) lane-quick lane-sources

# Growth and explanations in processes of their own: other tests say cenote.step(), which is for good. test_math: kernels write nothing.
APART = growth explain
lane-torch-cenote:
	CENOTE_TEST_ALLOCATOR=cenote $(PYTEST) tests/torch $(APART:%=--ignore tests/torch/only_cenote/test_cenote_%.py) --ignore tests/torch/simulator/test_math.py --junitxml=$(REPORT)/cenote.xml

lane-torch-apart:
	for each in $(APART); do CENOTE_TEST_ALLOCATOR=cenote $(PYTEST) tests/torch/only_cenote/test_cenote_$$each.py --junitxml=$(REPORT)/$$each.xml || exit 1; done

# Programs on the simulated GPU that a dry run ends; and all other tests of the command and the package.
DRY_RUN = $(foreach word,dry_run% values advice% ranks trainers limit next_value same_verdict,$(filter tests/python/test_$(word).py,$(wildcard tests/python/test_*.py)))

lane-dry-run:
	$(PYTEST) -m "not deep" $(DRY_RUN) --junitxml=$(REPORT)/dry-run.xml

lane-python:
	$(PYTEST) -m "not deep" tests/python $(DRY_RUN:%=--ignore %) --junitxml=$(REPORT)/python.xml

# PyTorch's own allocator on the simulated GPU: again when the sources of one of these, or a test, have changed. The stamp is committed.
lane-torch:
	@tools/unchanged tests/torch/native.passed env $(PYTEST) tests/torch --junitxml=$(REPORT)/torch.xml

# Folders of tests that run under sanitizers here and without them in `make quick` and `make deep`.
QUICK = '^(base|driver|pool|stats|api|death)$$'
lane-debug:
	$(CTEST) --test-dir build-debug -LE $(QUICK) --output-junit $(REPORT)/debug.xml

lane-quick:
	$(CTEST) --test-dir build-debug -L $(QUICK) --output-junit $(REPORT)/quick.xml

lane-sources:
	@tools/check/run lengths layers parts links names words abi
	@tests/mutants/run --check
	$(PYTEST) -q tests/python/test_outputs.py tests/python/test_packages.py --junitxml=$(REPORT)/sources.xml

# Random programs are shorter here than in lane-debug. What tries whether broken rules are noticed, and the search for waste, whose programs are
# those of others, are there alone; long in `make deep`.
lane-sanitizers:
	$(call build_in,build-asan,$(ASAN))
	$(CTEST) --test-dir build-asan $(SLOW) -E '^(hazard/(broken_rules|old_driver)|tools/waste)$$' --output-junit $(REPORT)/sanitizers.xml

lane-clang:
	$(call build_in,build-clang,$(CLANG))

lane-check:
	@tools/check/run

deep:
	@tools/setup deep
	@tools/setup test
	$(call build_in,build,$(RELEASE))
	$(call build_in,build-debug,$(DEBUG))
	$(MAKE) --no-print-directory lane-quick
	$(PYTEST) -m deep tests/python
	.venv/bin/python bench/torch/speed.py --check
	build-debug/bin/bench-scale --check "the lock"
	build-debug/bin/bench-sleep --check
	$(call build_in,build-tsan,$(DEBUG) -DCENOTE_SANITIZE=thread)
	$(CTEST) --test-dir build-tsan $(FORKS)
	CENOTE_TEST_ROUNDS=40 build-debug/tests/test-stress-soak
	CENOTE_TEST_ROUNDS=10 build-debug/tests/test-slow-group_rounds
	$(call build_in,build-asan,$(ASAN))
	build-asan/tests/test-faults-faults short
	build-asan/tests/test-hazard-old_driver
	CENOTE_TEST_ROUNDS=4 build-asan/tests/test-stress-soak
	CENOTE_TEST_ROUNDS=2 build-asan/tests/test-pool-pages_random
	CENOTE_TEST_ROUNDS=2 build-asan/tests/test-host-close
	@$(MAKE) --no-print-directory fuzz SECONDS=600
	@tools/deep build-debug
	@tests/mutants/run # goes on where it was cut off; tests/mutants/last.txt says what became of each

bench: build
	@for program in build/bin/bench-*; do test ! -x $$program || $$program --json || exit 1; done
	@tools/setup test
	@.venv/bin/python bench/torch/speed.py --json
	@.venv/bin/python bench/torch/driver_time.py --json
	@.venv/bin/python bench/torch/trim.py --json
	@GLIBC_TUNABLES=glibc.rtld.optional_static_tls=16384 .venv/bin/python build/bin/cenote run --sim 80GiB bench/host/run.py --json

table: build
	@tools/setup test
	@.venv/bin/python examples/torch/table.py

policy: build
	@tools/setup test
	@.venv/bin/python bench/policy/run.py $(TRACES)

# Strict: what mkdocs warns of ends it. tools/site/ says what the pages are.
docs:
	@tools/setup docs
	@NO_MKDOCS_2_WARNING=1 .venv/bin/python -m mkdocs build --strict --config-file tools/site/mkdocs.yml
	@echo "open build/site/index.html: pages and search need neither a server nor a network"

check: build
	@tools/check/run

format:
	@tools/setup format
	@git diff --name-only --diff-filter=d HEAD -- '*.c' '*.cpp' | xargs -r clang-format -i

faults:
	@tools/setup test
	$(call build_in,build-debug,$(DEBUG))
	@build-debug/tests/test-faults-faults long

FUZZ = -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCENOTE_DEBUG=2 -DCENOTE_FUZZ=ON -DCENOTE_TESTS=OFF -DCENOTE_SANITIZE=address,undefined \
	-DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++

fuzz:
	@tools/setup fuzz
	$(call build_in,build-fuzz,$(FUZZ))
	@fuzz/run build-fuzz $(SECONDS)

COVERAGE = -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCENOTE_DEBUG=0 -DCENOTE_COVERAGE=ON -DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++

coverage:
	@tools/setup coverage
	$(call build_in,build-coverage,$(COVERAGE))
	@tools/coverage/run build-coverage

mutants:
	@tools/setup test
	@tests/mutants/run $(ONLY)

UNDER = native cenote fallback
outcomes:
	@tools/setup test
	$(call build_in,build-debug,$(DEBUG))
	@mkdir -p build-debug/outcomes
	for each in $(UNDER); do CENOTE_TEST_ALLOCATOR=$$each $(PYTEST) -q tests/torch/memory tests/torch/simulator --junitxml=build-debug/outcomes/$$each.xml || true; done
	@tools/outcomes $(UNDER:%=build-debug/outcomes/%.xml)

gpu:
	@tools/setup test
	$(call build_in,build-debug,$(DEBUG))
	@tools/gpu build-debug

PREFIX ?= /usr/local
install: build
	@cmake -S . -B build -DCMAKE_INSTALL_PREFIX=$(PREFIX) >/dev/null
	@cmake --install build

# TORCH="2.11.0 ...": versions to compile the adapter for. TRY="--root FOLDER": tries the Pythons of that root folder, too. MACHINE=aarch64: the
# wheel for another processor, which is not tried.
wheel: build
	@MACHINE=$(MACHINE) tools/setup wheel
	@.venv/bin/python tools/wheel/build.py dist $(addprefix --machine ,$(MACHINE)) $(TORCH)
	@$(if $(MACHINE),,.venv/bin/python tools/wheel/try.py dist $(TRY))

matrix:
	@test -d dist || $(MAKE) --no-print-directory wheel
	@.venv/bin/python tools/wheel/try.py dist --matrix

clean:
	rm -rf build build-mutants build-debug build-asan build-clang build-tsan build-fuzz build-coverage
