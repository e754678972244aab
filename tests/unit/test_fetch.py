"""Fetching runs over ssh: a real sshd with the real hand-out, and servers that lie, hang or are not there."""

import contextlib
import io
import json
import logging
import os
import shutil
import socket
import subprocess
import tarfile
import threading
import time
from pathlib import Path

import paramiko
import pytest

from denpex.config import Config, FetchConfig
from denpex.errors import SpoolError
from denpex.ingest import fetch, untar
from denpex.model import Gap, Job

ROOT = Path(__file__).parents[2]
SSHD = shutil.which("sshd") or "/usr/sbin/sshd"
USER = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()

pytestmark = pytest.mark.skipif(not Path(SSHD).exists(), reason="needs openssh-server")


def key(path):
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True)
    return path


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    place = tmp_path_factory.mktemp("keys")
    return {name: key(place / name) for name in ("worker", "stranger", "host", "other_host")}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def make_run(spool, node, job=7, opened=None, done=True):
    opened = int(time.time()) if opened is None else opened
    path = spool / "c1" / node / f"{job}.0.{opened}"
    (path / "user" / "streams").mkdir(parents=True)
    meta = {"format": 1, "cluster": "c1", "node": node, "job_id": job, "restart": 0, "uid": os.getuid()}
    (path / "meta.json").write_text(json.dumps(meta))
    (path / "user" / "streams" / "0.0.out").write_bytes(b"boom\n" * 100_000)
    (path / "user" / "streams" / "0.0.out.idx").write_bytes(b"0 1 2\nend 500000 eof\n")
    if done:
        (path / "DONE").write_bytes(b"")
    return path


@pytest.fixture(scope="module")
def sshd(tmp_path_factory, keys):
    """A real sshd on several loopback addresses; node names are addresses; its key may only run the hand-out."""
    place = tmp_path_factory.mktemp("sshd")
    spool = place / "spool"
    (place / "node.sh").write_text(f"DENPEX_PYTHON={os.sys.executable}\nDENPEX_PACKAGE={ROOT}\n")
    (place / "node.json").write_text(json.dumps({"spool_dir": str(spool)}))
    command = f"DENPEX_ETC={place} /bin/sh {ROOT}/hooks/handout"
    public = (keys["worker"].with_suffix(".pub")).read_text()
    (place / "authorized").write_text(f'restrict,command="{command}" {public}')
    port = free_port()
    (place / "config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nListenAddress 127.0.0.2\nHostKey {keys['host']}\n"
        f"AuthorizedKeysFile {place}/authorized\nStrictModes no\nUsePAM no\nPidFile none\nPasswordAuthentication no\n"
        "PermitRootLogin yes\nLogLevel QUIET\nMaxStartups 50\n"
    )
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    with subprocess.Popen([SSHD, "-D", "-e", "-f", place / "config"], stderr=subprocess.DEVNULL) as process:
        for _ in range(100):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        yield port, spool
        process.terminate()


class Setup:
    """A worker's configuration for one test."""

    def __init__(self, place, keys, port):
        self.keys, self.port, self.place = keys, port, place
        self.known = place / "known_hosts"
        self.know("127.0.0.1", "host")

    def know(self, host, name):
        kind, blob = self.keys[name].with_suffix(".pub").read_text().split()[:2]
        with self.known.open("a") as file:
            file.write(f"[{host}]:{self.port} {kind} {blob}\n")

    def poll(self, nodes=("127.0.0.1",), job=7, worker="worker", timeout=2, max_bytes=1 << 30, **more):
        config = Config(
            state_dir=str(self.place / "state"),
            fetch=FetchConfig(
                user=USER,
                key=str(self.keys[worker]),
                known_hosts=str(self.known),
                port=self.port,
                timeout=timeout,
                max_bytes=max_bytes,
            ),
        )
        return fetch.poll(config, "c1", nodes, job, time.time() - 30, None, **more)


@pytest.fixture
def setup(tmp_path, keys, sshd):
    shutil.rmtree(sshd[1], ignore_errors=True)
    return Setup(tmp_path, keys, sshd[0])


@pytest.fixture
def spool(sshd):
    return sshd[1]


def only(result):
    (found,) = result.values()
    return found


def test_a_finished_run_is_fetched_whole_and_once(setup, spool):
    run = make_run(spool, "127.0.0.1")
    found = only(setup.poll())
    assert isinstance(found, fetch.Fetched), found
    assert found.done
    assert found.path.name == run.name
    from denpex.ingest.spool import read

    snapshot = read([found.path], Job())
    assert snapshot.streams[0].load().data == b"boom\n" * 100_000
    assert not [path for path in found.path.parent.iterdir() if path.name.startswith(".")]
    shutil.rmtree(spool)
    setup.port = free_port()
    assert only(setup.poll()) == found


