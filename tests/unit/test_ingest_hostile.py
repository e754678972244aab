"""Inputs that were made to do harm: links, pipes, bombs, lying archives, endless lines."""

import gzip
import io
import os
import tarfile
import time

import pytest

from denpex.errors import InputError
from denpex.ingest import archive, load, packed, tree
from denpex.model import StreamKind


@pytest.fixture
def secret(tmp_path):
    path = tmp_path / "secret" / "shadow.log"
    path.parent.mkdir()
    path.write_bytes(b"root:secret\n")
    return path


def contents(snapshot):
    return b"".join(source.load().data for source in snapshot.streams)


def test_links_pipes_and_sockets_are_gaps_and_never_opened(tmp_path, secret):
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "rank_0.log").write_bytes(b"fine\n")
    (logs / "rank_1.log").symlink_to(secret)
    (logs / "more").symlink_to(secret.parent)
    os.mkfifo(logs / "rank_2.log")
    began = time.monotonic()
    snapshot = load([logs])
    assert contents(snapshot) == b"fine\n"
    assert time.monotonic() - began < 5
    assert {gap.where for gap in snapshot.gaps} == {"rank_1.log", "more", "rank_2.log"}


def test_a_file_that_becomes_a_link_before_it_is_read_is_refused(tmp_path, secret):
    logs = tmp_path / "logs"
    (logs / "deep").mkdir(parents=True)
    (logs / "deep" / "rank_0.log").write_bytes(b"fine\n")
    snapshot = load([logs])
    (logs / "deep").rename(logs / "was")
    (logs / "deep").symlink_to(secret.parent)
    (secret.parent / "rank_0.log").write_bytes(b"root:secret\n")
    with pytest.raises(InputError, match="cannot be read"):
        snapshot.streams[0].load()


def test_a_file_that_becomes_a_pipe_before_it_is_read_does_not_block(tmp_path):
    path = tmp_path / "rank_0.log"
    path.write_bytes(b"fine\n")
    source = load([tmp_path]).streams[0]
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(InputError, match="it is a pipe"):
        source.load()


def test_names_are_shown_without_control_characters(tmp_path):
    (tmp_path / "rank_0\x1b[2J\n.log").write_bytes(b"x\n")
    (tmp_path / os.fsdecode(b"rank_1\xff.log")).write_bytes(b"y\n")
    snapshot = load([tmp_path])
    assert sorted(source.load().data for source in snapshot.streams) == [b"x\n", b"y\n"]
    for source in snapshot.streams:
        assert source.info.name.isprintable()
        source.info.name.encode()


def test_a_long_file_keeps_its_head_and_its_tail(tmp_path, monkeypatch):
    monkeypatch.setattr(tree, "MAX_FILE", 1000)
    (tmp_path / "rank_0.log").write_bytes(b"a" * 600 + b"b" * 5000 + b"c" * 600)
    blob = tree.walk(tmp_path).blobs["rank_0.log"]
    content = blob.read(1000)
    assert content.data == b"a" * 500 + b"c" * 500
    assert content.pieces == ((0, 0), (500, 5700))
    assert content.size == 6200


def test_a_bomb_costs_bounded_memory_and_time(tmp_path, monkeypatch):
    monkeypatch.setattr(packed, "MAX_INFLATED", 64 << 20)
    (tmp_path / "rank_0.log.gz").write_bytes(gzip.compress(bytes(100 << 20), 9))
    blob = tree.walk(tmp_path).blobs["rank_0.log.gz"]
    pieces = packed.inflate(iter([blob.read().data]), "gzip", 64 << 20)
    data, where, size, fault = packed.bounded(pieces, 1 << 20)
    assert len(data) == 1 << 20
    assert where == ((0, 0), (1 << 19, size - (1 << 19)))
    assert size <= 65 << 20
    assert "more than 64 MiB" in fault


