"""What PyTorch's memory is for: steps, tags, and the figures of the package. For CENOTE_TEST_ALLOCATOR=cenote."""

import pickle
import threading

import torch

import simulated
from labelled import MIB, block, by, cenote, labels, only_cenote, rounded  # noqa: F401  (fixtures)

pytestmark = only_cenote


# --- steps


def test_optimizer_steps_are_steps():
    """Accumulated gradients count as one step, two optimizers as one, and a step that GradScaler leaves out counts, too."""
    simulated.forked(
        """
        import cenote, torch
        def count(): return cenote.steps()[-1].number if cenote.steps() else 0
        model, other = torch.nn.Linear(4, 4).cuda(), torch.nn.Linear(4, 4).cuda()
        first, second = torch.optim.SGD(model.parameters()), torch.optim.Adam(other.parameters())
        assert count() == 0
        for _ in range(3):
            for _ in range(4):
                model(torch.empty(2, 4, device="cuda")).sum().backward()
            first.step()
        assert count() == 3
        for _ in range(3):
            other(model(torch.empty(2, 4, device="cuda"))).sum().backward()
            first.step()
            second.step()
        assert count() == 6

        weight = torch.nn.Parameter(torch.ones(2))
        scaled = torch.optim.SGD([weight])
        del first, second
        for enabled in (True, False):
            scaler = torch.amp.GradScaler("cpu", enabled=enabled)
            for factor in (1.0, float("inf"), 1.0):
                before, was = count(), weight.detach().clone()
                scaled.zero_grad()
                scaler.scale((weight * factor).sum()).backward()
                scaler.step(scaled)
                scaler.update()
                assert count() == before + 1, (enabled, factor)
                assert not enabled or torch.equal(weight, was) == (factor != 1.0)
        from cenote.labels import step_counter
        before = count()
        cenote.step()
        scaled.step()
        scaled.step()
        assert count() == before + 1 and not step_counter._undo
        assert not hasattr(torch.amp.GradScaler.step, "__wrapped__")
        assert cenote.steps(1)[-1].number == count()
        """,
        shape="capacity:1GiB,devices:2",
        CENOTE="on",
    )


def test_a_step_knows_its_peak_and_what_it_left(cenote):
    kept, before = [], cenote.stats()["allocated"].current
    cenote.step()
    for _ in range(3):
        temporary = block(9 * MIB)
        kept.append(block(2 * MIB))
        del temporary
        cenote.step()
    three = cenote.steps()[-3:]
    assert [step.live - before for step in three] == [2 * MIB, 4 * MIB, 6 * MIB]
    assert [step.peak - before for step in three] == [11 * MIB, 13 * MIB, 15 * MIB]
    assert [step.number for step in three] == list(range(three[0].number, three[0].number + 3)) and three[0].seconds <= three[2].seconds
    del kept


# --- tags


def test_tags_reach_the_threads_of_autograd(cenote):
    weight = torch.empty(1000, device="cuda", requires_grad=True)
    with cenote.tag("backward of this"):
        (weight * 2).sum().backward()
    with cenote.tag("another"):
        kept = block(MIB)
    assert by("tag")["backward of this"] >= rounded(weight.grad)
    assert by("tag")["another"] == MIB
    pieces = {row.name: row.key for row in cenote.rows("tag")}
    from cenote.native import bindings

    found = next(piece for piece in bindings.pieces() if piece.address == weight.grad.data_ptr())
    assert found.tag == pieces["backward of this"]
    del kept


def test_a_tag_ends_for_autograds_threads_when_backward_does(cenote):
    """Also after a backward inside another, and after one that raised: a thread without a tag goes by none afterwards."""
    weight = torch.empty(1000, device="cuda", requires_grad=True)
    taken = []

    class Inner(torch.autograd.Function):
        @staticmethod
        def forward(ctx, tensor, raises):
            ctx.raises = raises
            return tensor.clone()

        @staticmethod
        def backward(ctx, gradient):
            with torch.enable_grad():
                (torch.empty(10, device="cuda", requires_grad=True) * 2).sum().backward()
            taken.append(block(MIB))
            if ctx.raises:
                raise ValueError("no")
            return gradient, None

    def without_a_tag():
        taken.append(block(4 * MIB))

    with cenote.tag("outer backward"):
        for raises in (False, True):
            try:
                Inner.apply(weight, raises).sum().backward()
            except ValueError:
                pass
            thread = threading.Thread(target=without_a_tag)
            thread.start()
            thread.join()
    assert len(taken) == 4
    assert 2 * MIB <= by("tag")["outer backward"] < 4 * MIB


