"""The configuration: every key documented and checked, errors with their line, and what hooks read of it."""

import dataclasses
import json
import os
import re
import subprocess
from pathlib import Path

import jinja2
import pytest
import yaml

from denpex import config
from denpex.cli import config as command
from denpex.errors import ConfigError
from denpex.node import settings

ROOT = Path(__file__).parents[2]


def load(tmp_path, text):
    path = tmp_path / "denpex.yaml"
    path.write_text(text)
    return config.load(path)


def test_without_a_file_every_key_has_its_default(tmp_path, monkeypatch):
    monkeypatch.setenv("DENPEX_ETC", str(tmp_path))
    assert config.load() == config.Config()


def test_a_file_that_was_named_must_be_there(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.yaml:1: there is no such"):
        config.load(tmp_path / "none.yaml")


def test_values_are_read_in_the_forms_that_people_write(tmp_path):
    made = load(
        tmp_path,
        "spool_min_free: 2 GiB\nspool_max_age: 36h\ncapture:\n  max_task: 512K\n  max_job: 7\n"
        "clock:\n  reference: ntp1:123, 10.0.0.1:1123\nworker:\n  admins: [root, ops]\n  deadline: 90\n"
        "fetch: {port: 2222}\n",
    )
    assert (made.spool_min_free, made.spool_max_age) == (2 << 30, 36 * 3600)
    assert (made.capture.max_task, made.capture.max_job) == (512 << 10, 7)
    assert made.clock.reference == ("ntp1:123", "10.0.0.1:1123")
    assert (made.worker.admins, made.worker.deadline, made.fetch.port) == (("root", "ops"), 90, 2222)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cluster: a\nspool: /x\n", r":2: unknown key 'spool'"),
        ("clock:\n  servers: []\n", r":2: unknown key 'clock.servers'"),
        ("cluster: a\ncluster: b\n", r":2: the key 'cluster' stands here twice"),
        ("\n\nclock: yes\n", r":3: clock\. must be a mapping|:3: "),
        ("- a\n", r":1: the file must be a mapping"),
        ("cluster: [\n", r":2: this is not YAML"),
        ("cluster: 'a\n", r": this is not YAML"),
        ("a: \x01\n", r": this is not YAML"),
        ("cluster: ../x\n", r":1: cluster must be a cluster's name"),
        ("spool_dir: spool\n", r":1: spool_dir must be an absolute path"),
        ("spool_dir: /a b\n", r":1: spool_dir must be an absolute path"),
        ("spool_dir:\n", r":1: spool_dir must not be empty"),
        ("spool_dir: {}\n", r":1: spool_dir must be a single value"),
        ("spool_min_free: much\n", r":1: spool_min_free must be a size such as 64MiB, not 'much'"),
        ("spool_max_age: -1\n", r":1: spool_max_age must be a time such as"),
        ("hooks:\n  timeout: 0\n", r":2: hooks.timeout must be seconds from 1 to 60"),
        ("hooks:\n  timeout: 5m\n", r":2: hooks.timeout must be seconds from 1 to 60"),
        ("fetch:\n  port: 70000\n", r":2: fetch.port must be a port"),
        ("fetch:\n  parallel: 0\n", r":2: fetch.parallel must be a number"),
        ("kernel:\n  source: dmesg\n", r":2: kernel.source must be auto, kmsg, journald or file"),
        ("kernel:\n  source: file\n", r": kernel.source is file, but kernel.trusted_file names none"),
        ("clock:\n  reference: [ntp]\n", r':2: clock.reference must be a list of items each of which is "host:port"'),
        ("clock:\n  reference: [[a]]\n", r":2: clock.reference must be a list of words"),
        ("worker:\n  listen: 6899\n", r':2: worker.listen must be "host:port"'),
        ("group: 'a b'\n", r":1: group must be the name of"),
    ],
)
def test_an_error_names_its_line_and_what_would_be_right(tmp_path, text, message):
    with pytest.raises(ConfigError, match=message):
        load(tmp_path, text)


def test_a_file_that_is_no_text_is_an_error(tmp_path):
    (tmp_path / "denpex.yaml").write_bytes(b"cluster: \xff\n")
    with pytest.raises(ConfigError, match=r":1: the configuration cannot be read"):
        config.load(tmp_path / "denpex.yaml")


def test_the_page_of_all_keys_is_current():
    assert (ROOT / "docs" / "configuration.md").read_text() == command.reference_page(), (
        "run: python -m denpex config reference > docs/configuration.md"
    )


