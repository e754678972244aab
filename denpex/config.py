"""/etc/denpex/denpex.yaml: every key with its meaning and default, and the flat files that nodes read instead."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from denpex.errors import ConfigError

ETC = Path("/etc/denpex")

_SIZE = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_TIME = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}

# The hooks' shells read these from node.sh as they stand there, without quotes.
_PATH = re.compile(r"/[A-Za-z0-9@%+=:,./_-]*")
# Kind of a text value -> (the expression that it must match, how the error calls it).
_FORMS = {
    "path": (_PATH, "an absolute path of letters, digits and @%+=:,./_-"),
    "account": (re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*"), "the name of an account or group"),
    "cluster": (re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}"), "a cluster's name: letters, digits, dots, _ and -"),
    "address": (re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[^\s:\[\]]+):\d{1,5}"), '"host:port"'),
    "source": (re.compile(r"auto|kmsg|journald|file"), "auto, kmsg, journald or file"),
}
# Kind of a number -> (least, most, how the error calls it).
_NUMBERS = {
    "seconds": (1, 60, "seconds from 1 to 60"),
    "port": (1, 65535, "a port from 1 to 65535"),
    "count": (1, 1000, "a number from 1 to 1000"),
}
# Each item of a list may have a form as well.
_ITEMS = {"addresses": "address", "accounts": "account"}


def _key(default: Any, meaning: str, kind: str = "text") -> Any:
    """Declare one key: its default, its meaning (shown in the reference) and how its text is read."""
    metadata = {"meaning": meaning, "kind": kind}
    if isinstance(default, list):
        return field(default_factory=lambda: tuple(default), metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class ClockConfig:
    """How node clocks are measured."""

    reference: tuple[str, ...] = _key(
        [], 'SNTP servers as "host:port", the same on all nodes; the first that answers is used', "addresses"
    )
    serve: str = _key("", '"address:port" at which the worker answers SNTP requests; empty: it does not', "address")


@dataclass(frozen=True)
class KernelConfig:
    """Where kernel records come from."""

    source: str = _key("auto", "auto, kmsg, journald or file; auto tries kmsg, then journald", "source")
    trusted_file: str = _key("", "a kernel log file that only root can write, for source: file", "path")


@dataclass(frozen=True)
class CaptureConfig:
    """Limits of what is kept of task output; the middle of what is longer is dropped, and the cut is stated."""

    max_task: int = _key(64 << 20, "bytes kept of one task's stream", "size")
    max_job: int = _key(2 << 30, "bytes kept of one job's streams on one node", "size")
    max_output_file: int = _key(64 << 20, "bytes read of a job's output file", "size")


@dataclass(frozen=True)
class HookConfig:
    """Bounds of the node hooks."""

    timeout: int = _key(5, "seconds after which prolog or epilog give up, 1 to 60", "seconds")
    nvml_timeout: int = _key(2, "seconds that the GPU driver may take to answer, 1 to 60", "seconds")


@dataclass(frozen=True)
class FetchConfig:
    """How the worker gets node-local spools, over ssh with a key that can only hand out one run."""

    user: str = _key("denpex", "account on the nodes", "account")
    key: str = _key("", "private key file; empty: the spool is on a shared file system and is read there", "path")
    known_hosts: str = _key("/etc/denpex/known_hosts", "host keys of the nodes; no other is taken", "path")
    port: int = _key(22, "ssh port of the nodes", "port")
    parallel: int = _key(8, "nodes fetched from at a time", "count")
    timeout: int = _key(20, "seconds without progress after which a node is given up", "time")
    max_bytes: int = _key(4 << 30, "bytes taken from one node for one run", "size")


@dataclass(frozen=True)
class WorkerConfig:
    """The service that diagnoses and answers."""

    deadline: int = _key(120, "seconds to wait for node bundles before a verdict with gaps", "time")
    sweep: int = _key(600, "seconds between comparisons of sacct with the stored verdicts", "time")
    listen: str = _key("", '"address:port" for `denpex show` on other hosts (needs munge); empty: none', "address")
    server: str = _key("", '"host:port" of the worker, for hosts without its socket', "address")
    answers_dir: str = _key("", "shared directory of answer files for when no worker answers; empty: none", "path")
    user: str = _key("slurm", "account that the worker runs as; only its answers, and root's, are believed", "account")
    admins: tuple[str, ...] = _key(["root"], "users who see every job, besides the worker's own", "accounts")


@dataclass(frozen=True)
class Config:
    """The whole configuration; immutable."""

    cluster: str = _key("", "cluster name; empty: what Slurm says", "cluster")
    spool_dir: str = _key("/var/spool/denpex", "where nodes put what they capture", "path")
    spool_max_age: int = _key(7 * 86400, "age at which a run is removed from the spool", "time")
    spool_min_free: int = _key(1 << 30, "free bytes on the spool's disk below which nothing is captured", "size")
    run_dir: str = _key("/run/denpex", "pointers to open runs, and the worker's socket", "path")
    state_dir: str = _key("/var/lib/denpex", "the worker's database and queue", "path")
    group: str = _key("denpex", "group that may read the spool", "account")
    python: str = _key("", "interpreter for the node hooks; empty: the one that runs `denpex config apply`", "path")
    slurm_bin: str = _key("", "directory of Slurm's commands; empty: PATH", "path")
    clock: ClockConfig = field(default_factory=ClockConfig)
    kernel: KernelConfig = field(default_factory=KernelConfig)
    capture: CaptureConfig = field(default_factory=CaptureConfig)
    hooks: HookConfig = field(default_factory=HookConfig)
    fetch: FetchConfig = field(default_factory=FetchConfig)
    worker: WorkerConfig = field(default_factory=WorkerConfig)

    @property
    def queue_dir(self) -> Path:
        """Where completion hooks leave one file per ended job."""
        return Path(self.state_dir) / "queue"

    @property
    def database(self) -> Path:
        """The SQLite file of the verdicts."""
        return Path(self.state_dir) / "denpex.db"

    @property
    def socket(self) -> Path:
        """The worker's unix socket."""
        return Path(self.run_dir) / "worker.sock"


