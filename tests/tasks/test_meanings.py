"""Every setting of every task says what it means, and `duoln show` reads it."""

import sys
from dataclasses import dataclass
from typing import Literal

import pytest

from duoln.examples.own_task import Spirals
from duoln.tasks import Config
from duoln.tasks.registry import Registry
from duoln.tasks.settings import kind_in_words, meanings_of, settings_of
from duoln.testing import check_task


@dataclass(frozen=True)
class Base(Config):
    width: int = 1
    """Of a layer,
    in units."""
    depth: int = 2
    """How many layers."""


@dataclass(frozen=True)
class Own(Base):
    """A class's own string is no setting's."""

    depth: int = 3
    width: int = 4
    """Of every layer."""
    silent: int = 5


@dataclass(frozen=True)
class SilentConfig(Config):
    mute: int = 0
    known: int = 1
    """Something."""


class Silent(Spirals):
    config = SilentConfig


def test_no_setting_of_a_built_in_task_lacks_its_meaning():
    tasks = Registry().tasks
    assert len(tasks) >= 8
    silent = [f"{name}: {s.name}" for name, entry in tasks.items() for s in settings_of(entry.task) if not s.meaning]
    assert not silent


def test_strings_of_a_class_and_of_its_bases():
    meanings = meanings_of(Own)
    assert meanings["width"] == "Of every layer." and meanings["depth"] == "How many layers."
    assert "silent" not in meanings and meanings["seed"]
    assert meanings_of(Base)["width"] == "Of a layer, in units."


def test_a_class_without_source_has_the_meanings_of_its_bases():
    made = {"__name__": "nowhere", "Config": Config, "dataclass": dataclass}
    exec("@dataclass(frozen=True)\nclass Typed(Config):\n    width: int = 1\n    'Of a layer.'\n", made)
    assert "width" not in meanings_of(made["Typed"]) and meanings_of(made["Typed"])["epochs"]


def test_an_installed_package_has_its_meanings(tmp_path, monkeypatch):
    (tmp_path / "guest_settings.py").write_text(
        "from dataclasses import dataclass\nfrom duoln.tasks import Config\n\n\n@dataclass(frozen=True)\n"
        "class GuestConfig(Config):\n    width: int = 1\n    '''Of a layer.'''\n")
    monkeypatch.syspath_prepend(tmp_path)
    import guest_settings

    assert meanings_of(guest_settings.GuestConfig)["width"] == "Of a layer."
    del sys.modules["guest_settings"]


@pytest.mark.parametrize(("kind", "words"), [
    (int, "int"), (float | None, "float or none"), (bool, "true or false"), (Literal["a", "b"], "one of a, b"),
    (Literal["a", 2] | None, "one of a, 2 or none")])
def test_types_in_words(kind, words):
    assert kind_in_words(kind) == words


def test_check_task_names_a_setting_without_meaning():
    with pytest.raises(AssertionError, match=r"string under every field of SilentConfig.* found none under mute$"):
        check_task(Silent())