def test_every_key_says_what_it_means():
    for key, default, meaning in config.reference():
        assert meaning, key
        assert isinstance(default, str)


def test_what_is_written_for_nodes_is_what_node_code_reads(tmp_path, monkeypatch):
    made = load(tmp_path, "clock:\n  reference: 'a:1, b:2'\nspool_dir: /srv/x\nhooks:\n  timeout: 9\n")
    config.apply(made, tmp_path, "/opt/python", "/opt/denpex")
    monkeypatch.setenv("DENPEX_ETC", str(tmp_path))
    read, problem = settings.load()
    assert problem == ""
    assert (read["spool_dir"], read["hook_timeout"], read["clock_reference"]) == ("/srv/x", 9, ["a:1", "b:2"])
    assert set(settings.DEFAULTS) <= set(json.loads((tmp_path / "node.json").read_text()))
    shown = subprocess.run(
        ["/bin/sh", "-c", '. "$0"/node.sh; echo "$DENPEX_PYTHON|$DENPEX_QUEUE_DIR|$DENPEX_HOOK_TIMEOUT"', tmp_path],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert shown.stdout == "/opt/python|/var/lib/denpex/queue|9\n"
    for name in ("node.json", "node.sh"):
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o644


def test_the_built_in_defaults_of_nodes_are_the_configurations(tmp_path):
    config.apply(config.Config(), tmp_path, "/opt/python", "/opt/denpex")
    written = json.loads((tmp_path / "node.json").read_text())
    assert {name: written[name] for name in settings.DEFAULTS} == settings.DEFAULTS


def test_an_installation_that_hooks_cannot_name_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="the hooks cannot use the python"):
        config.apply(config.Config(), tmp_path, "/opt/my python", "/opt/denpex")
    assert not (tmp_path / "node.sh").exists()


def test_a_directory_that_cannot_be_written_is_an_error():
    with pytest.raises(ConfigError, match="cannot be written"):
        config.apply(config.Config(), Path("/proc/denpex"), "/opt/python", "/opt/denpex")


@pytest.fixture
def rendered(tmp_path, monkeypatch):
    monkeypatch.setenv("DENPEX_ETC", str(tmp_path))
    assert command.main(["render", str(tmp_path / "out")]) == 0
    return {path.name: path.read_text() for path in (tmp_path / "out").iterdir()}


def test_what_is_rendered_names_programs_that_are_there(rendered):
    assert rendered.keys() == {"slurm.conf", "denpex.yaml", "denpex-worker.service", "tmpfiles.conf", "authorized_keys"}
    settings_ = dict(
        line.lstrip("#").split("=", 1)
        for line in rendered["slurm.conf"].splitlines()
        if "=" in line and " " not in line
    )
    for key in ("Prolog", "Epilog", "JobCompLoc", "EpilogSlurmctld"):
        assert os.access(settings_[key], os.X_OK), key
    (line,) = [line for line in rendered["authorized_keys"].splitlines() if line.startswith("restrict,")]
    assert os.access(line.split('"')[1], os.X_OK)


def test_the_rendered_configuration_shows_every_key_with_its_default(rendered, tmp_path):
    text = "\n".join(
        line.removeprefix("#") for line in rendered["denpex.yaml"].splitlines() if not re.match(r"# \S", line)
    )
    whole = yaml.safe_load(text)
    flat = {f"{key}.{name}" for key, value in whole.items() if isinstance(value, dict) for name in value}
    flat |= {key for key, value in whole.items() if not isinstance(value, dict)}
    assert flat == {key for key, _, _ in config.reference()}
    # Keys without a value are those whose default is empty: what is left must load as the defaults.
    path = tmp_path / "whole.yaml"
    path.write_text(text)
    assert config.load(path) == config.Config()


def test_templates_use_only_values_that_there_are():
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, autoescape=True)
    for path in (ROOT / "slurm_conf").glob("*.j2"):
        environment.parse(path.read_text())
    assert dataclasses.is_dataclass(config.Config)
    assert list((ROOT / "slurm_conf").glob("*.j2"))


def test_the_command_says_whether_a_file_can_be_used(tmp_path, capsys):
    path = tmp_path / "denpex.yaml"
    path.write_text("cluster: a\n")
    assert command.main(["check", str(path)]) == 0
    assert "ok" in capsys.readouterr().out
    path.write_text("clutser: a\n")
    with pytest.raises(ConfigError, match=":1: unknown key 'clutser'"):
        command.main(["check", str(path)])