def etc_dir() -> Path:
    """Return the configuration directory: DENPEX_ETC where set (tests, several clusters), else /etc/denpex."""
    return Path(os.environ.get("DENPEX_ETC") or ETC)


def load(path: Path | None = None) -> Config:
    """Read ``path`` (default: denpex.yaml of ``etc_dir()``); a missing default file means all defaults.

    Raises ConfigError, whose message begins ``path:line``, for an unknown key or a value that does not fit.
    """
    file = path or etc_dir() / "denpex.yaml"
    try:
        if file.exists() and not file.is_file():
            raise ConfigError(f"{file}:1: this is not a plain file; name one")
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        if path is None:
            return Config()
        raise ConfigError(f"{file}:1: there is no such configuration file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}:1: the configuration cannot be read: {error}") from error
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except RecursionError:
        raise ConfigError(f"{file}:1: the YAML is nested too deeply; a configuration has two levels") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark is not None else 1
        problem = getattr(error, "problem", None) or str(error)
        raise ConfigError(f"{file}:{line}: this is not YAML: {problem}") from error
    if root is None:
        return Config()
    result = _section(Config, root, file, "")
    assert isinstance(result, Config)
    if result.kernel.source == "file" and not result.kernel.trusted_file:
        raise ConfigError(f"{_at(file, root)}: kernel.source is file, but kernel.trusted_file names none")
    return result


def _section(kind: type[Any], node: yaml.Node, file: Path, prefix: str) -> Any:
    """Build one dataclass from a YAML mapping, key by key, each error with its line."""
    if not isinstance(node, yaml.MappingNode):
        raise ConfigError(f"{_at(file, node)}: {prefix or 'the file'} must be a mapping of keys to values")
    fields = {f.name: f for f in dataclasses.fields(kind)}
    values: dict[str, Any] = {}
    for key_node, value_node in node.value:
        name = str(key_node.value)
        known = fields.get(name)
        if known is None:
            raise ConfigError(
                f"{_at(file, key_node)}: unknown key {prefix + name!r}; known here: {', '.join(sorted(fields))}"
            )
        if name in values:
            raise ConfigError(f"{_at(file, key_node)}: the key {prefix + name!r} stands here twice")
        if "kind" in known.metadata:
            values[name] = _value(known.metadata["kind"], value_node, file, prefix + name)
            if values[name] == "" and known.default != "":
                form = f"must not be empty; leave the key out for {known.default!r}"
                raise ConfigError(f"{_at(file, value_node)}: {prefix + name} {form}")
        else:
            assert callable(known.default_factory)
            values[name] = _section(type(known.default_factory()), value_node, file, f"{prefix}{name}.")
    return kind(**values)


def _value(kind: str, node: yaml.Node, file: Path, name: str) -> Any:
    def wrong(form: str, text: str) -> ConfigError:
        return ConfigError(f"{_at(file, node)}: {name} must be {form}, not {text!r}")

    if kind in _ITEMS:
        expression, form = _FORMS[_ITEMS[kind]]
        items = _items(node)
        if items is None:
            raise ConfigError(f"{_at(file, node)}: {name} must be a list of words")
        for item in items:
            if not expression.fullmatch(item):
                raise wrong(f"a list of items each of which is {form}", item)
        return items
    if not isinstance(node, yaml.ScalarNode):
        raise ConfigError(f"{_at(file, node)}: {name} must be a single value")
    text = "" if node.tag == "tag:yaml.org,2002:null" else str(node.value)
    if kind in _FORMS:
        expression, form = _FORMS[kind]
        # Where the default is empty, empty is the way to say so.
        if text and not expression.fullmatch(text):
            raise wrong(form, text)
        return text
    if kind in _NUMBERS:
        low, high, form = _NUMBERS[kind]
        seconds = re.fullmatch(r"(\d{1,9})s?" if kind == "seconds" else r"(\d{1,9})", text)
        if seconds is None or not low <= int(seconds[1]) <= high:
            raise wrong(form, text)
        return int(seconds[1])
    number, units = (r"(\d{1,15})\s*([KMGT]?)(?:i?B)?", _SIZE) if kind == "size" else (r"(\d{1,9})\s*([smhd]?)", _TIME)
    match = re.fullmatch(number, text)
    if match is None:
        raise wrong("a size such as 64MiB" if kind == "size" else "a time such as 90s, 5m or 7d", text)
    return int(match[1]) * units[match[2]]


