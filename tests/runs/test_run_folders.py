"""Where runs are looked for."""

from duoln.runs.folder import run_folders


def test_a_run_the_runs_in_a_folder_or_those_in_its_folders(tmp_path):
    assert run_folders(tmp_path) == []
    for name in ("b/ln", "a/none", "a/ln"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "config.json").write_text("{}")
    assert run_folders(tmp_path / "a" / "ln") == [tmp_path / "a" / "ln"]
    assert run_folders(tmp_path / "a") == [tmp_path / "a" / "ln", tmp_path / "a" / "none"]
    assert run_folders(tmp_path) == [tmp_path / "a" / "ln", tmp_path / "a" / "none", tmp_path / "b" / "ln"]
