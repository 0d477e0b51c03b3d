"""A file is written whole, or the old one stays."""

import os

import pytest

from esmc_pyro.files import write_atomic


def test_writes_text_and_bytes_and_makes_folders(tmp_path):
    text = write_atomic(tmp_path / "new" / "folder" / "a.txt", "σ = 1\n")
    assert text.read_bytes() == "σ = 1\n".encode()
    assert write_atomic(str(tmp_path / "b.bin"), b"\x00\xff").read_bytes() == b"\x00\xff"


def test_replaces_an_older_file_and_leaves_nothing_else(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old and much longer")
    write_atomic(path, "new")
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_a_failure_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    path.write_text("old")

    def disk_full(descriptor):
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", disk_full)
    with pytest.raises(OSError, match="no space left"):
        write_atomic(path, "new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_text_that_cannot_be_encoded_leaves_no_file(tmp_path):
    with pytest.raises(UnicodeEncodeError):
        write_atomic(tmp_path / "a.txt", "\ud800")
    assert os.listdir(tmp_path) == []


@pytest.mark.skipif(os.name != "posix", reason="file modes are a POSIX matter")
def test_others_may_read_what_the_umask_allows(tmp_path):
    before = os.umask(0o022)
    try:
        mode = write_atomic(tmp_path / "a.txt", "x").stat().st_mode & 0o777
    finally:
        os.umask(before)
    assert mode == 0o644


@pytest.mark.skipif(os.name != "posix", reason="links need no rights there")
def test_a_link_stays_and_what_it_leads_to_is_written(tmp_path):
    (tmp_path / "far").mkdir()
    for name in ("there.txt", "absent.txt"):
        (tmp_path / name).symlink_to(tmp_path / "far" / name)
    (tmp_path / "far" / "there.txt").write_text("old")
    for name in ("there.txt", "absent.txt"):
        assert write_atomic(tmp_path / name, "new") == tmp_path / name
        assert (tmp_path / name).is_symlink()
        assert (tmp_path / "far" / name).read_text() == "new"
    assert sorted(os.listdir(tmp_path / "far")) == ["absent.txt", "there.txt"]
