"""Reads the files below patterns/ and checks their form: keys, kinds of values, vocabulary, ids that are unique."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from denpex.model import ClassDoc, Example, Library, Pattern, Requeue, Role, Route, Source
from denpex.taxonomy import CATEGORY_OF

Place = str
"""Where something stands: ``path:line``."""

_CLASS_KEYS: dict[str, type] = {
    "class": str, "title": str, "meaning": str, "mechanism": str, "symptoms": list, "not_from": list, "fix": list,
    "command": str, "route": str, "requeue": str, "drain": dict, "references": list, "patterns": list,
}  # fmt: skip
_CLASS_OPTIONAL: dict[str, type] = {"triggers": list, "triggered_by": list}
_PATTERN_KEYS: dict[str, type] = {
    "id": str, "role": str, "stream": str, "expressions": list, "tier": str, "source": str, "examples": dict,
}  # fmt: skip
_PATTERN_OPTIONAL: dict[str, type] = {
    "onset": str, "companions": list, "exclusions": list, "yields_to": list, "recovers": bool, "versions": str,
}  # fmt: skip
_EXAMPLE_KEYS: dict[str, type] = {"text": str}
_EXAMPLE_OPTIONAL: dict[str, type] = {"fields": dict, "why": str}
_KINDS = {str: "a text", list: "a list", dict: "a mapping", bool: "true or false"}
_ID = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_TEMPLATE_FIELD = re.compile(r"\{\{\s*(\w+)")

COMMAND_FIELDS = frozenset({"job", "step", "node", "partition", "user", "rank", "time_limit_minutes"})
"""What a class's ``command`` and ``fix`` may name: the scheduler's and root's values only, since people paste them."""


def read(root: Path) -> tuple[Library, dict[str, Place], list[str]]:
    """Return the library of a tree, where each pattern stands, and what is wrong with the files' form."""
    reader = _Reader()
    files = sorted(root.glob("*/*.yaml"))
    if not files:
        reader.say(root, 1, "there are no patterns here; is Denpex installed completely?")
    for file in files:
        reader.file(file)
    for pattern in reader.patterns:
        for other in pattern.yields_to:
            if other != "*" and other not in reader.places:
                reader.found.append(
                    f"{reader.places[pattern.id]}: {pattern.id} yields to {other!r}, which does not exist"
                )
    return Library(reader.classes, tuple(reader.patterns)), reader.places, reader.found


class _Mapping(dict[str, Any]):
    """A mapping that knows its line."""

    line = 1


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """YAML's safe loader, remembering the lines of mappings."""


def _construct(loader: Any, node: yaml.MappingNode) -> Iterator[_Mapping]:
    data = _Mapping()
    yield data
    data.update(loader.construct_mapping(node, deep=True))
    data.line = node.start_mark.line + 1


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _construct)


