"""``esmc diagnose``."""

import pytest


def test_diagnose_writes_a_page_into_a_folder(esmc_json, data, model, tmp_path):
    said = esmc_json("diagnose", model, data / "table.csv", "--test-fraction", 0.25, "--out", tmp_path, "--draws", 100)
    page = tmp_path / "diagnose.html"
    assert said == {"out": str(page), "bytes": page.stat().st_size}
    assert "PSIS-LOO" in page.read_text()


@pytest.mark.usefixtures("untouched")
def test_diagnose_refuses_before_any_work(esmc, data, model, tmp_path):
    target = tmp_path / "page.html"
    target.write_text("mine")
    result = esmc("diagnose", model, data / "table.csv", "--out", target)
    assert result.exit_code == 2
    assert "say --force to overwrite" in result.stderr
    assert target.read_text() == "mine"
    result = esmc("diagnose", model, data / "blank.csv", "--out", tmp_path / "new.html")
    assert result.exit_code == 3
    assert not (tmp_path / "new.html").exists()
