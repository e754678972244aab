"""Who may ask the worker what: over its socket, over TCP with munge, and by the answer files."""

import contextlib
import json
import os
import socket
import subprocess
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from denpex import answerfiles, answers, client, credential, service
from denpex.config import Config, WorkerConfig
from denpex.errors import ServiceError, UsageError
from denpex.store import Reader, Store
from tests.unit import munge_daemon
from tests.unit.samples import START, as_user, job, verdict

ALICE, BOB = 61001, 61002
SHOW = {"verb": "show", "jobs": "1,2,3"}

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="other users can only be played by root")
with_munge = pytest.mark.skipif(munge_daemon.MUNGED is None, reason="munged is not installed")


@pytest.fixture
def config():
    """A configuration below a directory that every user may enter; jobs 1 and 2 are Alice's, 3 is Bob's."""
    with tempfile.TemporaryDirectory() as name:
        top = Path(name)
        top.chmod(0o755)
        made = Config(cluster="lab", run_dir=str(top), state_dir=str(top / "state"))
        store = Store(made.database)
        for number, uid in (("1", ALICE), ("2", ALICE), ("3", BOB)):
            store.save(verdict(job(number, uid=uid, user=f"u{uid}")), 1.0)
        store.close()
        yield made


@pytest.fixture
def server(config):
    with_service = service.serve(config)
    yield with_service
    with_service.close()


@pytest.fixture(scope="module")
def daemon():
    with munge_daemon.private() as bin_dir:
        yield bin_dir


@pytest.fixture
def munged(daemon, monkeypatch):
    """The directory of `munge` and `unmunge`, first on PATH."""
    monkeypatch.setenv("PATH", f"{daemon}:{os.environ['PATH']}")
    return daemon


@pytest.fixture
def remote(config, munged):
    """The same worker, reached over TCP alone, as from another host."""
    assert munged.is_dir()
    config = replace(config, worker=WorkerConfig(listen="127.0.0.1:0"))
    running = service.serve(config)
    port = running._doors[1]._listening.getsockname()[1]
    worker = WorkerConfig(server=f"127.0.0.1:{port}", user="root")
    yield replace(config, run_dir="/nonexistent", worker=worker)
    running.close()


def ids(config, request=SHOW):
    return [row["job_id"] for row in client.ask(config, request)["rows"]]


def line(config, data):
    """Send bytes to the worker's socket and return what it says."""
    with socket.socket(socket.AF_UNIX) as client_socket:
        client_socket.settimeout(10)
        client_socket.connect(str(config.socket))
        client_socket.sendall(data)
        client_socket.shutdown(socket.SHUT_WR)
        answer = b""
        while piece := client_socket.recv(65536):
            answer += piece
        return answer


# ---------------------------------------------------------------------- the unix socket


@root_only
@pytest.mark.usefixtures("server")
def test_a_user_sees_the_own_jobs_and_not_that_there_are_others(config):
    assert as_user(ALICE, lambda: ids(config)) == ["1", "2"]
    assert as_user(BOB, lambda: ids(config)) == ["3"]
    everything = {"verb": "list", "start": 0, "end": START * 2}
    assert as_user(BOB, lambda: ids(config, everything)) == ["3"]
    assert as_user(BOB, lambda: ids(config, {**everything, "user": [f"u{ALICE}"]})) == []
    others, nobodys = (as_user(BOB, lambda n=n: client.ask(config, {"verb": "show", "jobs": n})) for n in ("1", "999"))
    assert others | {"nonce": ""} == nobodys | {"nonce": ""}


@root_only
def test_root_the_worker_and_its_admins_see_every_job(config):
    assert os.geteuid() == 0
    running = service.serve(replace(config, worker=WorkerConfig(admins=("nobody", "no-such-user"))))
    import pwd

    assert ids(config) == ["1", "2", "3"]
    assert as_user(pwd.getpwnam("nobody").pw_uid, lambda: ids(config)) == ["1", "2", "3"]
    running.close()