class _Reader:
    """Collects classes, patterns and complaints over all files."""

    def __init__(self) -> None:
        self.classes: dict[str, ClassDoc] = {}
        self.patterns: list[Pattern] = []
        self.places: dict[str, Place] = {}
        self.found: list[str] = []

    def say(self, file: Path, line: int, what: str) -> None:
        self.found.append(f"{file}:{line}: {what}")

    def file(self, file: Path) -> None:
        try:
            document = yaml.load(file.read_text(encoding="utf-8"), _Loader)
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            self.say(file, mark.line + 1 if mark else 1, f"this is not YAML: {getattr(error, 'problem', error)}")
            return
        except UnicodeDecodeError:
            self.say(file, 1, "this is not UTF-8 text")
            return
        if not isinstance(document, _Mapping):
            self.say(file, 1, "the file must be a mapping; see patterns/SCHEMA.md")
            return
        if not self._keys(file, document, _CLASS_KEYS, _CLASS_OPTIONAL, "the class"):
            return
        name = document["class"]
        self._class(file, document, name)
        for entry in document["patterns"]:
            if isinstance(entry, _Mapping):
                self._pattern(file, entry, name)
            else:
                self.say(file, 1, "each pattern must be a mapping; see patterns/SCHEMA.md")

    def _keys(
        self, file: Path, given: _Mapping, required: Mapping[str, type], optional: Mapping[str, type], what: str
    ) -> bool:
        """Check a mapping's keys and the kinds of their values."""
        before = len(self.found)
        known = {**required, **optional}
        for key, value in given.items():
            if key not in known:
                self.say(file, given.line, f"unknown key {key!r} in {what}; see patterns/SCHEMA.md")
            elif not isinstance(value, known[key]):
                self.say(file, given.line, f"{key} of {what} must be {_KINDS[known[key]]}")
            elif isinstance(value, list) and key not in ("patterns", "match", "no_match"):
                self._texts(file, given.line, value, f"{key} of {what}")
        missing = sorted(required.keys() - given.keys())
        if missing:
            self.say(file, given.line, f"{what} lacks {', '.join(missing)}; see patterns/SCHEMA.md")
        return len(self.found) == before

    def _texts(self, file: Path, line: int, value: list[Any], what: str) -> None:
        if not all(isinstance(item, str) and item.strip() for item in value):
            self.say(file, line, f"{what} must be a list of texts (a colon needs quotes)")

    def _class(self, file: Path, d: _Mapping, name: str) -> None:
        category = CATEGORY_OF.get(name)
        if category is None:
            self.say(file, d.line, f"{name!r} is not a failure class of denpex/taxonomy.py")
            return
        if (file.stem, file.parent.name) != (name, str(category)):
            self.say(file, d.line, f"the class {name} belongs into {category}/{name}.yaml")
        policy = d["drain"].get("policy")
        if policy not in ("no", "conditional"):
            self.say(file, d.line, f"drain.policy must be 'no' or 'conditional', not {policy!r}")
        if (policy == "conditional") != bool(d["drain"].get("condition")) or d["drain"].keys() - {
            "policy",
            "condition",
        }:
            self.say(file, d.line, "drain is a policy, and a condition exactly where the policy is 'conditional'")
        for text in (d["command"], *d["fix"]):
            for field in _TEMPLATE_FIELD.findall(str(text)):
                if field not in COMMAND_FIELDS:
                    self.say(file, d.line, f"a fix may not name the field {field!r}; see patterns/SCHEMA.md")
        try:
            route, requeue = Route(d["route"]), Requeue(d["requeue"])
        except ValueError as error:
            self.say(file, d.line, f"{error}; see patterns/SCHEMA.md")
            return
        for key in ("triggers", "triggered_by"):
            for other in d.get(key, ()):
                if other not in CATEGORY_OF:
                    self.say(file, d.line, f"{key} names {other!r}, which is not a failure class")
        self.classes[name] = ClassDoc(
            id=name,
            category=category,
            title=d["title"],
            meaning=" ".join(d["meaning"].split()),
            mechanism=" ".join(d["mechanism"].split()),
            symptoms=tuple(d["symptoms"]),
            not_from=tuple(d["not_from"]),
            fix=tuple(d["fix"]),
            command=d["command"].strip(),
            route=route,
            requeue=requeue,
            drain=str(policy),
            drain_condition=" ".join(str(d["drain"].get("condition", "")).split()),
            references=tuple(d["references"]),
            triggers=tuple(d.get("triggers", ())),
            triggered_by=tuple(d.get("triggered_by", ())),
        )

    def _pattern(self, file: Path, d: _Mapping, class_id: str) -> None:
        name = d.get("id", "?")
        if not self._keys(file, d, _PATTERN_KEYS, _PATTERN_OPTIONAL, f"pattern {name}"):
            return
        before = len(self.found)
        if not _ID.fullmatch(name):
            self.say(file, d.line, f"the id {name!r} is not of small letters and digits joined by -")
        if name in self.places:
            self.say(file, d.line, f"the id {name!r} is taken at {self.places[name]}; choose another")
        if d["tier"] not in ("A", "B", "C"):
            self.say(file, d.line, f"the tier of {name} must be A, B or C")
        if not d["expressions"]:
            self.say(file, d.line, f"pattern {name} needs at least one expression")
        if d.get("onset") and not any(f"(?P<{d['onset']}>" in e for e in d["expressions"]):
            self.say(file, d.line, f"onset of {name} names the field {d['onset']!r}, which no expression has")
        try:
            role, source = Role(d["role"]), Source(d["stream"])
        except ValueError as error:
            self.say(file, d.line, f"{error}; see patterns/SCHEMA.md")
            return
        examples = d["examples"]
        match = self._examples(file, d.line, examples, "match", name)
        no_match = self._examples(file, d.line, examples, "no_match", name)
        if len(self.found) > before:
            return
        self.places[name] = f"{file}:{d.line}"
        self.patterns.append(
            Pattern(
                id=name,
                failure_class=class_id,
                role=role,
                source=source,
                expressions=tuple(d["expressions"]),
                tier=d["tier"],
                reference=d["source"],
                match=match,
                no_match=no_match,
                onset=d.get("onset"),
                companions=tuple(d.get("companions", ())),
                exclusions=tuple(d.get("exclusions", ())),
                yields_to=tuple(d.get("yields_to", ())),
                recovers=d.get("recovers", False),
                versions=d.get("versions", ""),
            )
        )

    def _examples(self, file: Path, line: int, given: Mapping[str, Any], key: str, name: str) -> tuple[Example, ...]:
        listed = given.get(key)
        if not isinstance(listed, list) or not listed:
            self.say(file, line, f"pattern {name} needs at least one example under {key}")
            return ()
        result = []
        for entry in listed:
            if isinstance(entry, str):
                result.append(Example(entry))
            elif isinstance(entry, _Mapping) and self._keys(
                file, entry, _EXAMPLE_KEYS, _EXAMPLE_OPTIONAL, f"an example of {name}"
            ):
                fields = {k: str(v) for k, v in entry.get("fields", {}).items()}
                result.append(Example(entry["text"].rstrip("\n"), fields, entry.get("why", "")))
            elif not isinstance(entry, _Mapping):
                self.say(file, line, f"an example of {name} is a text, or a mapping with text, fields, why")
        return tuple(result)