def test_threads_have_tags_of_their_own(cenote):
    kept, threads = {}, []

    def work(number):
        with cenote.tag(f"thread-{number}"):
            kept[number] = block((number + 1) * MIB)
            with cenote.tag("inner"):
                kept[number, "inner"] = block(MIB)

    with cenote.tag("main"):
        for number in range(4):
            threads.append(threading.Thread(target=work, args=(number,)))
            threads[-1].start()
        [thread.join() for thread in threads]
    tags = by("tag")
    assert [tags[f"thread-{number}"] for number in range(4)] == [MIB, 2 * MIB, 3 * MIB, 4 * MIB]
    assert [tags[f"thread-{number}/inner"] for number in range(4)] == [MIB] * 4
    assert sum(tags.values()) == cenote.stats()["allocated"].current
    kept.clear()


# --- what is asked


def test_without_cenote_there_is_one_line():
    done = simulated.forked(
        """
        import torch, cenote
        torch.empty(1, device="cuda")
        for ask in (cenote.stats, cenote.rows, cenote.steps, cenote.explain, cenote.trim, cenote.label, lambda: cenote.mark("x"),
                    lambda: cenote.record(10), lambda: cenote.snapshot("x.json"), lambda: cenote.snapshot("x.pickle")):
            try:
                ask()
                print("no error")
            except cenote.Error as error:
                assert "not PyTorch's allocator here, native is" in str(error), error
        cenote.step()
        with cenote.tag("x"):
            pass
        print("end")
        """,
        CENOTE="off",
        whole=True,
    )
    assert done.stdout == "end\n"


def test_before_a_gpu_is_used_there_is_one_line():
    done = simulated.forked(
        """
        import torch, cenote
        try:
            cenote.stats()
        except cenote.Error as error:
            print(error)
        cenote.step()
        with cenote.tag("early"):
            kept = torch.empty(1000, device="cuda")
        print(cenote.rows()[0].name, torch.cuda.is_initialized())
        """,
        CENOTE="on",
        whole=True,
    )
    assert done.stdout.splitlines() == ["PyTorch has not used a GPU in this process yet, so that there are no figures: call this after the first "
                                        "tensor on a GPU", "early True"]


def test_marks(labels, capfd):
    labels.mark("begin")
    kept = block(3 * MIB)
    made = labels.mark("output_layer")
    assert (made.change, made.live) == (3 * MIB, labels.stats()["allocated"].current) and sum(made.kinds.values()) == made.live
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 2 and lines[1].startswith("cenote: output_layer: live ") and "+3.00 MiB since begin" in lines[1]
    del kept


def test_figures_agree_with_torchs(cenote):
    kept = block(5 * MIB, "cuda:1")
    for device in range(2):
        stats = cenote.stats(device)
        assert stats["allocated"].current == torch.cuda.memory_allocated(device)
        assert stats["reserved"].peak == torch.cuda.max_memory_reserved(device)
        for division in ("tag", "kind", "phase", "arena"):
            assert sum(by(division, device).values()) == stats["allocated"].current
    assert cenote.stats(kept.device)["allocated"] == cenote.stats("cuda:1")["allocated"]
    with torch.cuda.device(1):
        assert cenote.stats()["allocated"] == cenote.stats(1)["allocated"]


def test_files(cenote, tmp_path):
    kept = block(MIB)
    cenote.record(1000)
    del kept
    kept = block(MIB)
    cenote.save_trace(tmp_path / "trace.csv")
    cenote.snapshot(str(tmp_path / "picture.json"))
    cenote.snapshot(tmp_path / "picture.pickle")
    cenote.record(0)
    assert (tmp_path / "trace.csv").read_text().count("\n") >= 3 and (tmp_path / "picture.json").read_text()[0] == "{"
    with open(tmp_path / "picture.pickle", "rb") as file:
        segments = pickle.load(file)["segments"]
    assert sum(segment["total_size"] for segment in segments) >= MIB
    cenote.trim()
    assert cenote.stats()["reserved"].current < 64 * MIB
    del kept