def test_a_run_without_done_waits_and_is_taken_anew_at_the_deadline(setup, spool):
    run = make_run(spool, "127.0.0.1", done=False)
    gap = only(setup.poll())
    assert isinstance(gap, Gap)
    assert "DONE is not there" in gap.what
    early = only(setup.poll(unfinished=True))
    assert isinstance(early, fetch.Fetched)
    assert not early.done
    (run / "DONE").write_bytes(b"")
    late = only(setup.poll())
    assert isinstance(late, fetch.Fetched)
    assert late.done
    assert (late.path / "DONE").exists()


def test_a_broken_transfer_goes_on_where_it_stopped(setup, spool):
    run = make_run(spool, "127.0.0.1")
    setup.poll()
    place = setup.place / "state" / "bundles" / "c1" / "127.0.0.1"
    shutil.rmtree(place / run.name)
    whole = subprocess.run(
        ["/bin/sh", ROOT / "hooks" / "handout"],
        env={"DENPEX_ETC": str(spool.parent), "SSH_ORIGINAL_COMMAND": f"get {run.name} 0"},
        capture_output=True,
        check=True,
    ).stdout
    (place / f".{run.name}.tar").write_bytes(whole[:100_000])
    # What is at hand is longer than what may still come: only going on can succeed.
    found = only(setup.poll(max_bytes=len(whole)))
    assert isinstance(found, fetch.Fetched), found
    assert (found.path / "user" / "streams" / "0.0.out").read_bytes() == b"boom\n" * 100_000


def test_a_part_that_is_garbage_is_thrown_away(setup, spool):
    run = make_run(spool, "127.0.0.1")
    place = setup.place / "state" / "bundles" / "c1" / "127.0.0.1"
    place.mkdir(parents=True)
    (place / f".{run.name}.tar").write_bytes(b"garbage" * 1000)
    assert "is not a run directory" in only(setup.poll()).what
    assert isinstance(only(setup.poll()), fetch.Fetched)


def test_each_way_in_which_a_node_gives_nothing_has_its_own_reason(setup, spool, keys):
    make_run(spool, "127.0.0.1", job=8)
    setup.know("127.0.0.2", "other_host")
    setup.know("127.0.0.3", "host")
    found = setup.poll(["127.0.0.1", "127.0.0.2", "127.0.0.3", "no-such-node.invalid", "../x"])
    assert "no run directory of this job" in found["127.0.0.1"].what
    assert "host key is not the known one" in found["127.0.0.2"].what
    assert "cannot be reached: Connection refused" in found["127.0.0.3"].what
    assert "cannot be reached" in found["no-such-node.invalid"].what
    assert "cannot name a directory" in found["../x"].what
    setup.known.write_text("")
    assert "host key is not known" in only(setup.poll()).what
    setup.know("127.0.0.1", "host")
    assert "refuses the key" in only(setup.poll(worker="stranger")).what
    keys["missing"] = setup.place / "missing"
    assert "cannot be read" in only(setup.poll(worker="missing")).what


def test_a_run_that_is_too_large_is_given_up(setup, spool):
    make_run(spool, "127.0.0.1")
    assert "more than 10000 bytes" in only(setup.poll(max_bytes=10_000)).what


def test_a_key_that_may_hand_out_can_do_nothing_else(setup, keys, sshd):
    client = paramiko.SSHClient()
    client.load_host_keys(str(setup.known))
    client.connect(
        "127.0.0.1",
        port=sshd[0],
        username=USER,
        key_filename=str(keys["worker"]),
        allow_agent=False,
        look_for_keys=False,
    )
    try:
        for command in ("id", "get ../../etc 0", "list 7; id", "get 7.0.1/.. 0"):
            _, out, error = client.exec_command(command, timeout=10)
            assert out.channel.recv_exit_status() != 0
            assert out.read() == b""
            assert error.read()
    finally:
        client.close()


@pytest.mark.parametrize("stage", ["connect", "banner"])
def test_a_node_that_accepts_and_then_hangs_is_given_up(setup, stage):
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        setup.port = server.getsockname()[1]
        held = []

        def accept():
            connection, _ = server.accept()
            held.append(connection)
            if stage == "banner":
                connection.sendall(b"SSH-2.0-hang\r\n")

        thread = threading.Thread(target=accept)
        thread.start()
        began = time.monotonic()
        found = only(setup.poll(timeout=1))
        thread.join()
        for connection in held:
            connection.close()
    assert "sends nothing for 1 s" in found.what
    assert time.monotonic() - began < 10