@root_only
@pytest.mark.usefixtures("server")
def test_a_run_whose_user_is_not_known_is_shown_to_admins_alone(config):
    store = Store(config.database)
    store.save(verdict(job("4", uid=None, user="")), 1.0)
    store.close()
    assert as_user(ALICE, lambda: ids(config, {"verb": "show", "jobs": "4"})) == []
    assert ids(config, {"verb": "show", "jobs": "4"}) == ["4"]


@root_only
@pytest.mark.usefixtures("server")
def test_the_database_cannot_be_opened_by_a_user(config):
    for path in (config.database, config.database.with_name("denpex.db-wal")):
        with pytest.raises(RuntimeError, match=r"PermissionError|FileNotFoundError"):
            as_user(ALICE, lambda path=path: path.read_text(errors="replace"))


@pytest.mark.parametrize(
    "request_line",
    [
        b"", b"\n", b"not json\n", b"[]\n", b"null\n", b"1\n", b'{"verb": "drop"}\n', b'{"verb": "show"}\n',
        b'{"verb": "show", "jobs": "1\' OR 1=1 --"}\n', b'{"verb": "show", "jobs": ["1"]}\n', b"[" * 60_000 + b"\n",
        b'{"verb": "list", "start": 1e999, "end": ' + b"9" * 400 + b', "user": ["\\ud800"], "node": [null, {}]}\n',
        b'{"verb": "list", "state": ["' + b"%" * 1000 + b'"], "category": "x", "start": "1"}\n',
        b'{"verb": "list", "node": ["' + b'","' * 9000 + b'"]}\n', b"\xff\xfe\x00\n", b"x" * 200_000,
        b'{"verb": "show", "jobs": "' + b"," * 60_000 + b'"}\n', b'{"verb": "show", "jobs": "1_[0-999999999]"}\n',
    ],
)  # fmt: skip
@pytest.mark.usefixtures("server")
def test_nonsense_is_answered_by_an_error_or_a_closed_door_and_the_next_asker_is_served(config, request_line):
    begin = time.monotonic()
    try:
        said = line(config, request_line)
    except (BrokenPipeError, ConnectionResetError):
        said = b""
    assert time.monotonic() - begin < 3
    assert not said or "error" in json.loads(said) or json.loads(said)["rows"] == []
    assert ids(config) == ["1", "2", "3"]


@pytest.mark.usefixtures("server")
def test_clients_that_never_finish_hold_nobody_up_and_are_sent_away(config, monkeypatch):
    monkeypatch.setattr(service, "_READ_S", 0.5)
    idle = []
    for _ in range(service._MOST_OF_ONE):
        client_socket = socket.socket(socket.AF_UNIX)
        client_socket.connect(str(config.socket))
        client_socket.sendall(b"{")
        idle.append(client_socket)
    # The same user's next question waits its turn: the client tries again for a second.
    assert ids(config) == ["1", "2", "3"]
    for client_socket in idle:
        client_socket.settimeout(3)
        assert client_socket.recv(10) == b""
        client_socket.close()


@root_only
@pytest.mark.usefixtures("server")
def test_one_user_who_takes_all_the_room_leaves_room_for_others(config):
    def crowd():
        held = [socket.socket(socket.AF_UNIX) for _ in range(service._MOST_CLIENTS)]
        for one in held:
            one.connect(str(config.socket))
        time.sleep(1.5)
        return "held"

    crowding = threading.Thread(target=as_user, args=(BOB, crowd))
    crowding.start()
    time.sleep(0.4)
    begin = time.monotonic()
    assert as_user(ALICE, lambda: ids(config)) == ["1", "2"]
    assert time.monotonic() - begin < 1
    crowding.join()


