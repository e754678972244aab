"""hooks/srun: the real srun's words with the capture in front of the program, or exactly as they were."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from denpex.node import srun

ROOT = Path(__file__).parents[2]

# A stand-in for a machine without Slurm: what this table's options look like in srun --help of 22.05 to 26.05.
HELP = """\
Usage: srun [OPTIONS(0)... [executable(0) [args(0)...]]] [ : [OPTIONS(N)...]] executable(N) [args(N)...]

Parallel run options:
  -A, --account=name          charge job to specified account
      --bcast=<dest_path>     Copy executable file to compute nodes
  -c, --cpus-per-task=ncpus   number of cpus required per task
      --compress[=library]    data compression library used with --bcast
      --container             Path to OCI container bundle
  -D, --chdir=path            change remote current working directory
      --export=env_vars|NONE  environment variables passed to launcher with
                              optional values or NONE (pass no variables)
      --gres=list             required generic resources
  -I, --immediate[=secs]      exit if resources not available in "secs"
      --jobid=id              run under already allocated job
  -J, --job-name=jobname      name of job
  -k, --no-kill               do not kill job on node failure
  -K, --kill-on-bad-exit      kill the job if any task terminates with a
                              non-zero exit code
  -l, --label                 prepend task number to lines of stdout/err
      --mpi=type              type of MPI being used
      --multi-prog            if set the program name specified is the
                              configuration specification for multiple programs
  -n, --ntasks=ntasks         number of tasks to run
      --nice[=value]          decrease scheduling priority by value
      --ntasks-per-node=n     number of tasks to invoke on each node
  -N, --nodes=N               number of nodes on which to run (N = min[-max])
  -o, --output=out            location of stdout redirection
      --overlap               Allow other steps to overlap this step
  -p, --partition=partition   partition requested
      --propagate[=rlimits]   propagate all [or specific list of] rlimits
      --pty                   run task zero in pseudo terminal
  -Q, --quiet                 quiet mode (suppress informational messages)
      --switches=max-switches{@max-time-to-wait}
                              Optimum switches and max time to wait for optimum
  -t, --time=minutes          time limit
  -u, --unbuffered            do not line-buffer stdout/err
  -v, --verbose               verbose mode (multiple -v's increase verbosity)
  -W, --wait=sec              seconds to wait after first task exits

Constraint options:
      --mem=MB                minimum amount of real memory
  -w, --nodelist=hosts...     request a specific list of hosts

Consumable resources related options:
      --exclusive[=user]      for job allocation, this allocates nodes in
      --mem-per-cpu=MB        maximum amount of real memory per allocated
                              cpu required by the job.
                              --mem >= --mem-per-cpu if --mem is specified.

Affinity/Multi-core options: (when the task/affinity plugin is enabled)
  -B  --extra-node-info=S[:C[:T]]  combine request of sockets per node,
      --cpu-bind=             Bind tasks to CPUs

GPU scheduling options:
  -G, --gpus=n                count of GPUs required for the job
      --gpu-bind=...          task to gpu binding options

Help options:
  -h, --help                  show this help message
      --usage                 display brief usage message

Other options:
  -V, --version               output version information and exit
"""
PLUGINS = """
Options provided by plugins:
      --container-image=[USER@][REGISTRY#]IMAGE[:TAG]|PATH
                              [pyxis] the image to use for the container
      --taste=[flavour]       a value that may be left out
      --plain                 no value
"""

RECORDER = """#!{python}
import os, sys
if sys.argv[1:] == ["--help"]:
    sys.stdout.write(open({help!r}).read())
else:
    os.write(1, b"\\0".join([b"srun", *map(os.fsencode, sys.argv[1:])]))
    sys.exit(17)
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The installed srun's own help; it wants a configuration before it speaks."""
    real = shutil.which("srun", path="/usr/bin:/usr/local/bin:/opt/slurm/bin")
    if real is None:
        pytest.skip("no srun is installed here")
    conf = tmp_path_factory.mktemp("slurm") / "slurm.conf"
    conf.write_text("ClusterName=test\nSlurmctldHost=localhost\n")
    environment = os.environ | {"SLURM_CONF": str(conf)}
    done = subprocess.run([real, "--help"], env=environment, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout


class Site:
    """A host with the wrapper first on PATH, a recording srun behind it, and an open run of job 7."""

    def __init__(self, place: Path, help_text: str) -> None:
        self.place = place
        self.real = place / "slurm" / "srun"
        self.real.parent.mkdir()
        (place / "help").write_text(help_text)
        self.real.write_text(RECORDER.format(python=sys.executable, help=str(place / "help")))
        self.real.chmod(0o755)
        self.user = place / "spool" / "7.0.1" / "user"
        self.user.mkdir(parents=True)
        (place / "run" / "jobs").mkdir(parents=True)
        (place / "run" / "jobs" / "7").write_text(f"{self.user.parent}\n")
        (place / "node.json").write_text(json.dumps({"run_dir": str(place / "run")}))
        self.node_sh()
        self.environment = {
            "PATH": f"{ROOT / 'hooks'}:{self.real.parent}:/usr/bin:/bin",
            "DENPEX_ETC": str(place),
            "SLURM_JOB_ID": "7",
            "SLURM_JOB_NAME": "train",
            "SLURMD_NODENAME": "n1",
        }

    def node_sh(self, python: str = sys.executable, package: Path = ROOT) -> None:
        lines = {"DENPEX_PYTHON": python, "DENPEX_PACKAGE": package, "DENPEX_RUN_DIR": self.place / "run"}
        (self.place / "node.sh").write_text("".join(f"{name}='{value}'\n" for name, value in lines.items()))

    def srun(self, *words: str | bytes, **environment: str) -> list[bytes]:
        """Call srun; return the words that the real one got."""
        done = subprocess.run(
            ["srun", *words], env=self.environment | environment, capture_output=True, timeout=30, check=False
        )
        assert (done.returncode, done.stderr) == (17, b"")
        return done.stdout.split(b"\0")[1:]

    def gaps(self) -> list[str]:
        path = self.user / "claims.jsonl"
        return [json.loads(line)["what"] for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path, HELP)


def shown(words: list[bytes]) -> list[str]:
    """Return srun's words with what stands in front of the program written as <capture>."""
    text = [os.fsdecode(word) for word in words]
    if "/bin/bash" in text and str(ROOT) in text:
        begin, end = text.index("/bin/bash"), text.index(str(ROOT)) + 2
        text[begin:end] = ["<capture>"]
    return text


C = "<capture>"
WRAPPED: list[tuple[str, str]] = [
    ("hostname", f"-J hostname {C} hostname"),
    ("-n 8 python train.py --lr 1", f"-J python -n 8 {C} python train.py --lr 1"),
    ("-n8 python train.py", f"-J python -n8 {C} python train.py"),
    ("-N4 -n 8 -lu python -u t.py", f"-J python -N4 -n 8 -lu {C} python -u t.py"),
    ("-lun 8 ./prog -n 3", f"-J prog -lun 8 {C} ./prog -n 3"),
    ("-lun8 ./prog", f"-J prog -lun8 {C} ./prog"),
    ("--ntasks=8 prog", f"-J prog --ntasks=8 {C} prog"),
    ("--ntasks 8 prog", f"-J prog --ntasks 8 {C} prog"),
    ("--ntasks-per-n 8 prog", f"-J prog --ntasks-per-n 8 {C} prog"),
    ("--ntasks-per-node=8 prog", f"-J prog --ntasks-per-node=8 {C} prog"),
    ("--job-name=x prog", f"--job-name=x {C} prog"),
    ("-Jx prog", f"-Jx {C} prog"),
    ("-lJ x prog", f"-lJ x {C} prog"),
    ("-- prog -x", f"-J prog -- {C} prog -x"),
    ("-n 2 -- prog -- x", f"-J prog -n 2 -- {C} prog -- x"),
    ("-K prog", f"-J prog -K {C} prog"),
    ("-K1 prog", f"-J prog -K1 {C} prog"),
    ("-I prog", f"-J prog -I {C} prog"),
    ("-I30 prog", f"-J prog -I30 {C} prog"),
    ("-lK prog", f"-J prog -lK {C} prog"),
    ("--kill-on-bad-exit prog", f"-J prog --kill-on-bad-exit {C} prog"),
    ("--kill-on-bad-exit=1 prog", f"-J prog --kill-on-bad-exit=1 {C} prog"),
    ("--immediate prog", f"-J prog --immediate {C} prog"),
    ("--propagate prog", f"-J prog --propagate {C} prog"),
    ("--propagate=STACK prog", f"-J prog --propagate=STACK {C} prog"),
    ("--nice prog", f"-J prog --nice {C} prog"),
    ("--exclusive prog", f"-J prog --exclusive {C} prog"),
    ("--exclusive=user prog", f"-J prog --exclusive=user {C} prog"),
    ("--cpu-bind=none prog", f"-J prog --cpu-bind=none {C} prog"),
    ("--cpu-bind none prog", f"-J prog --cpu-bind none {C} prog"),
    ("--mpi=pmi2 prog", f"-J prog --mpi=pmi2 {C} prog"),
    ("--mem 4G --mem-per-cpu=1G prog", f"-J prog --mem 4G --mem-per-cpu=1G {C} prog"),
    ("--switches 1@5 prog", f"-J prog --switches 1@5 {C} prog"),
    ("-B 2:4 prog", f"-J prog -B 2:4 {C} prog"),
    ("-B2:4 prog", f"-J prog -B2:4 {C} prog"),
    ("--export ALL,A=b prog", f"-J prog --export ALL,A=b {C} prog"),
    ("--gres=gpu:4 --gpu-bind=closest prog", f"-J prog --gres=gpu:4 --gpu-bind=closest {C} prog"),
    ("-o %t.log -vvv -W 0 prog", f"-J prog -o %t.log -vvv -W 0 {C} prog"),
    ("-w n[1-2] --overlap prog", f"-J prog -w n[1-2] --overlap {C} prog"),
    ("--jobid 7 --wait=60 bash -c x", f"-J bash --jobid 7 --wait=60 {C} bash -c x"),
    ("-D /tmp /opt/bin/prog", f"-J prog -D /tmp {C} /opt/bin/prog"),
    ("--ntasks-per-gpu=1 --open-mode append prog", f"-J prog --ntasks-per-gpu=1 --open-mode append {C} prog"),
    ("--x11 prog", f"-J prog --x11 {C} prog"),
    ("prog --pty --multi-prog --help", f"-J prog {C} prog --pty --multi-prog --help"),
    ("-Q prog", f"-J prog -Q {C} prog"),
]
UNTOUCHED: list[tuple[str, str]] = [
    ("--multi-prog -n 4 conf", "--multi-prog"),
    ("--multi conf", "--multi-prog"),
    ("-n4 --pty bash", "--pty"),
    ("-n 1 a : -n 2 b", "heterogeneous"),
    ("--frobnicate prog", "--frobnicate"),
    ("--frobnicate=1 prog", "--frobnicate"),
    ("-Y prog", "-Y"),
    ("-lY prog", "-Y"),
    ("--nt 2 prog", "--nt "),
    ("--job x prog", "--job "),
    ("--bcast=/tmp/x prog", "--bcast"),
    ("--container=/bundle prog", "container"),
    ("--container /bundle prog", "container"),
    ("-h", ""),
    ("--version", ""),
    ("-V", ""),
    ("--usage", ""),
    ("--vers", ""),
    ("-n 4", ""),
    ("--ntasks 4", ""),
    ("-n 4 --", ""),
    ("--test-only prog", ""),
    ("", ""),
]


@pytest.mark.parametrize(("words", "expected"), WRAPPED, ids=[words for words, _ in WRAPPED])
def test_the_capture_stands_in_front_of_the_program(site: Site, words: str, expected: str) -> None:
    assert shown(site.srun(*words.split())) == expected.split()
    assert site.gaps() == []


def test_the_same_with_the_installed_sruns_help(installed: str) -> None:
    for words, expected in WRAPPED:
        assert srun.rewrite(words.split(), installed, ["SLURM_JOB_ID"], [C]) == expected.split()
    for words, gap in UNTOUCHED:
        with pytest.raises(srun.Untouched, match=gap or "^$"):
            srun.rewrite(words.split(), installed, ["SLURM_JOB_ID"], [C])


@pytest.mark.parametrize(("words", "gap"), UNTOUCHED, ids=[words or "nothing" for words, _ in UNTOUCHED])
def test_what_cannot_be_captured_goes_to_the_real_srun_as_it_is(site: Site, words: str, gap: str) -> None:
    assert shown(site.srun(*words.split())) == words.split()
    assert len(site.gaps()) == bool(gap)
    assert gap in "".join(site.gaps())


@pytest.mark.parametrize(
    ("words", "expected", "gap"),
    [
        ("--taste=x prog", f"-J prog --taste=x {C} prog", ""),
        ("--plain prog", f"-J prog --plain {C} prog", ""),
        ("--taste x prog", "--taste x prog", "plugin's option"),
        ("--container-image=img prog", "--container-image=img prog", "container"),
        ("--container-image img prog", "--container-image img prog", "container"),
    ],
)
def test_options_of_plugins(tmp_path: Path, words: str, expected: str, gap: str) -> None:
    site = Site(tmp_path, HELP + PLUGINS)
    assert shown(site.srun(*words.split())) == expected.split()
    assert len(site.gaps()) == bool(gap)
    assert gap in "".join(site.gaps())


@pytest.mark.parametrize("name", ["SLURM_SRUN_MULTI", "SLURM_BCAST", "SRUN_CONTAINER", "SLURM_CONTAINER"])
def test_the_same_by_sruns_environment(site: Site, name: str) -> None:
    assert shown(site.srun("prog", **{name: "1"})) == ["prog"]
    assert name in site.gaps()[0]


def test_outside_an_allocation_the_name_of_the_job_stays_the_environments(site: Site) -> None:
    del site.environment["SLURM_JOB_ID"]
    assert shown(site.srun("prog")) == [C, "prog"]
    del site.environment["SLURM_JOB_NAME"]
    assert shown(site.srun("prog")) == ["-J", "prog", C, "prog"]


def test_a_look_into_a_running_job_from_outside_is_not_captured(site: Site) -> None:
    del site.environment["SLURM_JOB_ID"]
    assert shown(site.srun("--jobid=7", "--overlap", "nvidia-smi")) == ["--jobid=7", "--overlap", "nvidia-smi"]


def test_help_is_the_real_sruns(site: Site) -> None:
    done = subprocess.run(["srun", "--help"], env=site.environment, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == (HELP, "")


def test_denpex_disable_calls_the_real_srun_and_states_a_gap(site: Site) -> None:
    assert shown(site.srun("-n2", "prog", DENPEX_DISABLE="1")) == ["-n2", "prog"]
    assert "DENPEX_DISABLE=1" in site.gaps()[0]


@pytest.mark.parametrize("broken", ["", "exit 1", "syntax ( error", "DENPEX_PYTHON=/no/such", "exec /bin/true"])
def test_a_broken_configuration_calls_the_real_srun(site: Site, broken: str) -> None:
    (site.place / "node.sh").write_text(broken)
    assert shown(site.srun("-n2", "prog")) == ["-n2", "prog"]


def test_a_missing_configuration_calls_the_real_srun(site: Site) -> None:
    (site.place / "node.sh").unlink()
    assert shown(site.srun("-n2", "prog")) == ["-n2", "prog"]


@pytest.mark.parametrize(
    "broken", ["/nonexistent/python", "/bin/false", "/bin/cat", "/bin/true"], ids=["missing", "fails", "prints", "mute"]
)
def test_a_broken_interpreter_calls_the_real_srun_and_states_a_gap(site: Site, broken: str) -> None:
    site.node_sh(python=broken)
    assert shown(site.srun("-n2", "prog")) == ["-n2", "prog"]
    assert len(site.gaps()) == 1


def test_a_missing_package_calls_the_real_srun_and_states_a_gap(site: Site, tmp_path: Path) -> None:
    site.node_sh(package=tmp_path / "nowhere")
    assert shown(site.srun("-n2", "prog")) == ["-n2", "prog"]
    assert len(site.gaps()) == 1


def test_a_help_that_says_nothing_calls_the_real_srun(site: Site) -> None:
    (site.place / "help").write_text("")
    assert shown(site.srun("-n2", "prog")) == ["-n2", "prog"]
    assert len(site.gaps()) == 1


def test_without_an_srun_behind_it_the_wrapper_says_so(site: Site) -> None:
    site.real.unlink()
    environment = site.environment | {"PATH": f"{ROOT / 'hooks'}:/bin"}
    # The wrapper's own last resorts must not find an installed srun here.
    if any(os.access(path, os.X_OK) for path in ("/bin/srun", "/usr/bin/srun", "/usr/local/bin/srun")):
        pytest.skip("an srun is installed here")
    done = subprocess.run(["srun", "x"], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 127
    assert "there is no srun" in done.stderr


def test_a_link_to_the_wrapper_on_path_is_passed_over(site: Site, tmp_path: Path) -> None:
    (tmp_path / "link").mkdir()
    (tmp_path / "link" / "srun").symlink_to(ROOT / "hooks" / "srun")
    site.environment["PATH"] = f"{tmp_path / 'link'}:{site.environment['PATH']}"
    assert shown(site.srun("prog")) == ["-J", "prog", C, "prog"]


def test_hostile_words_pass_byte_for_byte(site: Site) -> None:
    picks = random.Random(7)
    odd = [b"", b"a b", b"\n", b"x\n\n", b"'", b"\\", b"$(id)", b"`id`", b"*", b"\x01\x7f\x81\xff", "ü".encode(), b"!"]
    odd += [bytes(picks.choices(range(1, 256), k=40)) for _ in range(20)]
    assert site.srun("-n2", "prog", *odd)[-len(odd) :] == odd
    assert site.srun("--multi-prog", *odd)[-len(odd) :] == odd


def environment_seen(site: Site, *words: str, **extra: str) -> dict[bytes, bytes]:
    site.real.write_text(f"#!{sys.executable}\nimport os\nos.write(1, open('/proc/self/environ', 'rb').read())\n")
    done = subprocess.run([*words, "prog"], env=site.environment | extra, capture_output=True, timeout=30, check=True)
    return dict(entry.split(b"=", 1) for entry in done.stdout.split(b"\0") if entry)


def test_the_environment_passes_with_what_no_shell_can_name(site: Site) -> None:
    extra = {"BASH_FUNC_module%%": "() {  echo module\n}", "a.b": "1", "BASH_ENV": "/nonexistent", "EMPTY": ""}
    # Names that a script would use for itself, and a setting of bash that takes features away.
    extra |= {"python": "mine", "real": "mine", "command": "mine", "p": "mine", "POSIXLY_CORRECT": "1"}
    through = environment_seen(site, "srun", **extra)
    direct = environment_seen(site, str(site.real), **extra)
    for name in (b"_", b"PWD", b"SHLVL", b"OLDPWD"):  # a shell's own
        through.pop(name, None)
        direct.pop(name, None)
    assert through == direct


def test_on_a_node_the_environment_passes_too(site: Site) -> None:
    words = site.srun("env", "-0")[2:]
    environment = {"BASH_FUNC_module%%": "() {  echo module\n}", "a.b": "1", "p": "mine", "PATH": "/usr/bin:/bin"}
    environment |= {"SLURM_JOB_ID": "8"}  # that has no open run here
    done = subprocess.run(words, env=environment, capture_output=True, check=True)
    seen = dict(os.fsdecode(entry).split("=", 1) for entry in done.stdout.split(b"\0") if entry)
    assert {name: seen.get(name) for name in environment} == environment
    assert seen.keys() - environment.keys() <= {"_", "PWD", "SHLVL"}


def test_on_a_node_without_denpex_the_program_runs_alone(site: Site) -> None:
    words = site.srun("sh", "-c", "echo $0 $1; exit 5", "a", "b c")[2:]
    gone = [b"/nonexistent/python" if word == os.fsencode(sys.executable) else word for word in words]
    done = subprocess.run(gone, capture_output=True, check=False)
    assert (done.stdout, done.returncode) == (b"a b c\n", 5)


def test_on_a_node_the_words_run_the_program_captured(site: Site) -> None:
    (site.user / "streams").mkdir()
    (site.place / "node.json").write_text(json.dumps({"run_dir": str(site.place / "run"), "spool_min_free": 1}))
    words = site.srun("sh", "-c", "echo $0 $1; exit 5", "a", "b c")[2:]
    environment: dict[str, Any] = site.environment | {"SLURM_STEP_ID": "3", "SLURM_PROCID": "1"}
    done = subprocess.run(words, env=environment, capture_output=True, check=False)
    assert (done.stdout, done.returncode) == (b"a b c\n", 5)
    assert (site.user / "streams" / "3.1.out").read_bytes() == b"a b c\n"
