"""The commit of a run is that of the checkout that duoln runs from."""

import pytest

import duoln
from duoln.runs import commit


def test_git_is_none_outside_a_checkout(tmp_path, monkeypatch):
    monkeypatch.setattr(duoln, "__file__", str(tmp_path / "site-packages" / "duoln" / "__init__.py"))
    assert commit.git() is None


@pytest.mark.parametrize(("sha", "changes", "told"), [
    ("0" * 40, "", {"sha": "0" * 40, "dirty": False}), ("0" * 40, " M a.py", {"sha": "0" * 40, "dirty": True}),
    (None, "", None), ("0" * 40, None, None)])
def test_the_commit_is_that_of_the_folder_around_the_package(tmp_path, monkeypatch, sha, changes, told):
    (tmp_path / ".git").mkdir()
    monkeypatch.setattr(duoln, "__file__", str(tmp_path / "duoln" / "__init__.py"))
    answers = {(tmp_path, "rev-parse", "HEAD"): sha, (tmp_path, "--no-optional-locks", "status", "--porcelain"): changes}
    monkeypatch.setattr(commit, "_answer", lambda *asked: answers[asked])
    assert commit.git() == told


def test_a_commit_in_words():
    assert commit.commit_words(None) is None and commit.commit_words({"sha": "0123456789abcdef", "dirty": False}) == "0123456789"
    assert commit.commit_words({"sha": "0" * 40, "dirty": True}) == "0000000000 with changes"
