"""The reader of PyTorch's pickles: `cenote view` and `cenote replay` both use it, and refuse the same files with the same words."""
import io
import pickle

import pytest

from cenote.base import inputs, torch_pickle
from cenote.replay import torch_trace
from cenote.replay.trace_file import BrokenTrace
from cenote.view import torch_snapshot
from cenote.view.history import Broken
from test_view_command import torch_snapshot as good_snapshot


class Outside(pickle.Pickler):
    def persistent_id(self, value):
        return value if value == "outside" else None


def with_a_persistent_id():
    data = io.BytesIO()
    Outside(data).dump({**good_snapshot(), "x": "outside"})
    return data.getvalue()


def whole():
    return pickle.dumps(good_snapshot())


REFUSED = {
    "a name": (lambda: pickle.dumps({**good_snapshot(), "x": io.StringIO}), "it names '_io.StringIO'"),
    "a name with a control character": (lambda: b"\x80\x02cos\nsys\x1b[2J\n.", "it names 'os.sys\\x1b[2J'"),
    "a persistent id": (with_a_persistent_id, "outside the file"),
    "another kind of value": (lambda: pickle.dumps([good_snapshot()]), "the lists device_traces and segments are missing"),
    "no list of segments": (lambda: pickle.dumps({**good_snapshot(), "segments": {}}), "the lists device_traces and segments are missing"),
    "half of it": (lambda: whole()[:len(whole()) // 2], "damaged or no memory snapshot"),
    "nothing after the first byte": (lambda: b"\x80", "damaged or no memory snapshot"),
    "too much": (lambda: pickle.dumps({**good_snapshot(), "x": b"x" * (1 << 20)}), "record fewer events"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_both_readers_refuse_it_with_the_same_words(name, tmp_path, monkeypatch):
    make, why = REFUSED[name]
    monkeypatch.setattr(inputs, "MOST_BYTES", 1 << 20)
    path = tmp_path / "bad.pickle"
    path.write_bytes(make())
    said = []
    for read, error in ((torch_pickle.load, torch_pickle.BrokenPickle), (torch_snapshot.read, Broken),
                        (lambda title, file: list(torch_trace.records(title, file)), BrokenTrace)):
        with open(path, "rb") as file, pytest.raises(error) as problem:
            read("bad.pickle", file)
        said.append(str(problem.value))
    assert len(set(said)) == 1 and said[0].startswith("bad.pickle") and why in said[0] and said[0].isprintable()


def test_a_whole_one_is_read():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch_pickle, "Bounded", lambda file: file)
        assert torch_pickle.load("good", io.BytesIO(whole())) == good_snapshot()