def _tar(*members, mode="w:"):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode, format=tarfile.PAX_FORMAT) as tar:
        for info, content in members:
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def _info(name, kind=tarfile.REGTYPE, link=""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


@pytest.mark.parametrize("mode", ["w:", "w:gz"])
def test_links_devices_and_names_that_lead_out_of_an_archive_are_gaps(tmp_path, secret, mode):
    members = [
        (_info("rank_0.log"), b"fine\n"),
        (_info("rank_1.log", tarfile.SYMTYPE, str(secret)), b""),
        (_info("rank_2.log", tarfile.LNKTYPE, "rank_0.log"), b""),
        (_info("rank_3.log", tarfile.CHRTYPE), b""),
        (_info("../../rank_4.log"), b"out\n"),
        (_info("/etc/rank_5.log"), b"absolute\n"),
    ]
    (tmp_path / "a.tar").write_bytes(_tar(*members, mode=mode))
    before = sorted(tmp_path.rglob("*"))
    snapshot = load([tmp_path / "a.tar"])
    assert contents(snapshot) == b"absolute\nfine\n"
    assert len(snapshot.gaps) == 4
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("cut", [300, 700, 1300, 2000])
@pytest.mark.parametrize("mode", ["w:", "w:gz"])
def test_an_archive_that_breaks_off_gives_what_it_has_or_a_sentence(tmp_path, cut, mode):
    whole = _tar((_info("rank_0.log"), os.urandom(900).hex().encode()), (_info("rank_1.log"), b"b" * 900), mode=mode)
    (tmp_path / "a.tar").write_bytes(whole[:cut])
    try:
        for source in load([tmp_path / "a.tar"]).streams:
            source.load()
    except InputError:
        pass


@pytest.mark.parametrize("pack", [gzip.compress, bytes])
def test_a_header_that_claims_a_monstrous_extension_is_refused(tmp_path, pack):
    info = tarfile.TarInfo("x")
    info.type, info.size = tarfile.XHDTYPE, 1 << 33
    (tmp_path / "a.tar.gz").write_bytes(pack(info.tobuf(tarfile.GNU_FORMAT) + bytes(4096)))
    with pytest.raises(InputError, match="impossible size"):
        load([tmp_path / "a.tar.gz"])


def test_a_member_that_claims_more_than_there_is_does_not_break_it(tmp_path):
    info = tarfile.TarInfo("rank_0.log")
    info.size = 1 << 40
    (tmp_path / "a.tar").write_bytes(info.tobuf(tarfile.GNU_FORMAT) + b"short\n")
    snapshot = load([tmp_path / "a.tar"])
    assert all(len(source.load().data) < 1000 for source in snapshot.streams)


def test_what_a_compressed_archive_may_hold_in_memory_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(archive, "MAX_KEPT", 1000)
    members = [(_info(f"rank_{rank}.log"), b"x" * 600) for rank in range(5)]
    (tmp_path / "a.tar.gz").write_bytes(_tar(*members, mode="w:gz"))
    snapshot = load([tmp_path / "a.tar.gz"])
    assert len(snapshot.streams) == 2
    assert len(snapshot.gaps) == 3


def test_a_directory_with_too_many_files_is_read_in_part(tmp_path, monkeypatch):
    monkeypatch.setattr(tree, "MAX_FILES", 3)
    for rank in range(6):
        (tmp_path / f"rank_{rank}.log").write_bytes(b"x\n")
    snapshot = load([tmp_path])
    assert len(snapshot.streams) == 3
    assert any("only the first 3 files" in gap.what for gap in snapshot.gaps)


def test_a_directory_that_is_too_deep_is_left_out(tmp_path):
    deep = tmp_path.joinpath(*["d"] * 20)
    deep.mkdir(parents=True)
    (deep / "rank_0.log").write_bytes(b"x\n")
    (tmp_path / "rank_1.log").write_bytes(b"y\n")
    snapshot = load([tmp_path])
    assert contents(snapshot) == b"y\n"
    assert any("too deep" in gap.what for gap in snapshot.gaps)


@pytest.mark.parametrize("raw", [b"", b"\n" * 100, b"\xff\xfe\xff" * 1000, b"[" * 200_000, b"|" * 100_000, bytes(100)])
def test_no_content_breaks_the_reader(tmp_path, raw):
    (tmp_path / "rank_0.log").write_bytes(b"fine\n")
    for name in ("job.log", "slurm.txt", "meta.json", "sacct.txt", "dmesg"):
        (tmp_path / name).write_bytes(raw)
    snapshot = load([tmp_path])
    assert StreamKind.OUT in {source.info.kind for source in snapshot.streams}
    for source in snapshot.streams:
        source.load()