@pytest.mark.usefixtures("server")
def test_a_client_that_drips_is_sent_away_when_its_time_is_over(config, monkeypatch):
    monkeypatch.setattr(service, "_READ_S", 0.4)
    with socket.socket(socket.AF_UNIX) as slow:
        slow.connect(str(config.socket))
        begin = time.monotonic()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            while time.monotonic() - begin < 3:
                slow.sendall(b" ")
                time.sleep(0.05)
        assert time.monotonic() - begin < 2


@pytest.mark.usefixtures("server")
def test_a_request_that_cannot_be_understood_is_a_usage_error_for_the_asker(config):
    with pytest.raises(UsageError, match="is not a job id"):
        client.ask(config, {"verb": "show", "jobs": "abc"})


def test_no_worker_is_a_sentence_that_says_what_was_tried(config):
    with pytest.raises(ServiceError, match=r"there is no socket .*worker\.sock on this host.*is `denpex worker` run"):
        client.ask(config, SHOW)
    config.socket.touch()
    with pytest.raises(ServiceError, match="Connection refused"):
        client.ask(config, SHOW)


def test_a_socket_that_a_killed_worker_left_is_replaced_and_close_removes_it(config):
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(config.socket))
    stale.close()
    running = service.serve(config)
    assert ids(config) == ["1", "2", "3"]
    running.close()
    assert not config.socket.exists()


def test_an_address_that_cannot_be_served_is_a_sentence(config):
    with pytest.raises(ServiceError, match=r"worker\.listen '192\.0\.2\.1:9' cannot be served"):
        service.serve(replace(config, worker=WorkerConfig(listen="192.0.2.1:9")))


@pytest.mark.usefixtures("server")
def test_a_large_answer_arrives_whole(config):
    store = Store(config.database)
    store.save(verdict(job("5"), summary="wörds " * 400_000), 1.0)
    store.close()
    (row,) = client.ask(config, {"verb": "show", "jobs": "5"})["rows"]
    assert len(row["document"]["summary"]) == 2_400_000


# ---------------------------------------------------------------------- TCP with munge


@root_only
@with_munge
def test_over_tcp_a_user_sees_the_own_jobs_and_root_all(remote):
    assert ids(remote) == ["1", "2", "3"]
    assert as_user(ALICE, lambda: ids(remote)) == ["1", "2"]
    assert as_user(BOB, lambda: ids(remote)) == ["3"]


@root_only
@with_munge
def test_an_answer_on_the_wire_can_be_opened_by_its_user_alone(remote):
    host, port = remote.worker.server.split(":")

    def asked():
        request = credential.munge(json.dumps({**SHOW, "nonce": "n"}).encode())
        return client._exchange(socket.create_connection((host, int(port))), request).decode()

    answer = as_user(ALICE, asked)
    for uid in (BOB, 0):
        with pytest.raises((RuntimeError, ServiceError), match="Unauthorized credential"):
            as_user(uid, lambda: credential.unseal(answer.encode(), {0}).decode())
    assert b'"job_id": "1"' in as_user(ALICE, lambda: credential.unseal(answer.encode(), {0}).decode()).encode()


@root_only
@with_munge
def test_a_question_that_was_listened_to_cannot_be_asked_again(remote):
    host, port = remote.worker.server.split(":")
    request = as_user(ALICE, lambda: credential.munge(json.dumps(SHOW).encode()).decode()).encode()
    first = client._exchange(socket.create_connection((host, int(port))), request)
    assert first
    assert client._exchange(socket.create_connection((host, int(port))), request) == b""


@with_munge
@pytest.mark.parametrize(
    "sent", [b"MUNGE:AwQFAAAA:", b"GET / HTTP/1.1\r\n\r", b"MUNGE:" + b"A" * 100_000, b"\0" * 70_000]
)
def test_over_tcp_what_is_no_credential_is_not_answered(remote, sent):
    host, port = remote.worker.server.split(":")
    assert client._exchange(socket.create_connection((host, int(port))), sent) == b""
    assert len(ids(remote)) == 3 or os.geteuid() != 0