def _items(node: yaml.Node) -> tuple[str, ...] | None:
    if isinstance(node, yaml.SequenceNode) and all(isinstance(item, yaml.ScalarNode) for item in node.value):
        return tuple(str(item.value) for item in node.value)
    if isinstance(node, yaml.ScalarNode):
        return tuple(part for part in re.split(r"[\s,]+", node.value) if part)
    return None


def _at(file: Path, node: yaml.Node) -> str:
    return f"{file}:{node.start_mark.line + 1}"


def flat(config: Config, python: str, package: str) -> dict[str, Any]:
    """Return what nodes need, as one flat mapping of names to text, numbers or lists of text.

    ``python`` is the interpreter for hooks where the configuration names none; ``package`` the directory that
    holds the package ``denpex``.
    """
    return {
        "format": 1,
        "python": config.python or python,
        "package": package,
        "slurm_bin": config.slurm_bin,
        "cluster": config.cluster,
        "spool_dir": config.spool_dir,
        "spool_min_free": config.spool_min_free,
        "spool_max_age": config.spool_max_age,
        "run_dir": config.run_dir,
        "queue_dir": str(config.queue_dir),
        "group": config.group,
        "clock_reference": list(config.clock.reference),
        "kernel_source": config.kernel.source,
        "kernel_trusted_file": config.kernel.trusted_file,
        "capture_max_task": config.capture.max_task,
        "capture_max_job": config.capture.max_job,
        "capture_max_output_file": config.capture.max_output_file,
        "hook_timeout": config.hooks.timeout,
        "nvml_timeout": config.hooks.nvml_timeout,
    }


def apply(config: Config, directory: Path, python: str, package: str) -> list[Path]:
    """Write node.json and node.sh (mode 0644) into ``directory``, each aside and renamed; return their paths."""
    values = flat(config, python, package)
    for name in ("python", "package"):
        if not _PATH.fullmatch(values[name]):
            raise ConfigError(
                f"{directory / 'node.sh'}:1: the hooks cannot use the {name} {values[name]!r}, which is not"
                f" {_FORMS['path'][1]}; install Denpex elsewhere"
            )
    lines = ["# Written by `denpex config apply`; change denpex.yaml and run it again."]
    for name, value in values.items():
        text = " ".join(value) if isinstance(value, list) else str(value)
        lines.append(f"DENPEX_{name.upper()}={shlex.quote(text)}")
    written = []
    for name, content in (("node.json", json.dumps(values, indent=1) + "\n"), ("node.sh", "\n".join(lines) + "\n")):
        target = directory / name
        aside = directory / f".{name}.{os.getpid()}"
        try:
            directory.mkdir(mode=0o755, parents=True, exist_ok=True)
            aside.write_text(content, encoding="utf-8")
            aside.chmod(0o644)
            aside.replace(target)
        except OSError as error:
            raise ConfigError(f"{target}:1: the nodes' configuration cannot be written: {error.strerror}") from error
        written.append(target)
    return written


def reference() -> list[tuple[str, str, str]]:
    """Return (key, default, meaning) of every key, in the order of the file, for the documentation."""
    rows: list[tuple[str, str, str]] = []

    def walk(kind: Any, prefix: str) -> None:
        for item in dataclasses.fields(kind):
            value = getattr(kind, item.name)
            if "meaning" in item.metadata:
                shown = _shown(value, item.metadata["kind"])
                rows.append((prefix + item.name, shown, item.metadata["meaning"]))
            else:
                walk(value, f"{prefix}{item.name}.")

    walk(Config(), "")
    return rows


def _shown(value: Any, kind: str) -> str:
    """Return a default as one writes it in the file."""
    if isinstance(value, tuple):
        return ", ".join(value)
    if kind in ("size", "time"):
        units, suffix = (_SIZE, "iB") if kind == "size" else (_TIME, "")
        unit = max((unit for unit in units if unit and value % units[unit] == 0), key=lambda unit: units[unit])
        return f"{value // units[unit]}{unit}{suffix}" if value else "0"
    return str(value)
