"""Guards ``ostinato pull``: a name that is wrong must say which would be right; nothing is fetched twice."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from ostinato.cli.main import app
from ostinato.models import registry
from ostinato.models.pull import PullReporter


def pull(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["pull", *arguments])


def test_the_list_has_sizes_and_licences_and_what_was_pulled(tmp_path: Path) -> None:
    (tmp_path / "models" / "org--repo").mkdir(parents=True)
    output = pull("--list", "--data-dir", str(tmp_path)).output
    assert "93 MB, Apache-2.0" in output
    assert "org/repo  (here" in output


def test_without_a_name_it_says_what_to_write() -> None:
    result = pull()
    assert result.exit_code == 2
    assert "ostinato pull smollm2-135m-instruct" in result.stderr


def test_a_misspelt_name_is_answered_with_the_near_one(tmp_path: Path) -> None:
    result = pull("smollm2-135m-instrct", "--data-dir", str(tmp_path))
    assert result.exit_code == 2
    assert "did you mean smollm2-135m-instruct" in result.stderr


@pytest.mark.parametrize(
    ("downloads", "said"), [(True, "Fetched m ("), (False, "Already here: m (")]
)
def test_it_says_whether_anything_was_fetched_and_where_it_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, downloads: bool, said: str
) -> None:
    asked: list[tuple[str, Path]] = []

    def fake_pull(name: str, data_dir: Path, report: PullReporter) -> Path:
        asked.append((name, data_dir))
        if downloads:
            report.started(10)
            report.advanced(10)
            report.finished()
        return tmp_path / "m.gguf"

    monkeypatch.setattr(registry, "pull", fake_pull)
    result = pull("m", "--data-dir", str(tmp_path))
    assert result.exit_code == 0
    assert said in result.stdout
    assert str(tmp_path / "m.gguf") in result.stdout
    assert asked == [("m", tmp_path)]
