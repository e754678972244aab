"""`denpex config`: checks the configuration, and writes what nodes and Slurm need of it."""

from __future__ import annotations

import argparse
import itertools
import sys
from pathlib import Path

from denpex import config, resources
from denpex.errors import ConfigError


def main(argv: list[str]) -> int:
    """Run ``denpex config check|apply|render|reference``."""
    parser = argparse.ArgumentParser(prog="denpex config", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    check = verbs.add_parser("check", help="say whether the configuration can be used")
    check.add_argument("file", nargs="?", type=Path, help="default: denpex.yaml of /etc/denpex")
    verbs.add_parser("apply", help="write node.json and node.sh, which hooks and node code read")
    render = verbs.add_parser("render", help="write the files that Slurm, systemd and sshd need")
    render.add_argument("directory", type=Path)
    verbs.add_parser("reference", help="print all keys with defaults and meanings, as Markdown")
    options = parser.parse_args(argv)
    if options.verb == "check":
        config.load(options.file)
        print(f"{options.file or config.etc_dir() / 'denpex.yaml'}: ok")
    elif options.verb == "apply":
        package = str(Path(__file__).parents[2])
        for written in config.apply(config.load(), config.etc_dir(), sys.executable, package):
            print(f"wrote {written}")
    elif options.verb == "render":
        for written in _render(options.directory):
            print(f"wrote {written}")
    else:
        print(reference_page(), end="")
    return 0


def _render(directory: Path) -> list[Path]:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(resources.path("slurm_conf")),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    values = {
        "config": config.load(),
        "hooks": resources.path("hooks"),
        "denpex": Path(sys.executable).parent / "denpex",
        "sections": _sections(),
    }
    try:
        directory.mkdir(parents=True, exist_ok=True)
        written = []
        for name in sorted(environment.list_templates(extensions=["j2"])):
            target = directory / name.removesuffix(".j2")
            target.write_text(environment.get_template(name).render(values), encoding="utf-8")
            target.chmod(0o644)
            written.append(target)
    except OSError as error:
        raise ConfigError(f"{directory}:1: the files cannot be written there: {error.strerror}") from error
    return written


def _sections() -> list[tuple[str, list[tuple[str, str, str]]]]:
    """Return the keys by section, each as (name in the section, default, meaning)."""
    rows = [(*key.rpartition(".")[::2], default, meaning) for key, default, meaning in config.reference()]
    return [
        (section, [(name, default, meaning) for _, name, default, meaning in group])
        for section, group in itertools.groupby(rows, key=lambda row: row[0])
    ]


def reference_page() -> str:
    """Return docs/configuration.md."""
    lines = [
        "# Configuration",
        "",
        "`/etc/denpex/denpex.yaml`; every key is optional. Sizes are bytes or as `64MiB`, times seconds or as `5m`.",
        "`denpex config check` names an error with its line; `denpex config apply` writes what nodes read.",
        "This page is written by `denpex config reference`.",
        "",
        "| key | default | meaning |",
        "|---|---|---|",
    ]
    lines += [
        f"| `{key}` | {f'`{default}`' if default else ''} | {meaning} |" for key, default, meaning in config.reference()
    ]
    return "\n".join(lines) + "\n"