@root_only
@with_munge
@pytest.mark.usefixtures("munged")
def test_an_answer_by_anybody_but_the_worker_is_not_believed(config):
    """A user who gets between asker and worker can make a credential, but only the own."""
    listening = socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]

    def impostor():
        caller, _ = listening.accept()
        with caller:
            _, asked = credential.unmunge(caller.recv(100_000).strip())
            reply = {"rows": [{"fix": "rm -rf /"}], "nonce": json.loads(asked)["nonce"]}
            caller.sendall(credential.seal(json.dumps(reply).encode(), ALICE))
        return "sent"

    played = threading.Thread(target=as_user, args=(BOB, impostor))
    played.start()
    asker = replace(config, run_dir="/nonexistent", worker=WorkerConfig(server=f"127.0.0.1:{port}", user="root"))
    with pytest.raises(RuntimeError, match=f"made by uid {BOB}"):
        as_user(ALICE, lambda: client.ask(asker, SHOW))
    played.join()
    listening.close()


@with_munge
@pytest.mark.usefixtures("munged")
def test_an_answer_longer_than_munge_carries_goes_in_pieces():
    data = os.urandom(2_000_000)
    sealed = credential.seal(data, os.geteuid())
    assert len(sealed.splitlines()) == 4
    assert credential.unseal(sealed, {os.geteuid()}) == data
    for broken in (sealed.splitlines()[:3], sealed.splitlines()[::-1], []):
        with pytest.raises(ServiceError, match="cut off"):
            credential.unseal(b"\n".join(broken), {os.geteuid()}, stale=True)


@with_munge
@pytest.mark.usefixtures("munged")
def test_a_payload_of_700_kib_passes_both_ways_through_munge():
    payload = os.urandom(700 << 10)
    assert credential.unmunge(credential.munge(payload)) == (os.geteuid(), payload)


