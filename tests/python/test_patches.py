"""The register of what is replaced: an order, an undo, one wrapper for each name. No torch here: any object can be an owner."""
import sys
import traceback
import types

import pytest

from cenote.torch import patches, seams


def adding(word):
    def make(inside):
        return lambda self, text="": inside(self, text + word)
    return make


class Base:
    def say(self, text=""):
        """What it says."""
        return text


@pytest.fixture
def kind(monkeypatch):
    monkeypatch.setattr(patches, "_places", [])  # this process may have replaced something already

    class Owner(Base):
        pass
    yield Owner
    patches.put_back()
    assert not patches._places


# Of the table: the innermost stands first.
INNER, MIDDLE, OUTER = "synchronize", "labels", "remedies"


def test_features_lie_in_the_order_of_the_table(kind):
    for feature in (MIDDLE, OUTER, INNER):
        patches.replace(feature, (kind, "say"), adding(feature[0]))
    assert kind().say() == "rls" and len(patches._places) == 1


def test_one_in_the_middle_goes_and_the_others_stay(kind):
    undo = {feature: patches.replace(feature, (kind, "say"), adding(feature[0])) for feature in (INNER, MIDDLE, OUTER)}
    undo[MIDDLE]()
    undo[MIDDLE]()
    assert kind().say() == "rs"
    undo[OUTER]()
    undo[INNER]()
    assert "say" not in vars(kind) and kind.say is Base.say


def test_a_feature_that_cannot_begin_takes_away_its_own(kind):
    patches.replace(INNER, (kind, "say"), adding("s"))
    patches.replace(OUTER, (kind, "say"), adding("r"))
    patches.put_back(OUTER)
    assert kind().say() == "s"


def test_a_wrapper_of_another_library_stays(kind):
    undo = patches.replace(MIDDLE, (kind, "say"), adding("l"))
    ours = kind.say
    kind.say = lambda self, text="": ours(self, text + "o")
    theirs = kind.say
    undo()
    assert kind.say is theirs and kind().say() == "o"
    undo = patches.replace(MIDDLE, (kind, "say"), adding("l"))
    assert kind().say() == "lo"
    undo()
    assert kind.say is theirs and kind().say() == "o"


def test_it_looks_like_what_it_replaces(kind):
    patches.replace(MIDDLE, (kind, "say"), adding("l"))
    assert kind.say.__doc__ == "What it says." and kind.say.__wrapped__ is Base.say


def test_what_is_no_function(kind):
    kind.size = property(lambda self: 1)
    table = {"env": ("a", "b")}
    undo = [patches.replace(MIDDLE, (kind, "size"), lambda inside: property(lambda self: inside.__get__(self) + 1)),
            patches.replace(MIDDLE, (table, "env"), lambda inside: (*inside, "c"))]
    assert kind().size == 2 and table["env"] == ("a", "b", "c")
    for one in undo:
        one()
    assert kind().size == 1 and table == {"env": ("a", "b")}


def test_a_class_stays_a_class():
    module = types.SimpleNamespace(Kind=Base)
    undo = patches.replace(MIDDLE, (module, "Kind"), lambda inside: type("Other", (inside,), {}))
    assert issubclass(module.Kind, Base) and module.Kind is not Base
    undo()
    assert module.Kind is Base


def test_what_is_not_there_changes_nothing(kind):
    with pytest.raises(AttributeError):
        patches.replace(MIDDLE, (kind, "missing"), adding("l"))
    with pytest.raises(KeyError):
        patches.replace(MIDDLE, ({}, "missing"), adding("l"))
    assert not patches._places


def test_a_layer_that_cannot_be_made_is_none(kind):
    patches.replace(INNER, (kind, "say"), adding("s"))

    def fails(inside):
        raise ValueError
    with pytest.raises(ValueError):
        patches.replace(OUTER, (kind, "say"), fails)
    assert kind().say() == "s"


@pytest.mark.skipif(sys.version_info < (3, 11), reason="a bare raise brings the frames back (base/tracebacks.py)")
def test_an_exception_has_no_frames_of_ours(kind):
    def bad(self, text=""):
        raise ValueError(text)
    kind.say = bad
    for feature in (INNER, OUTER):
        patches.around(feature, (kind, "say"), patches.nothing, patches.nothing)
    with pytest.raises(ValueError) as caught:
        kind().say("x")
    names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert names[-1] == "bad" and len(names) == 2, names


def test_what_is_missing_is_false_and_says_its_name():
    gone = seams.find("torch.there._is.no.such")
    assert not gone and not hasattr(gone, "part")
    with pytest.raises(seams.NotThere, match=r"has no torch\.there\._is\.no\.such"):
        gone(1)