class Liar(paramiko.ServerInterface):
    """A node that authenticates anybody and answers ``list`` well and ``get`` with what the test wants."""

    def __init__(self, node, payload, hang):
        self.node, self.payload, self.hang = node, payload, hang

    def check_auth_publickey(self, *_):
        return paramiko.common.AUTH_SUCCESSFUL

    def get_allowed_auths(self, *_):
        return "publickey"

    def check_channel_request(self, *_):
        return paramiko.common.OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel, command):
        if self.hang == "request":
            time.sleep(1.8)
            return False
        threading.Thread(target=self.answer, args=(channel, command.decode()), daemon=True).start()
        return True

    def answer(self, channel, command):
        time.sleep(0.1)  # paramiko confirms the request only after the handler has returned
        with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
            if command.startswith("list"):
                run = f"7.0.{int(time.time())}"
                item = {"run": run, "opened": 1, "done": True, "node": self.node}
                channel.sendall(json.dumps({"now_ns": time.time_ns(), "runs": [item]}).encode())
            else:
                channel.sendall(self.payload(command.split()[1]))
                if self.hang == "transfer":
                    time.sleep(1.8)
            channel.send_exit_status(0)
            channel.close()


def lie(setup, payload, hang="", **more):
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        setup.port = server.getsockname()[1]
        setup.know("127.0.0.1", "host")
        made = []

        def serve():
            connection, _ = server.accept()
            transport = paramiko.Transport(connection)
            made.append(transport)
            transport.add_server_key(paramiko.Ed25519Key(filename=str(setup.keys["host"])))
            with contextlib.suppress(paramiko.SSHException, EOFError):
                transport.start_server(server=Liar("127.0.0.1", payload, hang))

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            return only(setup.poll(timeout=1, **more))
        finally:
            thread.join()
            for transport in made:
                transport.close()
                transport.join(5)


def tar(run, *members):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:", format=tarfile.PAX_FORMAT) as archive:
        for name, kind, content in (("meta.json", tarfile.REGTYPE, b"{}"), *members):
            info = tarfile.TarInfo(f"{run}/{name}" if not name.startswith("!") else name[1:])
            info.type, info.size, info.linkname = kind, len(content), "/etc/passwd"
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


DONE = ("DONE", tarfile.REGTYPE, b"")


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        (lambda _: os.urandom(5000), "not a tar archive"),
        (lambda _: b"", "empty"),
        (lambda run: tar(run, DONE)[:700], "not a run directory"),
        (lambda run: tar(run), "DONE is missing"),
        (lambda run: tar(run, DONE, ("user/x", tarfile.SYMTYPE, b"")), "what no run directory has"),
        (lambda run: tar(run, DONE, ("user/x", tarfile.LNKTYPE, b"")), "what no run directory has"),
        (lambda run: tar(run, DONE, ("fifo", tarfile.FIFOTYPE, b"")), "what no run directory has"),
        (lambda run: tar(run, DONE, ("user/../../x", tarfile.REGTYPE, b"x")), "what no run directory has"),
        (lambda run: tar(run, DONE, ("!/etc/x", tarfile.REGTYPE, b"x")), "what no run directory has"),
        (lambda run: tar(run, DONE, ("!other/x", tarfile.REGTYPE, b"x")), "what no run directory has"),
        (lambda run: tar(run, DONE, ("meta.json", tarfile.REGTYPE, b"x")), "cannot be unpacked"),
    ],
)
def test_an_archive_that_lies_leaves_nothing_behind(setup, payload, words):
    gap = lie(setup, payload)
    assert isinstance(gap, Gap)
    assert words in gap.what
    assert list((setup.place / "state" / "bundles" / "c1" / "127.0.0.1").iterdir()) == []


def test_a_node_that_tells_the_truth_by_the_same_server_is_believed(setup):
    assert isinstance(lie(setup, lambda run: tar(run, DONE)), fetch.Fetched)


def test_a_node_that_sends_without_end_is_cut_off(setup):
    assert "more than 100000 bytes" in lie(setup, lambda _: bytes(1_000_000), max_bytes=100_000).what


@pytest.mark.parametrize("hang", ["request", "transfer"])
def test_a_node_that_hangs_in_the_middle_is_given_up(setup, hang):
    began = time.monotonic()
    gap = lie(setup, lambda run: tar(run, DONE)[:600], hang)
    assert "sends nothing for 1 s" in gap.what
    assert time.monotonic() - began < 8


def test_the_ssh_librarys_log_goes_nowhere():
    assert not logging.getLogger("paramiko").propagate


def test_unpacking_refuses_a_target_that_exists(tmp_path):
    (tmp_path / "t").mkdir()
    with pytest.raises(FileExistsError):
        untar.unpack(io.BytesIO(tar("7.0.1", DONE)), "7.0.1", tmp_path / "t")
    with pytest.raises(SpoolError, match="empty"):
        untar.unpack(io.BytesIO(b""), "7.0.1", tmp_path / "u")