def test_without_munge_the_sentence_says_so(monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(ServiceError, match=r"munge cannot be asked: .*munged running"):
        credential.munge(b"x")


# ---------------------------------------------------------------------- answer files


@pytest.fixture
def files(config, munged):
    """The same jobs, and an array's and a heterogeneous job's, as answer files, with no worker running."""
    assert munged.is_dir()
    answers_dir = Path(config.run_dir) / "answers"
    answers_dir.mkdir(mode=0o755)
    config = replace(config, worker=WorkerConfig(answers_dir=str(answers_dir), user="root"))
    store = Store(config.database)
    store.save(verdict(job("1", uid=ALICE, restart=1, start=START + 100, end=START + 200)), 1.0)
    for number, task in (("11", "1"), ("12", "2"), ("10", "3")):
        store.save(verdict(job(number, uid=ALICE, array_job="10", array_task=task)), 1.0)
    for number, offset in (("20", "0"), ("21", "1")):
        store.save(verdict(job(number, uid=ALICE, het_job="20", het_offset=offset)), 1.0)
    store.close()
    for number in ("1", "2", "3", "11", "12", "10", "20", "21"):
        answerfiles.write(config, Reader(config.database), "lab", number)
    return config


@root_only
@with_munge
def test_answer_files_say_the_same_to_their_user_and_nothing_to_others(files):
    assert as_user(ALICE, lambda: ids(files)) == ["1", "2"]
    assert as_user(BOB, lambda: ids(files)) == ["3"]
    assert ids(files) == []


@root_only
@with_munge
def test_answer_files_know_requeues_array_tasks_and_components(files):
    def asked(jobs, duplicates=False):
        return as_user(ALICE, lambda: ids(files, {"verb": "show", "jobs": jobs, "duplicates": duplicates}))

    assert asked("1", duplicates=True) == ["1", "1"]
    assert asked("10_2") == ["12"]
    assert asked("12") == ["12"]
    assert sorted(asked("10")) == ["10", "11", "12"]
    assert asked("20+1") == ["21"]
    assert sorted(asked("20")) == ["20", "21"]
    assert as_user(BOB, lambda: ids(files, {"verb": "show", "jobs": "10,20"})) == []


@root_only
@with_munge
def test_another_user_can_neither_list_nor_open_nor_change_answer_files(files):
    top = Path(files.worker.answers_dir)
    directory = top / "lab" / str(ALICE)
    text = (directory / "1").read_bytes()
    assert b"IndexError" not in text
    for attempt in (
        lambda: [str(p) for p in (top / "lab").iterdir()],
        lambda: [str(p) for p in directory.iterdir()],
        lambda: (directory / "1").write_text("x"),
        lambda: (directory / "1").unlink(),
        lambda: (directory / "9").touch(),
        lambda: credential.unseal((directory / "1").read_bytes(), {0}, stale=True).decode(),
    ):
        with pytest.raises(RuntimeError, match=r"PermissionError|Unauthorized credential"):
            as_user(BOB, attempt)
    assert (directory / "1").read_bytes() == text


@root_only
@with_munge
@pytest.mark.usefixtures("munged")
def test_an_expired_credential_still_opens_for_its_user_and_still_for_nobody_else():
    """Answer files outlive munge's time to live; this is what makes that right."""
    made = subprocess.run(
        ["munge", "--ttl=1", f"--restrict-uid={ALICE}"], input=b"told", capture_output=True, check=True
    ).stdout
    time.sleep(2.1)
    with pytest.raises(RuntimeError, match="Expired"):
        as_user(ALICE, lambda: credential.unmunge(made)[0])
    assert as_user(ALICE, lambda: credential.unmunge(made, stale=True)[1].decode()) == "told"
    for uid in (BOB, 0):
        with pytest.raises(RuntimeError, match="Unauthorized"):
            as_user(uid, lambda: credential.unmunge(made, stale=True)[0])


@root_only
@with_munge
def test_a_planted_answer_file_or_directory_is_not_believed_and_not_written_into(files):
    forged = as_user(BOB, lambda: credential.seal(json.dumps({"rows": [{"job_id": "2"}]}).encode(), ALICE).decode())
    directory = Path(files.worker.answers_dir) / "lab" / str(ALICE)
    (directory / "2").write_text(forged)
    with pytest.raises(RuntimeError, match=f"made by uid {BOB}"):
        as_user(ALICE, lambda: ids(files))
    (directory / "2").unlink()
    (directory / "2").symlink_to(directory / "1")
    os.mkfifo(directory / "77")
    assert as_user(ALICE, lambda: ids(files, {"verb": "show", "jobs": "2,77"})) == []
    theirs = Path(files.worker.answers_dir) / "lab" / str(BOB)
    for path in theirs.iterdir():
        path.unlink()
    os.chown(theirs, BOB, BOB)
    with pytest.raises(ServiceError, match="not a directory of the worker's"):
        answerfiles.write(files, Reader(files.database), "lab", "3")


@with_munge
@pytest.mark.usefixtures("munged")
def test_where_the_answer_files_are_not_there_it_is_a_sentence(config):
    config = replace(config, worker=WorkerConfig(answers_dir=str(config.run_dir) + "/none"))
    with pytest.raises(ServiceError, match="cannot be written"):
        answerfiles.write(config, Reader(config.database), "lab", "1")
    with pytest.raises(ServiceError, match="answer files hold no lists"):
        client.ask(config, {"verb": "list"})


# ---------------------------------------------------------------------- what is asked


def answered(config, request, uid=0):
    return [row["job_id"] for row in answers.answer(Reader(config.database), request, uid, uid == 0)["rows"]]


def test_show_gives_the_last_run_of_a_requeued_job_and_all_on_request(config):
    store = Store(config.database)
    store.save(verdict(job("1", uid=ALICE, restart=1, start=START + 100)), 1.0)
    store.close()
    reader = Reader(config.database)
    shown = answers.answer(reader, {"verb": "show", "jobs": "1"}, ALICE, False)["rows"]
    assert [row["restart"] for row in shown] == [1]
    shown = answers.answer(reader, {"verb": "show", "jobs": "1", "duplicates": True}, ALICE, False)["rows"]
    assert [row["restart"] for row in shown] == [0, 1]


def test_show_finds_array_tasks_and_components_by_every_name(config):
    store = Store(config.database)
    for number, task in (("11", "1"), ("12", "2"), ("10", "3")):
        store.save(verdict(job(number, array_job="10", array_task=task)), 1.0)
    store.save(verdict(job("21", het_job="20", het_offset="1")), 1.0)
    store.close()
    for jobs, expected in (
        ("10", {"10", "11", "12"}), ("10_2", {"12"}), ("10_[1,3]", {"11", "10"}), ("10_[0-9999]", {"10", "11", "12"}),
        ("12", {"12"}), ("20", {"21"}), ("20+1", {"21"}), ("20+2", set()), ("12.0,3.batch", {"12", "3"}),
    ):  # fmt: skip
        assert set(answered(config, {"verb": "show", "jobs": jobs})) == expected, jobs


def test_list_filters_as_sacct_does(config):
    store = Store(config.database)
    store.save(verdict(job("7", state="CANCELLED by 1001", nodes=("n1",), user="carol", uid=7), failure_class="x"), 1.0)
    store.save(verdict(job("8", state="OUT_OF_MEMORY", nodes=("n10",), account="other", partition="cpu")), 1.0)
    store.save(verdict(job("9", start=None, submit=START + 1000, end=START + 1001)), 1.0)
    store.waiting(job("6", start=START + 5, end=None), ["n1"], START + 90)
    store.close()
    day = {"verb": "list", "start": START, "end": START + 100}
    assert set(answered(config, day)) == {"1", "2", "3", "6", "7", "8"}
    for more, expected in (
        ({"state": ["CANCELLED"]}, {"7"}), ({"state": ["CANCELLED", "OUT_OF_MEMORY"]}, {"7", "8"}),
        ({"node": ["n1"]}, {"1", "2", "3", "6", "7"}), ({"node": ["n10"]}, {"8"}), ({"user": ["carol"]}, {"7"}),
        ({"user": ["7"]}, {"7"}), ({"account": ["other"]}, {"8"}), ({"partition": ["cpu"]}, {"8"}),
        ({"failure_class": ["x"]}, {"7"}), ({"category": ["hardware"]}, set()), ({"end": START + 2000}, {"9"}),
        ({"start": START + 80}, {"6"}), ({"end": START - 1}, set()),
    ):  # fmt: skip
        found = set(answered(config, {**day, **more}))
        assert (expected <= found) if "end" in more and expected else found == expected, more


def test_no_question_walks_through_the_whole_table(config):
    """With 100,000 runs stored every question uses an index."""
    store = Store(config.database)
    plans = {}

    class Explaining(Reader):
        def find(self, where, values, **_):
            import denpex.store

            query = f"EXPLAIN QUERY PLAN SELECT {denpex.store._COLUMNS}{denpex.store._LATEST} WHERE {where}"
            plans[where] = [row[3] for row in store._db.conn.execute(query, list(values))]
            return []

    for request in (
        {"verb": "show", "jobs": "1,2_3,4_[1-9],5+1"},
        {"verb": "list", "start": START, "end": START + 1, "state": ["FAILED"], "node": ["n1"]},
    ):
        for sees_all in (True, False):
            answers.answer(Explaining(config.database), request, ALICE, sees_all)
    store.close()
    assert len(plans) == 10
    for where, plan in plans.items():
        assert not [step for step in plan if step.startswith("SCAN runs")], (where, plan)


def test_more_than_an_answer_holds_is_said(config, monkeypatch):
    monkeypatch.setattr(answers, "_MOST_ROWS", 2)
    request = {"verb": "list", "start": 0, "end": START * 2}
    reply = answers.answer(Reader(config.database), request, 0, True)
    assert len(reply["rows"]) == 2
    assert reply["more"]
