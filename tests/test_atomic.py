"""Writing output files: whole or not at all, and only over our own."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from remat_cli.atomic import HEAD_BYTES, write_atomic
from remat_cli.errors import InputError


def ours(head: bytes) -> bool:
    return head.startswith(b"ours")


def write(path: Path, data: bytes = b"ours, new", *, force: bool = False) -> None:
    write_atomic(path, data, force=force, ours=ours)


def test_a_new_file_has_the_contents_and_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write(tmp_path / "a")
    finally:
        os.umask(before)
    assert (tmp_path / "a").read_bytes() == b"ours, new"
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o640
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_our_own_and_empty_files_are_replaced_and_keep_their_permissions(tmp_path: Path) -> None:
    for old in (b"ours, old", b""):
        path = tmp_path / "a"
        path.write_bytes(old)
        path.chmod(0o604)
        write(path)
        assert path.read_bytes() == b"ours, new"
        assert stat.S_IMODE(path.stat().st_mode) == 0o604


def test_a_foreign_file_is_refused_without_force(tmp_path: Path) -> None:
    path = tmp_path / "thesis.txt"
    path.write_bytes(b"years of work")
    with pytest.raises(InputError) as caught:
        write(path)
    assert "--force" in (caught.value.hint or "")
    assert path.read_bytes() == b"years of work"
    write(path, force=True)
    assert path.read_bytes() == b"ours, new"


def test_only_the_head_is_shown_to_the_judge(tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.write_bytes(b"x" * (HEAD_BYTES + 5))
    seen: list[int] = []

    def judge(head: bytes) -> bool:
        seen.append(len(head))
        return True

    write_atomic(path, b"", force=False, ours=judge)
    assert seen == [HEAD_BYTES]


def test_a_symbolic_link_stays_one(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_bytes(b"ours, old")
    link.symlink_to(target)
    write(link)
    assert link.is_symlink()
    assert target.read_bytes() == b"ours, new"


def test_devices_are_written_to(tmp_path: Path) -> None:
    write(Path("/dev/null"))
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)


@pytest.mark.parametrize(("name", "message"), [("", "is a folder"), ("no/such/a", "No such file"), ("f/a", "director")])
def test_places_that_cannot_be_written(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "f").write_bytes(b"ours")
    with pytest.raises(InputError, match=message):
        write(tmp_path / name if name else tmp_path)


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"ours, old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match="No space left"):
        write(path)
    assert path.read_bytes() == b"ours, old"
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_names_of_the_longest_length_work(tmp_path: Path) -> None:
    write(tmp_path / ("n" * 255))
    assert (tmp_path / ("n" * 255)).exists()
